"""`explain` on a machine with an NPU: what runs on it, and what the xrt target leaves to the
host."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import ort_aie_ep
from ort_aie_ep import _npu, machine
from ort_aie_ep.explain import explain
from ort_aie_ep.explain.explain import HOST, XRT, NodeFate
from ort_aie_ep.explain.npu_reasons import Verdict, judge
from ort_aie_ep.explain.overlays import FUSED_LAYER, Overlays, packages
from ort_aie_ep.machine import XRT_TARGET, Finding
from ort_aie_ep.models.shapes import SHAPES
from ort_aie_ep.tools.synth import synth

DATA = Path(__file__).parent / "data"
PAGE = Path(__file__).parents[1] / "docs" / "ryzen-ai.md"
ALL = packages()


@pytest.fixture
def npu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with an NPU, its software chain, the xrt target and all overlays."""
    (tmp_path / XRT_TARGET).touch()
    monkeypatch.setattr(explain, "library_path", lambda: str(tmp_path / "libort_aie_ep.so"))
    monkeypatch.setattr(explain, "find_npu", lambda: (Finding("NPU", "NPU2"),))
    monkeypatch.setattr(explain, "npu_device", lambda: "npu2")
    found = Overlays(dict.fromkeys(ALL, tmp_path), (), ())
    monkeypatch.setattr(explain, "find_overlays", lambda device, folders, designs: found)
    monkeypatch.delenv("ORT_AIE_NUMERICS", raising=False)


def fates(path: Path) -> list[NodeFate]:
    return [node for node in explain.explain(path).nodes if node.runs in (HOST, XRT)]


# --- one list ---


@pytest.mark.skipif(not PAGE.is_file(), reason="no docs beside the tests")
def test_the_reasons_that_the_docs_quote_exist() -> None:
    section = PAGE.read_text().partition("## What runs on the host")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (\".*?) \|", section, re.M)
    quoted = {words for cell in cells for words in re.findall(r'"([^"]*)"', cell)}
    assert len(quoted) > 10
    known = {*_npu.reasons(), *_npu.layer_reasons()}
    assert quoted - known == {"no overlay ..."}


# --- models ---


@pytest.mark.usefixtures("npu")
def test_with_an_npu_an_operator_runs_on_it(tmp_path: Path) -> None:
    before = fates(DATA / "llama")
    ort_aie_ep.compile(DATA / "llama", tmp_path / "compiled")
    after = fates(tmp_path / "compiled")
    for nodes in (before, after):
        for node in nodes:
            op = node.becomes or node.op
            if op == "aie.Q4NXGather":
                assert (node.runs, node.not_npu) == (HOST, "rows of an embedding")
            elif op in ("aie.FlowAttention", "aie.Q4NXGatedMLP"):
                assert (node.runs, node.not_npu) == (XRT, "")
    compiled = {node.node: (node.runs, node.not_npu) for node in after}
    assert {node.node: (node.runs, node.not_npu) for node in before}.items() >= compiled.items()


@pytest.mark.usefixtures("npu")
@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"hidden": 256, "kv_heads": 4}, ""),
        ({"hidden": 384, "kv_heads": 4}, "hidden=384 must be a multiple of 256 up to 8192"),
    ],
)
def test_layers_that_do_not_run_whole_have_their_reason(
    sizes: dict[str, int], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"ffn": 512, "layers": 1, "heads": 4, "vocab": 512, **sizes}
    model = synth(replace(SHAPES["llama-3.2-1b"], **small), tmp_path / "model")
    ort_aie_ep.compile(model, tmp_path / "compiled")
    assert explain.explain(tmp_path / "compiled").not_whole == reason
    without = ALL - {"decode"}
    found = Overlays(dict.fromkeys(without, tmp_path), (), ())
    monkeypatch.setattr(explain, "find_overlays", lambda device, folders, designs: found)
    assert explain.explain(tmp_path / "compiled").not_whole == "no overlay decode"
    others = ALL - {FUSED_LAYER}
    found = Overlays(dict.fromkeys(others, tmp_path), (), ())
    monkeypatch.setattr(explain, "find_overlays", lambda device, folders, designs: found)
    assert explain.explain(tmp_path / "compiled").not_whole == ""


