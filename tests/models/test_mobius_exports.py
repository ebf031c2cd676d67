"""Models as mobius-onnx exports them, compiled and on the execution provider."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from expanded import expanded
from op_models import ORT_VERSION, session_options
from provider_calls import devices, registered

import ort_aie_ep
from ort_aie_ep.explain.explain import CPU_EP, explain
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.runtime.sessions import Options, open_session

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
        {"FlowAttention": 2, "GEMM": 11, "GatedGEMM": 2, "Gather": 1, "Mul": 1, "RMSNorm": 6},
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


def logits(session: Any, folder: Path) -> Array:
    """Of seeded tokens in pieces of LENGTHS."""
    decoder = Decoder(session, find_model(folder), sum(LENGTHS))
    rng = np.random.default_rng(7)
    parts = [decoder.forward(rng.integers(3, decoder.vocabulary, n)) for n in LENGTHS]
    return np.concatenate(parts)


def source_logits(name: str, work: Path, level: int) -> Array:
    """On ONNX Runtime's CPU EP, with this accuracy_level at each MatMulNBits."""
    shutil.copytree(DATA / name, work)
    model = ir.load(work / "model.onnx")
    for node in model.graph:
        if node.op_type == "MatMulNBits":
            node.attributes.add(ir.AttrInt64("accuracy_level", level))
    ir.save(model, work / "model.onnx")
    return logits(open_session(work / "model.onnx"), work)


def distance(actual: Array, expected: Array) -> float:
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))


def limit(name: str, work: Path, exact: Array) -> float:
    """The distance of ONNX Runtime's own int8 activations, which are coarser than bfloat16 (see
    test_compiled_models.py). For a float export, its weights in bfloat16: 9 products one after
    the other, each with 2^-8 of rounding in its weights and in its activations."""
    if name.endswith("int4"):
        return distance(source_logits(name, work / "int8", 4), exact)
    return 9 * 2 * 2**-8


@each
def test_it_is_one_plan(export: Export, tmp_path: Path) -> None:
    ort_aie_ep.compile(DATA / export.name, tmp_path / "compiled", quantize=export.quantize)
    ours = [n.op_type for n in expanded(tmp_path / "compiled").graph if n.domain == "aie"]
    assert Counter(ours) == export.steps
    explained = explain(tmp_path / "compiled")
    assert len(explained.plans) == 1
    left = Counter(node.op for node in explained.nodes if node.runs == CPU_EP)
    assert {op: n for op, n in left.items() if op not in AROUND | {"Constant"}} == export.stays


@each
def test_compiled_it_has_the_logits_of_the_source(export: Export, tmp_path: Path) -> None:
    ort_aie_ep.compile(DATA / export.name, tmp_path / "compiled", quantize=export.quantize)
    expected = source_logits(export.name, tmp_path / "exact", 0)
    session = open_session(tmp_path / "compiled" / "model.onnx", Options(numerics="bf16"))
    actual = logits(session, tmp_path / "compiled")
    assert distance(actual, expected) <= limit(export.name, tmp_path, expected)


@pytest.mark.parametrize("export", INT4, ids=lambda export: export.name)
def test_the_execution_provider_has_them_too(export: Export, tmp_path: Path) -> None:
    expected = source_logits(export.name, tmp_path / "exact", 0)
    with registered():
        options = session_options()
        options.add_provider_for_devices(devices(), {"numerics": "bf16"})
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        source = DATA / export.name
        session = onnxruntime.InferenceSession(str(source / "model.onnx"), options)
        parts = session.get_provider_graph_assignment_info()
        left = {n.op_type for part in parts if "Aie" not in part.ep_name for n in part.get_nodes()}
        actual = logits(session, source)
        del session, parts
    assert not left & {"MatMulNBits", "GroupQueryAttention"}
    assert distance(actual, expected) <= limit(export.name, tmp_path, expected)


def test_what_a_function_says_of_matmulnbits_is_not_compiled(tmp_path: Path) -> None:
    """ONNX Runtime has the operator; the function is for runtimes that do not."""
    source = onnx.load(DATA / "qwen3_int4" / "model.onnx", load_external_data=False)
    assert "MatMulNBits" in {function.name for function in source.functions}
    result = ort_aie_ep.compile(DATA / "qwen3_int4", tmp_path / "compiled")
    compiled = onnx.load(tmp_path / "compiled" / "model.onnx", load_external_data=False)
    assert "MatMulNBits" not in {function.name for function in compiled.functions}
    fates = Counter(o.becomes for o in result.outcomes if o.op_type == "MatMulNBits")
    assert fates == {"aie.Q4NXMatMul": 10, "aie.Q4NXGatedMLP": 4}


def test_genai_gives_the_same_text(tmp_path: Path) -> None:
    og = pytest.importorskip("onnxruntime_genai")
    ort_aie_ep.compile(DATA / "qwen3_int4", tmp_path / "compiled")
    prompt = [int(t) for t in np.random.default_rng(3).integers(3, 280, 20)]
    found = find_model(tmp_path / "compiled")
    decoder = Decoder(open_session(found.model), found, 64)
    tokens, expected = prompt, []
    for _ in range(16):
        tokens = [int(decoder.forward(np.array(tokens))[-1].argmax())]
        expected += tokens
    params = og.GeneratorParams(model := og.Model(str(found.path)))
    params.set_search_options(max_length=len(prompt) + 16, do_sample=False)
    generator = og.Generator(model, params)
    generator.append_tokens(prompt)
    while not generator.is_done():
        generator.generate_next_token()
    text = [int(t) for t in generator.get_sequence(0)][len(prompt) :]
    end = json.loads((found.path / "genai_config.json").read_text())["model"]["eos_token_id"]
    assert text == expected[: len(text)]
    assert len(text) == 16 or text[-1] == end
