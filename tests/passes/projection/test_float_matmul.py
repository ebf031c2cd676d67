"""`--quantize`: which products with float weights it replaces, with what, and at what cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy_q4nx as q4nx
import onnx
import onnx_ir as ir
import pytest
import q8nx
from bf16_weights import unpack
from builder_nodes import save
from float_models import graph_model, matmul_model, matrix, tied_float_model
from onnx import helper
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from op_models import BFLOAT16, FLOAT16, FLOAT32, Array, open_session, run
from optimum_models import write_export
from text_host import Host
from vision_tower import vision_tower

import ort_aie_ep
from ort_aie_ep import _native
from ort_aie_ep.compiler.compile import REPORT
from ort_aie_ep.errors import AieError
from ort_aie_ep.graph_passes import Quantising, Report, WeightForm, run_passes
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.runtime.sessions import open_session as open_file
from ort_aie_ep.tools.synth import synth

FORMS = list(WeightForm)
BECOMES = {
    WeightForm.Q4NX: "aie.Q4NXMatMul",
    WeightForm.Q2NX: "aie.Q4NXMatMul",
    WeightForm.Q8NX: "aie.Q4NXMatMul",
    WeightForm.BF16: "aie.GEMM",
}

# Bounds of the RMS error of normally distributed weights: bfloat16 has 8 bits, 16 codes lose 7 %,
# 4 codes 30 %.
ERRORS = {
    WeightForm.Q4NX: (0.05, 0.09),
    WeightForm.Q2NX: (0.25, 0.4),
    WeightForm.Q8NX: (0.002, 0.008),
    WeightForm.BF16: (2.0**-10, 2.0**-8),
}


def rewritten(
    model: onnx.ModelProto, form: WeightForm | None, keep: tuple[str, ...] = ()
) -> tuple[ir.Model, Report]:
    graph_model = ir.from_proto(model)
    quantising = None if form is None else Quantising(form)
    return graph_model, run_passes(graph_model, quantize=quantising, keep=keep)


def outcomes(report: Report) -> dict[str, str]:
    """Node → what it became, or why it stayed."""
    return {o.node: o.becomes or o.reason for o in report.outcomes.values()}


def stored(node: ir.Node, form: WeightForm, k: int, n: int) -> Array:
    """The weights (K, N), in float32, that a replacement multiplies by."""
    weights = node.inputs[1]
    assert weights is not None
    assert weights.const_value is not None
    blocks = weights.const_value.numpy()
    if form is WeightForm.Q8NX:
        return q8nx.dequantize(blocks, n, k).T
    if form is not WeightForm.BF16:
        return q4nx.dequantize(blocks, n, k).T
    return unpack(blocks, n, k).astype(np.float32).T


def activations(*shape: int, dtype: np.dtype[Any] = FLOAT32) -> Array:
    """Random activations that bfloat16 can hold."""
    x = np.random.default_rng(shape).standard_normal(shape).astype(np.float32)
    return x.astype(BFLOAT16).astype(np.float32).astype(dtype)


def assert_multiplies(model: ir.Model, x: Array, weights: Array, bias: Array | float = 0) -> None:
    """Checks y = x . weights + bias, up to rounding in float32 sums and of a prompt's weights."""
    y = run(open_session(ir.to_proto(model).SerializeToString()), {"x": x})["y"]
    expected = x.astype(np.float64) @ weights + bias
    magnitude = np.abs(x.astype(np.float64)) @ np.abs(weights) + np.abs(bias)
    unit = {FLOAT32: 2.0**-24, FLOAT16: 2.0**-11, BFLOAT16: 2.0**-8}[y.dtype]
    bound = (2.0**-8 + weights.shape[0] * 2.0**-24) * magnitude + 2 * unit * np.abs(expected)
    assert (np.abs(y.astype(np.float64) - expected) <= bound).all()