@pytest.mark.usefixtures("npu")
def test_layers_with_int8_numerics_do_not_run_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"hidden": 256, "ffn": 512, "layers": 1, "heads": 4, "kv_heads": 4, "vocab": 512}
    model = synth(replace(SHAPES["llama-3.2-1b"], **small), tmp_path / "model")
    ort_aie_ep.compile(model, tmp_path / "compiled")
    monkeypatch.setenv("ORT_AIE_NUMERICS", "int8")
    assert explain.explain(tmp_path / "compiled").not_whole == "int8 numerics"


@pytest.mark.usefixtures("npu")
def test_attention_of_local_and_global_layers_is_the_npus() -> None:
    attention = [n for n in fates(DATA / "gemma3") if n.becomes == "aie.FlowAttention"]
    assert {(node.runs, node.not_npu) for node in attention} == {(XRT, "")}


@pytest.mark.usefixtures("npu")
def test_int8_numerics_take_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_AIE_NUMERICS", "int8")
    for node in fates(DATA / "llama"):
        if node.becomes in ("aie.Q4NXMatMul", "aie.Q4NXGatedMLP"):
            assert (node.runs, node.not_npu) == (HOST, "int8 numerics")


@pytest.mark.usefixtures("npu")
def test_without_overlays_and_without_a_chip_everything_takes_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    none = Overlays({}, (), tuple(ALL))
    monkeypatch.setattr(explain, "find_overlays", lambda device, folders, designs: none)
    said = {(n.runs, n.not_npu) for n in fates(DATA / "llama")}
    assert said == {(HOST, "no overlays for npu2")}
    monkeypatch.setattr(explain, "find_npu", lambda: (Finding("NPU", ""),))
    said = {(n.runs, n.not_npu) for n in fates(DATA / "llama")}
    assert said == {(HOST, machine.why_no_npu((Finding("NPU", ""),)))}


# --- operators ---


def value(*shape: int | str) -> ir.Value:
    return ir.Value(name="x", shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT))


def operator(op: str, inputs: dict[int, ir.Value | None], **attributes: int) -> ir.Node:
    places = [inputs.get(i) for i in range(max(inputs, default=-1) + 1)]
    return ir.node(op, places, attributes, domain="aie")


def projection(n: int = 128, k: int = 256, *more: int, **attributes: int | str) -> Verdict:
    inputs: dict[int, ir.Value | None] = {place: value(4) for place in (0, 1, *more)}
    return judge(operator("Q4NXMatMul", inputs, N=n, K=k, **attributes), ALL)


def attention(*more: int, dim: int = 64, **attributes: int) -> Verdict:
    inputs: dict[int, ir.Value | None] = {place: value(4) for place in more}
    inputs |= {0: value("b", "s", 2 * dim), 1: value("b", "s", dim), 3: value("b", 1, "p", dim)}
    node = operator("FlowAttention", inputs, num_heads=2, kv_num_heads=1, **attributes)
    return judge(node, ALL)


def test_projections_by_the_executors_rules() -> None:
    assert projection() == Verdict()
    assert projection(n=32) == Verdict()  # and zeros
    assert projection(k=16384) == Verdict()
    assert projection(k=16385) == Verdict()  # in parts
    token = "a token's projection from more than 16384 to more than 40960 features"
    assert projection(40961, 16385) == Verdict(sometimes=token)
    assert projection(40960, 16385) == Verdict()
    assert projection(k=65537).always == "a projection from more than 65536 in-features"
    assert projection(40961, 256, 2) == Verdict()  # the host adds the bias
    assert projection(128, 256, 3, 4) == Verdict()
    assert projection(bits=2) == Verdict()
    assert projection(bits=8).always == "no kernel for weights of 8 bits"
    assert projection(type="q4_k").always == "no kernel for weights as in a GGUF file"


