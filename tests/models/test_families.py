"""What stays on the CPU EP in each family's model, and that the rest is one plan."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest
from model_folders import DATA, LEFT, MODELS, PLANS

import ort_aie_ep
from ort_aie_ep.explain.explain import CPU_EP, HOST, explain
from ort_aie_ep.graph_passes import DOMAIN
from ort_aie_ep.graph_passes.plans import PLAN

OURS = {
    f"com.microsoft.{op}" for op in ("MatMulNBits", "GroupQueryAttention", "GatherBlockQuantized")
}
# Nodes that every model has: seqlens_k and total_sequence_length from the mask, and constants.
MASK = "/model/attn_mask_reformat/"


@pytest.mark.parametrize("name", MODELS)
def test_no_projection_and_no_attention_is_left_on_the_cpu_ep(name: str) -> None:
    nodes = explain(DATA / name).nodes
    left = [node for node in nodes if node.runs == CPU_EP and not node.node.startswith(MASK)]
    assert {node.op for node in left} - {"Constant"} == LEFT.get(name, set())
    for node in nodes:
        if node.op in OURS:
            assert (node.runs, node.becomes.split(".")[0]) == (HOST, DOMAIN)


@pytest.mark.parametrize("name", MODELS)
def test_compiled_it_is_one_plan_unless_operators_divide_it(name: str, tmp_path: Path) -> None:
    ort_aie_ep.compile(DATA / name, tmp_path / "compiled")
    graph = ir.load(tmp_path / "compiled" / "model.onnx").graph
    ours = [node.op_type for node in graph if node.domain == DOMAIN]
    assert ours == [PLAN] * PLANS.get(name, 1)