# --- what is replaced -----------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
@pytest.mark.parametrize("behind", ["", "Identity", "Transpose", "Constant"])
def test_a_matmul_with_constant_weights_is_replaced(
    form: WeightForm, dtype: np.dtype[Any], behind: str
) -> None:
    source = matmul_model(dtype=dtype, behind=behind)
    model, report = rewritten(source, form)
    assert outcomes(report) == {"/proj/MatMul": BECOMES[form]}
    (node,) = model.graph
    assert (f"{node.domain}.{node.op_type}", node.name) == (BECOMES[form], "/proj/MatMul")
    attributes = {name: a.value for name, a in node.attributes.items()}
    assert attributes.pop("format") == _native.FORMAT
    more = {} if form is WeightForm.BF16 else {"accuracy_level": 0, "symmetric": 0}
    if form in (WeightForm.Q2NX, WeightForm.Q8NX):
        more["bits"] = form.bits
    assert attributes == {"K": 320, "N": 96, **more}
    assert len(model.graph.initializers) == 1  # nothing keeps the float weights
    before = ir.from_proto(source).graph
    assert [(v.name, v.dtype, v.shape) for v in model.graph.outputs] == [
        (v.name, v.dtype, v.shape) for v in before.outputs
    ]
    w = stored(node, form, 320, 96)
    exact = matrix(320, 96, dtype).astype(np.float32)
    if form is not WeightForm.BF16:
        expected = _native.quantize(np.ascontiguousarray(exact.T), form.bits)[0]
        np.testing.assert_array_equal(w, _native.dequantize(expected, 96, 320).T)
    else:
        np.testing.assert_array_equal(w, exact.astype(BFLOAT16).astype(np.float32))
    assert_multiplies(model, activations(2, 3, 320, dtype=dtype), w)
    # Its loss was recorded when the weights were packed.
    assert report.layers is not None
    (layer,) = report.layers.errors.values()
    assert (layer.node, layer.nodes, layer.form) == ("/proj/MatMul", 1, form)
    assert (layer.k, layer.n) == (320, 96)
    error = w.astype(np.float64) - exact
    assert layer.relative == pytest.approx(np.linalg.norm(error) / np.linalg.norm(exact), rel=1e-4)
    assert layer.largest == pytest.approx(np.abs(error).max(), rel=1e-4, abs=1e-12)


def test_weights_that_are_shared_are_packed_once_and_the_embedding_stays() -> None:
    model, report = rewritten(tied_float_model(), WeightForm.Q4NX)
    assert outcomes(report) == {
        "/lm_head/MatMul": "aie.Q4NXMatMul",
        "/other/MatMul": "aie.Q4NXMatMul",
        "/embed/Gather": "its rows are FLOAT and stay so",
    }
    assert set(model.graph.initializers) == {"embed", "embed_nk_q4nx"}
    first, second = (node for node in model.graph if node.op_type == "Q4NXMatMul")
    assert first.inputs[1] is second.inputs[1]
    assert report.layers is not None
    stored(first, WeightForm.Q4NX, 64, 200)
    (layer,) = report.layers.errors.values()
    assert (layer.node, layer.nodes) == ("/lm_head/MatMul", 2)


def test_both_orientations_of_one_matrix_are_two() -> None:
    weights = matrix(64, 64)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="plain"),
        helper.make_node("Transpose", ["w"], ["t"], name="transpose", perm=[1, 0]),
        helper.make_node("MatMul", ["a", "t"], ["y"], name="transposed"),
    ]
    source = graph_model(nodes, {"w": weights}, x=("rows", 64), outputs={"y": ("rows", 64)})
    model, _ = rewritten(source, WeightForm.BF16)
    rounded = weights.astype(BFLOAT16).astype(np.float32)
    first, second = model.graph
    np.testing.assert_array_equal(stored(first, WeightForm.BF16, 64, 64), rounded)
    np.testing.assert_array_equal(stored(second, WeightForm.BF16, 64, 64), rounded.T)


def test_large_weights_are_packed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for behind, k, n in (("", 1100, 70), ("Transpose", 300, 130)):
        for form in FORMS:
            whole, pieces = [], []
            for chunk, blocks in ((64 << 20, whole), (1, pieces)):
                monkeypatch.setattr(
                    "ort_aie_ep.graph_passes.weights.float_weights.PIECE_BYTES", chunk
                )
                model, report = rewritten(matmul_model(k, n, behind=behind), form)
                (node,) = model.graph
                blocks.append(stored(node, form, k, n))
                assert report.layers is not None
                (layer,) = report.layers.errors.values()
                blocks.append(np.array([layer.largest]))
                blocks.append(np.array([round(layer.relative, 9)]))
            for x, y in zip(whole, pieces, strict=True):
                np.testing.assert_array_equal(x, y)


# --- what is left alone ---------------------------------------------------------------------------


def test_names_that_match_a_pattern_are_kept() -> None:
    model, report = rewritten(tied_float_model(), WeightForm.Q4NX, ("/lm_*",))
    assert outcomes(report)["/lm_head/MatMul"] == "kept by --keep '/lm_*'"
    assert outcomes(report)["/other/MatMul"] == "aie.Q4NXMatMul"
    assert [node.name for node in model.graph if node.op_type == "MatMul"] == ["/lm_head/MatMul"]