def vector(op: str, k: int = 256, **attributes: int | str) -> Verdict:
    return judge(ir.node(op, [value("b", "s", k)], attributes, domain="aie"), ALL)


def test_vector_operators_by_the_executors_rules() -> None:
    token_only = Verdict(sometimes="a vector operator on several rows")
    for op in ("RMSNorm", "Add"):
        assert vector(op) == Verdict()
        assert vector(op, k=300) == token_only
    assert vector("Mul") == token_only
    assert vector("RMSNorm", K=7168) == Verdict()
    assert vector("RMSNorm", K=16384) == token_only
    assert vector("RMSNorm", K=16385).always == "a vector operator on more than 16384 elements"
    for function in ("silu", "gelu_tanh"):
        assert vector("Activation", function=function) == token_only
    for function in ("sigmoid", "gelu"):
        said = vector("Activation", function=function)
        assert said.always == "an activation that the overlay does not have"


def test_what_only_moves_numbers_by_the_executors_rules() -> None:
    assert vector("Cast") == Verdict(sometimes="a vector operator on what the host has")
    assert vector("SelectRows") == Verdict(sometimes="rows of an embedding")
    assert vector("Gather") == vector("Q4NXGather") == Verdict("rows of an embedding")


def test_attention_by_the_executors_rules() -> None:
    assert attention() == Verdict()
    assert attention(10).always == "attention_bias"
    assert attention(11).always == "head_sink"
    assert attention(16) == Verdict(
        sometimes="an attention mask that hides more than the first keys"
    )
    assert attention(dim=256) == Verdict()
    assert attention(dim=264).always == "heads of more than 256 dimensions"
    assert attention(smooth_softmax=1).always == "smooth_softmax"
    assert attention(kv_cache_bit_width=8) == Verdict()
    assert attention(sliding_window_cache=1, local_window_size=8) == Verdict()
    assert attention(local_window_size=1024) == Verdict()
    assert attention(causal=0) == Verdict()
    assert attention(causal=0, local_window_size=8).always == "a window without causality"


def test_an_input_of_no_elements_is_absent() -> None:
    nothing = ir.Value(name="none", const_value=ir.tensor(np.zeros(0, np.float32)))
    nothing.shape = ir.Shape((0,))
    node = operator("FlowAttention", {0: value(1, 1, 64), 11: nothing}, num_heads=1)
    assert judge(node, ALL) == Verdict()


def test_heads_of_a_packed_query_without_a_cache_are_known_by_its_width() -> None:
    node = operator("FlowAttention", {0: value(1, 1, 3 * 264)}, num_heads=1, kv_num_heads=1)
    assert judge(node, ALL).always == "heads of more than 256 dimensions"


@pytest.mark.parametrize("op_type", ["GEMM", "GatedGEMM"])
def test_float_projections_take_the_host_for_single_rows(op_type: str) -> None:
    gemm = operator(op_type, {0: value(1), 1: value(1)}, N=128, K=256)
    assert judge(gemm, ALL) == Verdict(sometimes="a single row of an unquantised projection")
    assert judge(gemm, ALL - {"gemm"}).always == "no overlay gemm"


@pytest.mark.parametrize(
    ("absent", "verdict"),
    [
        ({"decode", "fused_dqp"}, Verdict(sometimes="no overlay decode or fused_dqp")),
        ({"decode"}, Verdict()),
        ({"dequant"}, Verdict(sometimes="no overlay dequant")),
        ({"decode", "fused_dqp", "gemm"}, Verdict("no overlay decode or fused_dqp")),
    ],
)
def test_projections_need_a_design_for_a_token_and_two_for_prompts(
    absent: set[str], verdict: Verdict
) -> None:
    node = operator("Q4NXMatMul", {0: value(1), 1: value(1)}, N=128, K=256)
    assert judge(node, ALL - absent) == verdict
