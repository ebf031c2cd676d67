"""Models as mobius-onnx exports them, compiled and on the execution provider."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx
import pytest
from expanded import expanded
from op_models import ORT_VERSION

import ort_aie_ep
from ort_aie_ep.explain.explain import CPU_EP, explain

pytestmark = pytest.mark.skipif(
    ORT_VERSION < (1, 24), reason="the exports are in opset 24, which ONNX Runtime 1.23 refuses"
)

Array = npt.NDArray[Any]
DATA = Path(__file__).parent.parent / "data" / "mobius"
LENGTHS = (40, 1, 1, 9, 1)  # a prompt beyond the window, tokens, a later turn, a token


@dataclass(frozen=True)
class Export:
    """An export: what compile is told, the steps of its plan, and what stays, masks left out."""

    name: str
    quantize: str | None
    steps: dict[str, int]
    stays: dict[str, int]


EXPORTS = [
    Export(
        "gemma3", "bf16",
        {"FlowAttention": 2, "GEMM": 11, "GatedGEMM": 2, "Gather": 1, "Mul": 1, "Reshape": 2,
         "RMSNorm": 6},
        {},
    ),
    Export(
        "llama_int4", "bf16",
        {"FlowAttention": 2, "GEMM": 1, "Gather": 1, "Q4NXGatedMLP": 2, "Q4NXMatMul": 10,
         "RMSNorm": 2},
        {},
    ),
    Export(
        "qwen3_int4", None,
        {"FlowAttention": 2, "Gather": 1, "Q4NXGatedMLP": 2, "Q4NXMatMul": 10, "RMSNorm": 3},
        {"MatMul": 1},
    ),
]  # fmt: skip
INT4 = [export for export in EXPORTS if export.name.endswith("int4")]
# Operators that compute rotary angles, masks and lengths.
AROUND = {
    "And", "Cast", "Concat", "CumSum", "Expand", "Gather", "GreaterOrEqual", "Less", "Range",
    "ReduceProd", "ReduceSum", "Reshape", "Shape", "Slice", "Sub", "Transpose", "Unsqueeze",
    "Where",
}  # fmt: skip

each = pytest.mark.parametrize("export", EXPORTS, ids=lambda export: export.name)


@each
def test_it_is_one_plan(export: Export, tmp_path: Path) -> None:
    ort_aie_ep.compile(DATA / export.name, tmp_path / "compiled", quantize=export.quantize)
    ours = [n.op_type for n in expanded(tmp_path / "compiled").graph if n.domain == "aie"]
    assert Counter(ours) == export.steps
    explained = explain(tmp_path / "compiled")
    assert len(explained.plans) == 1
    left = Counter(node.op for node in explained.nodes if node.runs == CPU_EP)
    assert {op: n for op, n in left.items() if op not in AROUND | {"Constant"}} == export.stays


def test_what_a_function_says_of_matmulnbits_is_not_compiled(tmp_path: Path) -> None:
    """ONNX Runtime has the operator; the function is for runtimes that do not."""
    source = onnx.load(DATA / "qwen3_int4" / "model.onnx", load_external_data=False)
    assert "MatMulNBits" in {function.name for function in source.functions}
    result = ort_aie_ep.compile(DATA / "qwen3_int4", tmp_path / "compiled")
    compiled = onnx.load(tmp_path / "compiled" / "model.onnx", load_external_data=False)
    assert "MatMulNBits" not in {function.name for function in compiled.functions}
    fates = Counter(o.becomes for o in result.outcomes if o.op_type == "MatMulNBits")
    assert fates == {"aie.Q4NXMatMul": 10, "aie.Q4NXGatedMLP": 4}