def test_brackets_in_a_name_are_not_a_pattern() -> None:
    source = tied_float_model()
    for node in source.graph.node:
        node.name = node.name.replace("/lm_head/", "layers[0]/")
    _, report = rewritten(source, WeightForm.Q4NX, ("layers[0]/*",))
    assert outcomes(report)["layers[0]/MatMul"] == "kept by --keep 'layers[0]/*'"
    with pytest.raises(AieError, match=r"'\[/\]lm_head"):
        rewritten(tied_float_model(), WeightForm.Q4NX, ("[/]lm_head*",))


# --- compile --------------------------------------------------------------------------------------


@pytest.mark.parametrize("external", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_the_report_has_what_each_layer_lost(
    tmp_path: Path, external: bool, form: WeightForm
) -> None:
    save(tied_float_model(), tmp_path / "source", external=external)
    result = ort_aie_ep.compile(
        tmp_path / "source", tmp_path / "compiled", quantize=form, keep=["/other/*"]
    )
    (layer,) = result.layers
    assert (layer.node, layer.k, layer.n) == ("/lm_head/MatMul", 64, 200)
    low, high = ERRORS[form]
    assert low < layer.relative < high
    report = json.loads((tmp_path / "compiled" / REPORT).read_text())
    assert report["layers"] == [
        {"node": layer.node, "nodes": 1, "form": form, "k": 64, "n": 200,
         "relative": layer.relative, "largest": layer.largest}
    ]  # fmt: skip
    kept = next(node for node in report["nodes"] if node["node"] == "/other/MatMul")
    assert kept["becomes"] is None
    feeds: dict[str, Array | None] = {
        "x": activations(1, 3, 64),
        "ids": np.array([[0, 5, 199]], np.int64),
    }
    expected = run(open_session(tied_float_model().SerializeToString()), feeds)
    actual = run(open_session(str(tmp_path / "compiled" / "model.onnx")), feeds)
    np.testing.assert_array_equal(actual["other"], expected["other"])
    error = np.linalg.norm(actual["logits"] - expected["logits"])
    # Errors of weights are independent; activations are rounded as well.
    assert error <= 1.5 * (layer.relative + 2.0**-8) * np.linalg.norm(expected["logits"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantize": "int3"}, "quantize is 'int3'; expected one of q4nx, q2nx, q8nx, bf16, mixed"),
        ({"keep": ["a"]}, "keep names nodes that quantize leaves alone: pass quantize as well"),
        (
            {"quantize": "q4nx", "keep": ["/lmhead/*"]},
            r"--keep '/lmhead/\*' matches no MatMul or Gemm of the model; one is named '/other/Mat",
        ),
        ({}, "has nothing to compile.*\n.*compile --quantize q4nx or bf16 replaces it"),
        (
            {"quantize": "q4nx", "keep": ["*"]},
            r"nothing to compile: no .*, MatMul or Gemm with float weights that can be replaced\n"
            r".*: kept by --keep '\*'",
        ),
    ],
)
def test_wrong_choices_are_named(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    save(tied_float_model(), tmp_path / "source")
    with pytest.raises(AieError, match=message):
        ort_aie_ep.compile(tmp_path / "source", tmp_path / "compiled", **options)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("form", FORMS)
def test_weights_that_are_not_finite_are_named_and_nothing_is_left(
    tmp_path: Path, form: WeightForm
) -> None:
    weights = matrix(320, 96)
    weights[300, 7] = np.nan
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="/proj/MatMul")
    source = graph_model([node], {"w": weights}, x=("rows", 320), outputs={"y": ("rows", 96)})
    save(source, tmp_path / "source")
    message = "node '/proj/MatMul': weights 'w': weights hold NaN.*--keep leaves a node as it is"
    with pytest.raises(AieError, match=message):
        ort_aie_ep.compile(tmp_path / "source", tmp_path / "compiled", quantize=form)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_session_compiles_each_choice_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(matmul_model(), tmp_path / "source")
    x = activations(1, 4, 320)
    results = [
        ort_aie_ep.session(
            tmp_path / "source", quantize=form, cache_dir=tmp_path / "cache"
        ).run(None, {"x": x})[0]
        for form in ("q4nx", "bf16", "q4nx")
    ]  # fmt: skip
    np.testing.assert_array_equal(results[0], results[2])
    assert not np.array_equal(results[0], results[1])
    entries = [p for p in (tmp_path / "cache").iterdir() if p.name != "sources"]
    assert len(entries) == 2


# --- whole models ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tied float Llama with the builder's graph."""
    return synth("tiny-llama", tmp_path_factory.mktemp("float") / "llama", int4=False)


def logits(file: Path, source: Path) -> Array:
    tokens = np.random.default_rng(0).integers(3, 100, 40)
    decoder = Decoder(open_file(file), find_model(source), 64)
    return np.asarray(decoder.forward(tokens), np.float64)


def test_a_quantised_model_is_nearer_than_round_to_nearest(llama: Path, tmp_path: Path) -> None:
    result = ort_aie_ep.compile(llama, tmp_path / "compiled", quantize="q4nx")
    assert {o.op_type for o in result.outcomes if o.becomes is None} == {"Gather"}
    assert len(result.layers) == 2 * 5 + 1
    quantizer = MatMulNBitsQuantizer(
        onnx.load(llama / "model.onnx"), block_size=32, is_symmetric=False, accuracy_level=1
    )
    quantizer.process()
    save(quantizer.model.model, tmp_path / "rtn")
    float_logits = logits(llama / "model.onnx", llama)
    ours = logits(tmp_path / "compiled" / "model.onnx", llama)
    theirs = logits(tmp_path / "rtn" / "model.onnx", llama)
    scale = np.linalg.norm(float_logits)
    assert np.linalg.norm(ours - float_logits) < np.linalg.norm(theirs - float_logits) < scale
    assert np.corrcoef(ours.reshape(-1), float_logits.reshape(-1))[0, 1] > 0.9


def test_a_bfloat16_model_keeps_its_logits(llama: Path, tmp_path: Path) -> None:
    result = ort_aie_ep.compile(llama, tmp_path / "compiled", quantize="bf16", last_logits=True)
    assert {o.op_type for o in result.outcomes if o.becomes is None} == {"Gather"}
    products = {"aie.GEMM", "aie.GatedGEMM"}
    assert {o.becomes for o in result.outcomes if o.op_type == "MatMul"} == products
    float_logits = logits(llama / "model.onnx", llama)[-1:]
    ours = logits(tmp_path / "compiled" / "model.onnx", llama)[-1:]
    # Weights and activations are rounded, by at most 2^-8 of themselves, in each of two layers of
    # four products and in the lm_head; independent errors add up in squares.
    bound = np.sqrt(2 * (2 * 4 + 1)) * 2.0**-8
    assert np.linalg.norm(ours - float_logits) <= bound * np.linalg.norm(float_logits)


@pytest.mark.parametrize("form", FORMS)
def test_a_vision_tower(form: WeightForm, tmp_path: Path) -> None:
    source, products = vision_tower()
    original = open_session(source.SerializeToString())
    save(source, tmp_path / "source")
    result = ort_aie_ep.compile(tmp_path / "source", tmp_path / "compiled", quantize=form)
    assert len(result.layers) == products
    assert {(o.op_type, o.becomes) for o in result.outcomes} == {
        ("MatMul", BECOMES[form]),
        ("Add", BECOMES[form]),  # biases
        ("Add", "aie.Add"),  # residuals
        ("Gelu", "aie.Activation"),
        ("MultiHeadAttention", "aie.FlowAttention"),
    }
    x = activations(3, 9, 75)
    expected = run(original, {"x": x})["features"]
    actual = run(open_session(str(tmp_path / "compiled" / "model.onnx")), {"x": x})["features"]
    # As above, in each product; vision towers are spared 4 bits (paper 2). 8 bits are between.
    lost = max(layer.relative for layer in result.layers) + 2.0**-8
    error = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
    assert error <= np.sqrt(2 * products) * lost
    assert form is WeightForm.Q8NX or (error < 2.0**-6) == (form is WeightForm.BF16)


@pytest.mark.parametrize(
    ("family", "form"),  # without and with biases
    [(("llama", "phi")[at % 2], form) for at, form in enumerate(FORMS)],
)
def test_an_export_of_optimum(family: str, form: WeightForm, tmp_path: Path) -> None:
    source = write_export(family, tmp_path / "source")
    result = ort_aie_ep.compile(source, tmp_path / "compiled", quantize=form)
    assert {o.becomes for o in result.outcomes} >= {BECOMES[form], "aie.FlowAttention"}
    left = {o.reason for o in result.outcomes if o.op_type == "MatMul" and o.becomes is None}
    assert left <= {"its second input is not a constant, so there are no weights"}  # rotary angles
    tokens = np.random.default_rng(0).integers(3, 100, (2, 20))
    mask = np.ones((2, 20), np.int64)
    mask[0, :5] = 0  # padded on the left
    logits = [Host(folder / "model.onnx")(tokens, mask)[mask == 1]
              for folder in (source, tmp_path / "compiled")]  # fmt: skip
    lost = max(layer.relative for layer in result.layers) + 2.0**-8
    error = np.linalg.norm(logits[1] - logits[0]) / np.linalg.norm(logits[0])
    assert error <= np.sqrt(2 * len(result.layers)) * lost
    assert form is WeightForm.Q8NX or (error < 2.0**-6) == (form is WeightForm.BF16)
