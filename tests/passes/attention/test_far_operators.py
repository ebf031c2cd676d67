"""Operators that act only on numbers far from a probe's are never fused away."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import parser
from test_decomposed_attention import (
    LAYER,
    assert_same,
    attentions,
    constant,
    insert,
    load,
    logits,
    node_of,
)

from ort_aie_ep.graph_passes import run_passes
from ort_aie_ep.graph_passes.projection.spelled_out import collapse_gelus, collapse_norms

__all__ = ["load"]  # a fixture

FAR = 50.0
# The values between the recorded Llama's projections and what follows, by their producer.
PLACES = {
    "Transpose": "query",
    "Add_1": "key",
    "Reshape_2": "value",
    "Concat_5": "keys",
    "MatMul": "scores",
    "MatMul_1": "result",
}
Change = Callable[[ir.Model, ir.Value], object]


def clip(model: ir.Model, value: ir.Value) -> ir.Value:
    limits = [constant(model, np.float32(limit)) for limit in (-FAR, FAR)]
    return insert(model, value, "Clip", *limits)


def cut_by_where(model: ir.Model, value: ir.Value) -> ir.Value:
    far = constant(model, np.float32(FAR))
    large = ir.node("Greater", [value, far], num_outputs=1)
    chosen = ir.node("Where", [large.outputs[0], far, value], num_outputs=1)
    users = list(value.uses())
    for user, index in users:
        if user is not large and user is not chosen and user.op_type != "Shape":
            user.replace_input_with(index, chosen.outputs[0])
    for node in (large, chosen):
        node.outputs[0].name = f"{value.name}.{node.op_type}"
        model.graph.append(node)
    model.graph.sort()
    return chosen.outputs[0]


def one_sided(model: ir.Model, value: ir.Value) -> ir.Value:
    return insert(model, value, "Max", constant(model, np.float32(-FAR)))


def shrunk(model: ir.Model, value: ir.Value) -> ir.Value:
    """0 below FAR, and above it the distance from FAR."""
    return insert(model, value, "Shrink", lambd=FAR, bias=FAR)


def as_float16(model: ir.Model, value: ir.Value) -> ir.Value:
    """Infinite beyond 65504."""
    half = insert(model, value, "Cast", to=ir.DataType.FLOAT16)
    return insert(model, half, "Cast", to=ir.DataType.FLOAT)


def with_large_projections(model: ir.Model) -> None:
    """Queries and keys beyond FAR, and values."""
    for name in "qkv":
        weights = node_of(model, f"{LAYER}/{name}_proj/MatMul").inputs[1]
        assert weights is not None
        assert weights.const_value is not None
        weights.const_value = ir.tensor(60 * weights.const_value.numpy(), name=weights.name)


def reason_of(model: ir.Model) -> str:
    outcomes = run_passes(model).outcomes
    outcome = next(o for o in outcomes.values() if o.node == f"{LAYER}/Softmax")
    return outcome.reason


@pytest.mark.parametrize("place", PLACES)
def test_a_clip_is_named_wherever_it_lies(place: str, load: Callable[..., ir.Model]) -> None:
    model = load("llama", layers=1)
    value = node_of(model, f"{LAYER}/{place}").outputs[0]
    node = clip(model, value).producer()
    assert node is not None
    assert reason_of(model).startswith(f"Clip '{node.name}' on the path of its {PLACES[place]} ")
    assert not attentions(model)


@pytest.mark.parametrize("change", [cut_by_where, one_sided, shrunk, as_float16])
def test_other_operators_that_act_far_out_are_named(
    change: Change, load: Callable[..., ir.Model]
) -> None:
    model = load("llama", layers=1)
    change(model, node_of(model, f"{LAYER}/Add_1").outputs[0])
    assert "its key" in reason_of(model)


@pytest.mark.parametrize("place", ["Transpose", "q_proj/MatMul"])
def test_a_clip_acts_where_numbers_are_large(
    place: str, load: Callable[..., ir.Model], tmp_path: Path
) -> None:
    model = load("llama", layers=1)
    with_large_projections(model)
    without = logits(model, tmp_path / "without")
    clip(model, node_of(model, f"{LAYER}/{place}").outputs[0])
    expected = logits(model, tmp_path / "source")
    assert np.abs(expected - without).max() > 0.1 * np.abs(expected).max()
    run_passes(model)
    assert_same(model, expected, tmp_path / "compiled")
    # Directly after the projection it stays there, as in OLMo.
    assert len(attentions(model)) == (1 if place == "q_proj/MatMul" else 0)
    assert sum(node.op_type == "Clip" for node in model.graph) == 1


def test_scores_that_a_floor_keeps_finite_are_recognised(
    load: Callable[..., ir.Model], tmp_path: Path
) -> None:
    """As in OPT."""
    model = load("llama", layers=1)
    scores = node_of(model, f"{LAYER}/Softmax").inputs[0]
    assert scores is not None
    insert(model, scores, "Max", constant(model, np.float32(np.finfo(np.float32).min)))
    expected = logits(model, tmp_path / "source")
    run_passes(model)
    assert len(attentions(model)) == 1
    assert_same(model, expected, tmp_path / "compiled")


# ---- masks that look at values -------------------------------------------------------------------


def hidden_tokens(model: ir.Model, token: int) -> None:
    """For queries of one token, only the rest of the mask counts: scores times 0."""
    ids = next(value for value in model.graph.inputs if value.name == "input_ids")
    equal = ir.node("Equal", [ids, constant(model, np.int64(token))])
    kept = ir.node("Not", [equal.outputs[0]])
    wide = ir.node("Unsqueeze", [kept.outputs[0], constant(model, np.array([1, 3]))])
    floats = ir.node("Cast", [wide.outputs[0]], {"to": ir.DataType.FLOAT})
    for i, node in enumerate((equal, kept, wide, floats)):
        node.outputs[0].name = f"tokens.{i}"
        model.graph.append(node)
    mask = node_of(model, f"{LAYER}/Add_2").inputs[1]
    assert mask is not None
    insert(model, mask, "Mul", floats.outputs[0])


def test_a_mask_that_looks_for_a_token_is_kept(
    load: Callable[..., ir.Model], tmp_path: Path
) -> None:
    model = load("llama", layers=1)
    tokens = np.random.default_rng(4).integers(3, 500, (2, 9))  # those of `logits`
    unchanged = logits(model, tmp_path / "unchanged")
    hidden_tokens(model, int(tokens[0, 4]))
    expected = logits(model, tmp_path / "source")
    assert np.abs(expected - unchanged).max() > 0.1 * np.abs(expected).max()
    assert "'input_ids'" in reason_of(model)
    assert not attentions(model)
    assert_same(model, expected, tmp_path / "compiled")


def test_a_mask_of_token_types_is_kept(load: Callable[..., ir.Model]) -> None:
    """Images' tokens see each other, as in Gemma 3: probes know nothing of token_type_ids."""
    model = load("llama", layers=1)
    ids = next(value for value in model.graph.inputs if value.name == "input_ids")
    types = ir.Value(name="token_type_ids", type=ids.type, shape=ids.shape)
    model.graph.inputs.append(types)
    image = ir.node("Equal", [types, constant(model, np.int64(1))])
    wide = ir.node("Unsqueeze", [image.outputs[0], constant(model, np.array([1, 3]))])
    floats = ir.node("Cast", [wide.outputs[0]], {"to": ir.DataType.FLOAT})
    for i, node in enumerate((image, wide, floats)):
        node.outputs[0].name = f"types.{i}"
        model.graph.append(node)
    mask = node_of(model, f"{LAYER}/Add_2").inputs[1]
    assert mask is not None
    insert(model, mask, "Mul", floats.outputs[0])
    expected = "it reads the graph input 'token_type_ids', which attention does not take"
    assert reason_of(model) == expected
    assert not attentions(model)


