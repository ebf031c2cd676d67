"""Each family's model: `explain` and docs/models.md say the same about it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx_ir as ir
import pytest
from test_compiled_models import DATA, MODELS

import ort_aie_ep
from ort_aie_ep.explain.explain import CPU_EP, HOST, explain
from ort_aie_ep.graph_passes import DOMAIN, plan, run_passes
from ort_aie_ep.graph_passes.plans import PLAN

# A checkout has the docs; a copy of only the tests does not.
DOCS = DATA.parents[1] / "docs" / "models.md"
# Nodes that every model has: seqlens_k and total_sequence_length from the mask, and constants.
MASK = "/model/attn_mask_reformat/"
# Phi's LayerNorms stay with ONNX Runtime. Each reads one region, and the next region reads it.
PLANS = {"phi": 3}


def counts(operators: list[str]) -> str:
    """ "2 A, B" of A, B, A."""
    times = sorted(Counter(operators).items())
    return ", ".join(name if count == 1 else f"{count} {name}" for name, count in times) or "–"


def left_on_the_cpu_ep(folder: Path) -> list[str]:
    return [
        node.op
        for node in explain(folder).nodes
        if node.runs == CPU_EP and node.op != "Constant" and not node.node.startswith(MASK)
    ]


def table_row(name: str) -> str:
    """The model's row in the docs' table, without its first cells."""
    model = ir.load(DATA / name / "model.onnx")
    plan(model, run_passes(model), whole=False)
    ours = [node.op_type for node in model.graph if node.domain == DOMAIN]
    return f"| {counts(ours)} | {counts(left_on_the_cpu_ep(DATA / name))} |"


@pytest.mark.parametrize("name", MODELS)
def test_no_projection_and_no_attention_is_left_on_the_cpu_ep(name: str) -> None:
    left = set(left_on_the_cpu_ep(DATA / name))
    assert not {op for op in left if op.startswith("com.microsoft.") and "Layer" not in op}
    assert not left & {"MatMul", "Gemm", "Softmax", "Attention"}
    for node in explain(DATA / name).nodes:
        if "MatMulNBits" in node.op or "Attention" in node.op or "GatherBlock" in node.op:
            assert (node.runs, node.becomes.split(".")[0]) == (HOST, DOMAIN)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.skipif(not DOCS.is_file(), reason="no docs beside the tests")
def test_the_docs_say_exactly_what_is_left(name: str) -> None:
    table = DOCS.read_text().partition("\n## ")[0]  # below, the page has tables of other models
    rows = [line for line in table.splitlines() if line.startswith(f"| `{name}` |")]
    assert len(rows) == 1, f"docs/models.md needs one row of {name}: {table_row(name)}"
    assert rows[0].endswith(table_row(name)), f"expected | `{name}` | ... {table_row(name)}"


@pytest.mark.parametrize("name", MODELS)
def test_compiled_it_is_one_plan_from_embedding_to_logits(name: str, tmp_path: Path) -> None:
    ort_aie_ep.compile(DATA / name, tmp_path / "compiled")
    graph = ir.load(tmp_path / "compiled" / "model.onnx").graph
    ours = [node.op_type for node in graph if node.domain == DOMAIN]
    assert ours == [PLAN] * PLANS.get(name, 1)
