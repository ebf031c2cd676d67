"""`explain` on a machine with an NPU: what runs on it, and what the xrt target leaves to the
host."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ort_aie_ep
from ort_aie_ep import _npu, machine
from ort_aie_ep.explain import explain
from ort_aie_ep.explain.explain import HOST, XRT, NodeFate
from ort_aie_ep.explain.overlays import FUSED_LAYER, Overlays, packages
from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.graph_passes.attention.node import INPUTS
from ort_aie_ep.machine import XRT_TARGET, Finding
from ort_aie_ep.models.shapes import SHAPES
from ort_aie_ep.prediction.composition import schedule
from ort_aie_ep.prediction.recipes import Input, alone
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

FLOAT, UINT8, INT32, INT64 = 1, 2, 6, 7  # of TensorProto
ATTENTION = ("query", "key", "value", "past_key", "past_value", "seqlens_k", "total")


def left(
    op: str,
    attributes: Mapping[str, Any],
    inputs: Sequence[Input | None],
    results: int = 1,
    overlays: Set[str] = ALL,
) -> tuple[str, str]:
    """Why an NPU leaves an operator to the host: for a token, and for a prompt."""
    reads = [-1 if one is None else i for i, one in enumerate(inputs)]
    node = replace(
        alone(op, "op", {"format": 1, **attributes}, reads, results, tuple(inputs)), planned=True
    )
    token, prompt = (schedule(node, n, 1 + n, overlays)["left"].get("op", "") for n in (1, 2))
    return token, prompt


def projection(
    n: int = 128, k: int = 256, form: BlockForm = SHIPPING, *, overlays: Set[str] = ALL
) -> tuple[str, str]:
    inputs = Input(FLOAT, (1, "tokens", k)), Input(UINT8, form.blocks_shape(n, k), constant=True)
    attributes = {"K": k, "N": n, "bits": form.bits} if form.bits != 4 else {"K": k, "N": n}
    return left("Q4NXMatMul", attributes, inputs, overlays=overlays)


def vector(op: str, k: int = 256, **attributes: str) -> tuple[str, str]:
    rows = Input(FLOAT, (1, "tokens", k))
    if op == "RMSNorm":
        return left(op, {"K": k, "epsilon": 1e-6}, [rows, Input(FLOAT, (k,), constant=True)])
    return left(op, attributes, [rows] if op == "Activation" else [rows, rows])


def test_projections_by_the_executors_rules() -> None:
    assert projection() == ("", "")
    assert projection(n=32) == ("", "")  # and zeros
    assert projection(k=16384) == ("", "")
    assert projection(k=16385) == ("", "")  # in parts
    token = "a token's projection from more than 16384 to more than 40960 features"
    assert projection(40961, 16385) == (token, "")
    assert projection(40960, 16385) == ("", "")
    assert projection(k=65537) == ("a projection from more than 65536 in-features",) * 2
    assert projection(form=BlockForm(2)) == ("", "")
    assert projection(form=BlockForm(8)) == ("no kernel for weights of 8 bits",) * 2


@pytest.mark.parametrize(
    ("absent", "reasons"),
    [
        ({"decode", "fused_dqp"}, ("no overlay decode or fused_dqp", "")),
        ({"decode"}, ("", "")),
        ({"dequant"}, ("", "no overlay dequant")),
        ({"gemm"}, ("", "no overlay gemm")),
    ],
)
def test_projections_need_a_design_for_a_token_and_two_for_prompts(
    absent: set[str], reasons: tuple[str, str]
) -> None:
    assert projection(overlays=ALL - absent) == reasons


def test_float_projections_take_the_host_for_single_rows() -> None:
    inputs = (
        Input(FLOAT, (1, "tokens", 256)),
        Input(16, (4, 1, 8192), constant=True),
    )  # bfloat16, in blocks
    single = "a single row of an unquantised projection"
    assert left("GEMM", {"K": 256, "N": 128}, inputs) == (single, "")


def test_vector_operators_by_the_executors_rules() -> None:
    token_only = ("", "a vector operator on several rows")
    for op in ("RMSNorm", "Add"):
        assert vector(op) == ("", "")
        assert vector(op, k=300) == token_only
    assert vector("Mul") == token_only
    assert vector("RMSNorm", k=7168) == ("", "")
    assert vector("RMSNorm", k=16384) == token_only
    assert vector("RMSNorm", k=16385) == ("a vector operator on more than 16384 elements",) * 2
    for function in ("silu", "gelu_tanh"):
        assert vector("Activation", function=function) == token_only
    for function in ("sigmoid", "gelu"):
        unknown = "an activation that the overlay does not have"
        assert vector("Activation", function=function) == (unknown, unknown)


def attention(dim: int = 64, *, also: Input | None = None, at: int = 0, **attributes: Any) -> str:
    heads, kv_heads = 2, 1
    cache = Input(FLOAT, (1, kv_heads, "past", dim))
    inputs: list[Input | None] = [None] * len(INPUTS)
    inputs[: len(ATTENTION)] = [
        Input(FLOAT, (1, "tokens", heads * dim)),
        *[Input(FLOAT, (1, "tokens", kv_heads * dim))] * 2,
        *(cache, cache),
        Input(INT32, (1,), values="context - 1"),
        Input(INT32, (), values="context"),
    ]
    if also is not None:
        inputs[at] = also
    token, prompt = left(
        "FlowAttention", {"num_heads": heads, "kv_num_heads": kv_heads, **attributes}, inputs, 3
    )
    assert token == prompt
    return token


def test_attention_by_the_executors_rules() -> None:
    assert attention() == ""
    bias = Input(FLOAT, (1, 1, "tokens", "context"))
    assert attention(also=bias, at=INPUTS.index("attention_bias")) == "attention_bias"
    sink = Input(FLOAT, (2,), constant=True)
    assert attention(also=sink, at=INPUTS.index("head_sink")) == "head_sink"
    assert attention(dim=256) == ""
    assert attention(dim=264) == "heads of more than 256 dimensions"
    assert attention(smooth_softmax=1) == "smooth_softmax"
    assert attention(local_window_size=1024) == ""
    assert attention(causal=0) == ""