# ---- norms and Gelus -----------------------------------------------------------------------------

NORM = """
    squares = Pow(x, two) mean = ReduceMean(squares, axes) more = Add(mean, epsilon)
    root = Sqrt(more) normed = Div(x, root) y = Mul(w, normed)
"""
GELU = """
    cube = Pow(x, three) part = Mul(cube, c) sum = Add(x, part) inner = Mul(sum, s)
    tanh = Tanh(inner) more = Add(tanh, one) half = Mul(x, h) y = Mul(half, more)
"""


def spelled(text: str, rename: dict[str, str]) -> ir.Model:
    """The nodes of `text`, with a Clip at FAR where a value is renamed."""
    lines = text
    for before, after in rename.items():
        # The value's node now computes another value, and the Clip computes this one from it.
        lines = re.sub(rf"\b{before} = (\w+\([^)]*\))", rf"{after} = \1 {before} = "
                       f"Clip({after}, low, high)", lines)  # fmt: skip
    numbers = {"two": 2, "three": 3, "one": 1, "c": 0.044715, "s": np.sqrt(2 / np.pi), "h": 0.5}
    numbers |= {"epsilon": 1e-6, "low": -FAR, "high": FAR}
    model = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 20]>
        graph (float[b,s,16] input) => (float[b,s,16] output) {{
            x = Identity(input) {lines} output = Identity(y)
        }}"""
    )
    arrays = {name: np.float32(number) for name, number in numbers.items()}
    weight = np.random.default_rng(0).uniform(0.5, 1.5, 16).astype(np.float32)
    for name, array in (arrays | {"w": weight, "axes": np.array([-1])}).items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    loaded = ir.from_proto(model)
    for node in loaded.graph:
        node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    return loaded


def results(model: ir.Model, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (output,) = session.run(None, {"input": x})
    return np.asarray(output)


@pytest.mark.parametrize("clipped", [None, "squares", "mean", "root", "normed", "y"])
def test_a_norm_with_a_clip_inside_stays(clipped: str | None) -> None:
    model = spelled(NORM, {} if clipped is None else {clipped: "unclipped"})
    x = (FAR * np.random.default_rng(1).standard_normal((2, 3, 16))).astype(np.float32)
    expected = results(model, x)
    collapse_norms(model)
    norms = sum(node.op_type == "SimplifiedLayerNormalization" for node in model.graph)
    # After the norm, the Clip is not a part of it.
    assert norms == (clipped in (None, "y"))
    # A mean of 16 terms and about eight more roundings.
    tolerance = 24 * np.finfo(np.float32).eps * np.abs(expected).max()
    np.testing.assert_allclose(results(model, x), expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("clipped", [None, "cube", "inner", "half", "y"])
def test_a_gelu_with_a_clip_inside_stays(clipped: str | None) -> None:
    model = spelled(GELU, {} if clipped is None else {clipped: "unclipped"})
    x = (FAR * np.random.default_rng(1).standard_normal((2, 3, 16))).astype(np.float32)
    expected = results(model, x)
    collapse_gelus(model)
    gelus = sum(node.op_type == "FastGelu" for node in model.graph)
    assert gelus == (clipped in (None, "y"))
    # Four roundings of tanh's argument, where its slope is not 0, and four after it.
    tolerance = 8 * np.finfo(np.float32).eps * np.abs(expected).max()
    np.testing.assert_allclose(results(model, x), expected, atol=tolerance, rtol=0)
