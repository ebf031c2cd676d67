"""Attention that an exporter spelled out: other spellings are recognised, near misses are left
alone."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx_ir.passes import common as common_passes
from op_models import session_options
from optimum_models import write_export

import ort_aie_ep
from ort_aie_ep import AieError
from ort_aie_ep.graph_passes import run_passes

LAYER = "/model/layers.0/self_attn"
ROOT = "/model"


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ir.Model]:
    """A function that returns a new model for each call. The export is written only once."""

    @cache
    def export(name: str, layers: int) -> Path:
        path = write_export(name, tmp_path_factory.mktemp("exports") / name) / "model.onnx"
        if layers == 1:
            model = ir.load(path)
            without_second_layer(model)
            ir.save(model, path)
        return path

    def loaded(name: str = "llama", layers: int = 2) -> ir.Model:
        return ir.load(export(name, layers))

    return loaded


def without_second_layer(model: ir.Model) -> None:
    first, second = (node_of(model, f"{ROOT}/layers.{i}/Add_1").outputs[0] for i in (0, 1))
    ir.convenience.replace_all_uses_with(second, first)
    graph = model.graph
    graph.outputs[:] = [value for value in graph.outputs if ".1." not in (value.name or "")]
    common_passes.RemoveUnusedNodesPass()(model)
    graph.inputs[:] = [value for value in graph.inputs if ".1." not in (value.name or "")]


def node_of(model: ir.Model, name: str) -> ir.Node:
    return next(node for node in model.graph if node.name == name)


def constant(model: ir.Model, array: npt.ArrayLike) -> ir.Value:
    name = f"test.{len(model.graph.initializers)}"
    tensor = ir.tensor(np.asarray(array), name=name)
    value = ir.Value(
        name=name,
        shape=ir.Shape(tensor.shape),
        type=ir.TensorType(tensor.dtype),
        const_value=tensor,
    )
    model.graph.register_initializer(value)
    return value


def insert(
    model: ir.Model, value: ir.Value, op_type: str, *others: ir.Value, **attributes: object
) -> ir.Value:
    """Puts op_type(value, *others) between a value and its users."""
    users = list(value.uses())
    node = ir.node(op_type, [value, *others], attributes, num_outputs=1)
    node.outputs[0].name = f"{value.name}.{op_type}.{len(model.graph)}"
    model.graph.append(node)
    for user, index in users:
        if user.op_type != "Shape":
            user.replace_input_with(index, node.outputs[0])
    model.graph.sort()
    return node.outputs[0]


def scores_of(model: ir.Model) -> ir.Value:
    return node_of(model, f"{LAYER}/MatMul").outputs[0]


def attentions(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.op_type == "FlowAttention"]


def logits(model: ir.Model, folder: Path) -> npt.NDArray[np.float32]:
    """A left-padded prompt of two and a next token, (2, 9, vocabulary)."""
    folder.mkdir(exist_ok=True)
    ir.save(model, folder / "model.onnx")
    options = session_options()
    options.log_severity_level = 3
    options.register_custom_ops_library(ort_aie_ep.library_path())
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options)
    mask = np.ones((2, 9), np.int64)
    mask[1, :3] = 0
    tokens = np.random.default_rng(4).integers(3, 500, (2, 9)) * mask
    positions = np.maximum(mask.cumsum(1) - 1, 0)
    past = {
        i.name: np.zeros((2, i.shape[1], 0, i.shape[3]), np.float32)
        for i in session.get_inputs()
        if len(i.shape) == 4
    }
    pieces = []
    for first, end in ((0, 8), (8, 9)):
        feeds = {
            "input_ids": tokens[:, first:end],
            "attention_mask": mask[:, :end],
            "position_ids": positions[:, first:end],
            **past,
        }
        inputs = {i.name for i in session.get_inputs()}
        results = session.run(None, {k: v for k, v in feeds.items() if k in inputs})
        outputs = [output.name for output in session.get_outputs()]
        assert outputs[0] == "logits"
        past = dict(zip(past, results[1:], strict=True))
        pieces.append(results[0])
    return np.concatenate(pieces, 1) * mask[..., None]


def assert_same(model: ir.Model, expected: npt.NDArray[np.float32], folder: Path) -> None:
    # Two float32 computations of two layers, as in tests/models/test_optimum_exports.py.
    tolerance = 2000 * np.finfo(np.float32).eps * np.abs(expected).max()
    np.testing.assert_allclose(logits(model, folder), expected, atol=tolerance, rtol=0)


def small_attention(size: int) -> ir.Model:
    """Causal attention with two heads of `size` channels, as an exporter spells it out."""
    text = f"""
        small (float[b, s, 32] x, float[b, 2, p, {size}] past_key,
               float[b, 2, p, {size}] past_value, int64[b, t] attention_mask)
            => (float[b, s, 32] y, float[b, 2, t, {size}] present_key,
                float[b, 2, t, {size}] present_value)
        <int64[4] heads = {{0, 0, 2, {size}}}, int64[3] flat = {{0, 0, {2 * size}}},
         float scale = {{{size**-0.5}}}, float shown = {{0.0}}, float hidden = {{-3e38}},
         int64 zero = {{0}}, int64 one = {{1}}, int64[1] column = {{1}}, int64[2] keys = {{1, 2}}>
        {{
            q = MatMul(x, wq)  k = MatMul(x, wk)  v = MatMul(x, wv)
            qh = Reshape(q, heads)  kh = Reshape(k, heads)  vh = Reshape(v, heads)
            qt = Transpose<perm = [0, 2, 1, 3]>(qh)
            kt = Transpose<perm = [0, 2, 1, 3]>(kh)
            vt = Transpose<perm = [0, 2, 1, 3]>(vh)
            present_key = Concat<axis = 2>(past_key, kt)
            present_value = Concat<axis = 2>(past_value, vt)
            columns = Transpose<perm = [0, 1, 3, 2]>(present_key)
            products = MatMul(qt, columns)
            scores = Mul(products, scale)
            mask_shape = Shape(attention_mask)  total = Gather(mask_shape, one)
            past_shape = Shape<start = 2, end = 3>(past_key)  past = Squeeze(past_shape)
            queries = Range(past, total, one)  rows = Unsqueeze(queries, column)
            indices = Range(zero, total, one)  order = LessOrEqual(indices, rows)
            present = Cast<to = 9>(attention_mask)  padding = Unsqueeze(present, keys)
            seen = And(order, padding)  bias = Where(seen, shown, hidden)
            masked = Add(scores, bias)
            weights = Softmax<axis = -1>(masked)
            mixed = MatMul(weights, present_value)
            tokens = Transpose<perm = [0, 2, 1, 3]>(mixed)
            joined = Reshape(tokens, flat)
            y = MatMul(joined, wo)
        }}"""
    graph = onnx.parser.parse_graph(text)
    opsets = [onnx.helper.make_opsetid("", 18)]
    rng = np.random.default_rng(size)
    for name in ("wq", "wk", "wv", "wo"):
        shape = (32, 2 * size) if name != "wo" else (2 * size, 32)
        weights = rng.normal(0, 0.2, shape).astype(np.float32)
        graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    return ir.from_proto(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10))


@pytest.mark.parametrize("size", [16, 12])
def test_heads_of_no_multiple_of_8_channels_stay(size: int) -> None:
    model = small_attention(size)
    (outcome,) = (o for o in run_passes(model).outcomes.values() if o.op_type == "Softmax")
    if size == 16:
        assert outcome.becomes == "aie.FlowAttention"
    else:
        assert outcome.reason == "heads have 12 channels; expected a multiple of 8"
        assert not attentions(model)


# ---- other spellings -----------------------------------------------------------------------------


def renamed(model: ir.Model) -> None:
    numbers = itertools.count()
    kept = {value.name for value in (*model.graph.inputs, *model.graph.outputs)}
    for node in model.graph:
        node.name = f"n{next(numbers)}"
        for value in node.outputs:
            if value.name not in kept:
                value.name = f"v{next(numbers)}"


def shared(model: ir.Model) -> None:
    common_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    common_passes.DeduplicateInitializersPass()(model)
    common_passes.CommonSubexpressionEliminationPass()(model)


def packed(model: ir.Model) -> None:
    """One projection for query, key and value, divided by a Split."""
    for layer in range(2):
        prefix = f"/model/layers.{layer}/self_attn"
        nodes = [node_of(model, f"{prefix}/{name}_proj/MatMul") for name in "qkv"]
        weights = [node.inputs[1].const_value.numpy() for node in nodes]
        both = ir.node("MatMul", [nodes[0].inputs[0], constant(model, np.concatenate(weights, 1))])
        both.outputs[0].name = f"{prefix}/qkv"
        sizes = constant(model, np.array([w.shape[1] for w in weights]))
        split = ir.node("Split", [both.outputs[0], sizes], {"axis": -1}, num_outputs=3)
        model.graph.extend([both, split])
        for node, value in zip(nodes, split.outputs, strict=True):
            value.name = f"{node.outputs[0].name}.part"
            ir.convenience.replace_all_uses_with(node.outputs[0], value)
            model.graph.remove(node, safe=True)
    model.graph.sort()


def tied_head(model: ir.Model) -> None:
    head = node_of(model, "/lm_head/MatMul")
    embedding = model.graph.initializers["model.embed_tokens.weight"]
    transpose = ir.node("Transpose", [embedding], {"perm": [1, 0]})
    transpose.outputs[0].name = "head.transposed"
    model.graph.append(transpose)
    head.replace_input_with(1, transpose.outputs[0])
    model.graph.sort()


@pytest.mark.parametrize("respell", [renamed, shared, packed, tied_head])
def test_other_spelling_of_the_same_attention_is_recognised(
    respell: Callable[[ir.Model], None], load: Callable[..., ir.Model], tmp_path: Path
) -> None:
    model = load("llama")
    respell(model)
    expected = logits(model, tmp_path / "source")
    run_passes(model)
    assert len(attentions(model)) == 2
    assert_same(model, expected, tmp_path / "compiled")


def test_graph_that_onnx_runtime_has_optimised_is_recognised(
    load: Callable[..., ir.Model], tmp_path: Path
) -> None:
    source = load("gemma3")
    expected = logits(source, tmp_path / "source")
    options = session_options()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    onnxruntime.InferenceSession(str(tmp_path / "source" / "model.onnx"), options)
    model = ir.load(tmp_path / "optimised.onnx")
    run_passes(model)
    assert len(attentions(model)) == 3
    assert_same(model, expected, tmp_path / "compiled")


def test_soft_cap_is_read(load: Callable[..., ir.Model], tmp_path: Path) -> None:
    model = load("llama")
    value = insert(model, scores_of(model), "Div", constant(model, np.float32(3)))
    value = insert(model, value, "Tanh")
    insert(model, value, "Mul", constant(model, np.float32(3)))
    expected = logits(model, tmp_path / "source")
    run_passes(model)
    assert [node.attributes["softcap"].as_float() for node in attentions(model)] == [3, 0]
    assert_same(model, expected, tmp_path / "compiled")


@pytest.mark.parametrize("window", [1, 100_000])
def test_window_of_any_length_is_read(window: int, load: Callable[..., ir.Model]) -> None:
    model = load("mistral", layers=1)
    node_of(model, f"{ROOT}/Sub").replace_input_with(1, constant(model, np.int64(window)))
    run_passes(model)
    windows = [node.attributes["local_window_size"].as_int() for node in attentions(model)]
    assert windows == [window]


def test_window_that_the_graph_computes_is_read(load: Callable[..., ir.Model]) -> None:
    model = load("mistral", layers=1)
    product = ir.node("Mul", [constant(model, np.int64(20)), constant(model, np.int64(50))])
    product.outputs[0].name = "window"
    model.graph.append(product)
    node_of(model, f"{ROOT}/Sub").replace_input_with(1, product.outputs[0])
    model.graph.sort()
    run_passes(model)
    windows = [node.attributes["local_window_size"].as_int() for node in attentions(model)]
    assert windows == [1000]


def test_window_that_is_added_as_a_negative_number_is_read(load: Callable[..., ir.Model]) -> None:
    window = 300
    model = load("mistral", layers=1)
    node = node_of(model, f"{ROOT}/Sub")
    node.op_type = "Add"
    node.replace_input_with(1, constant(model, np.int64(-window)))
    run_passes(model)
    windows = [node.attributes["local_window_size"].as_int() for node in attentions(model)]
    assert windows == [window]


def test_window_of_three_numbers_is_read(load: Callable[..., ir.Model]) -> None:
    model = load("mistral", layers=1)
    node_of(model, f"{ROOT}/Sub").replace_input_with(1, constant(model, np.int64(100)))
    for number in (120, 130):
        insert(model, node_of(model, f"{ROOT}/Sub").outputs[0], "Sub",
               constant(model, np.int64(number)))  # fmt: skip
    run_passes(model)
    windows = [node.attributes["local_window_size"].as_int() for node in attentions(model)]
    assert windows == [350]


def shown_by_table(model: ir.Model, table: npt.NDArray[np.bool_]) -> None:
    """Hides scores as a part of the table (1, 1, T, T) says, like GPT-Neo."""
    scores = scores_of(model)
    total = ir.node("Shape", [scores], {"start": 3, "end": 4})
    new = ir.node("Shape", [scores], {"start": 2, "end": 3})
    past = ir.node("Sub", [total.outputs[0], new.outputs[0]])
    zero, axes = constant(model, np.array([0, 0])), constant(model, np.array([2, 3]))
    starts = ir.node("Concat", [past.outputs[0], constant(model, np.array([0]))], {"axis": 0})
    ends = ir.node("Add", [zero, total.outputs[0]])
    part = ir.node(
        "Slice", [constant(model, table), starts.outputs[0], ends.outputs[0], axes], name="/part"
    )
    hidden = constant(model, np.float32(np.finfo(np.float32).min))
    where = ir.node("Where", [part.outputs[0], scores, hidden])
    nodes = [total, new, past, starts, ends, part, where]
    for i, node in enumerate(nodes):
        node.outputs[0].name = f"table.{i}"
    for user, index in list(scores.uses()):
        if user.op_type != "Shape" and user is not where:
            user.replace_input_with(index, where.outputs[0])
    model.graph.extend(nodes)
    model.graph.sort()


@pytest.mark.parametrize("window", [6, 300, 400])
def test_window_in_a_table_is_read(
    window: int, load: Callable[..., ir.Model], tmp_path: Path
) -> None:
    model = load("llama")
    distance = np.arange(400)[:, None] - np.arange(400)
    shown_by_table(model, ((distance >= 0) & (distance < window))[None, None])
    expected = logits(model, tmp_path / "source")
    run_passes(model)
    first, second = (node.attributes["local_window_size"].as_int() for node in attentions(model))
    assert (first, second) == (window if window < 400 else -1, -1)
    assert_same(model, expected, tmp_path / "compiled")


# ---- near misses ---------------------------------------------------------------------------------


def other_scale_for_a_head(model: ir.Model) -> str:
    factors = np.array([1, 1, 1.01, 1], np.float32).reshape(1, 4, 1, 1)
    insert(model, scores_of(model), "Mul", constant(model, factors))
    return r"scores are not .* head 2 is off by"


def slopes_for_distance(model: ir.Model) -> str:
    """ALiBi: a bias that grows with the key's index, with its own slope for each head."""
    scores, graph = scores_of(model), model.graph
    length = ir.node("Shape", [scores], {"start": 3, "end": 4})
    squeezed = ir.node("Squeeze", [length.outputs[0]])
    zero, one = constant(model, np.int64(0)), constant(model, np.int64(1))
    index = ir.node("Range", [zero, squeezed.outputs[0], one])
    floats = ir.node("Cast", [index.outputs[0]], {"to": ir.DataType.FLOAT})
    slopes = constant(model, (0.5 ** np.arange(1, 5)).astype(np.float32).reshape(4, 1, 1))
    bias = ir.node("Mul", [floats.outputs[0], slopes])
    nodes = [length, squeezed, index, floats, bias]
    for i, node in enumerate(nodes):
        node.outputs[0].name = f"alibi.{i}"
    graph.extend(nodes)
    insert(model, scores, "Add", bias.outputs[0])
    return r"scores are combined with 'alibi.4', which is not a mask"


def float_mask_as_input(model: ir.Model) -> str:
    shape, dtype = ir.Shape(["batch", 1, "new", "all"]), ir.TensorType(ir.DataType.FLOAT)
    mask = ir.val("bias", type=dtype, shape=shape)
    model.graph.inputs.append(mask)
    insert(model, scores_of(model), "Add", mask)
    return r"graph input 'bias', which attention does not take"


def causal_by_position_ids(model: ir.Model) -> str:
    """Keys up to the position in position_ids, not up to the token's own place."""
    compare = node_of(model, f"{ROOT}/LessOrEqual")
    axes = constant(model, np.array([1, 3]))
    positions = ir.node("Unsqueeze", [model.graph.inputs[2], axes])
    positions.outputs[0].name = "positions.4d"
    model.graph.append(positions)
    compare.replace_input_with(1, positions.outputs[0])
    model.graph.sort()
    return r"depend on the values of 'position_ids'"


def own_key_hidden(model: ir.Model) -> str:
    compare = node_of(model, f"{ROOT}/LessOrEqual")
    compare.op_type = "Less"
    return r"its mask is not that of an attention with .*: probe 'prompt'"


def mask_without_attention_mask(model: ir.Model) -> str:
    """Padding is hidden from the last token only where it is on the right: an Or instead of an
    And."""
    node_of(model, f"{ROOT}/And_1").op_type = "Or"
    return r"its mask is not that of .*: probe 'prompt'"


def position_factors(model: ir.Model) -> ir.Value:
    """1 up to position 8191, 2 up to 16383, ...: one number for each token."""
    thousands = ir.node("Div", [model.graph.inputs[2], constant(model, np.int64(8192))])
    more = ir.node("Add", [thousands.outputs[0], constant(model, np.int64(1))])
    floats = ir.node("Cast", [more.outputs[0]], {"to": ir.DataType.FLOAT})
    factors = ir.node("Unsqueeze", [floats.outputs[0], constant(model, np.array([1, 3]))])
    nodes = [thousands, more, floats, factors]
    for i, node in enumerate(nodes):
        node.outputs[0].name = f"factors.{i}"
    model.graph.extend(nodes)
    return factors.outputs[0]


def factor_that_grows_with_the_position(model: ir.Model) -> str:
    rotated = node_of(model, f"{LAYER}/Add").outputs[0]
    insert(model, rotated, "Mul", position_factors(model))
    return r"query and key are combined with .*'factors.2', expected cosines and sines"


def factor_of_the_scores(model: ir.Model) -> str:
    insert(model, scores_of(model), "Mul", position_factors(model))
    return r"depend on the values of 'position_ids'"


def hole_in_a_table(model: ir.Model) -> str:
    """A distant query that does not see one key."""
    table = np.tril(np.ones((1, 1, 400, 400), bool))
    table[0, 0, 390, 7] = False
    shown_by_table(model, table)
    return r"reads the table 'test.\d+' \(1, 1, 400, 400\), which is neither causal order nor"


def slice_of_the_keys(model: ir.Model) -> str:
    """Only the last 300 keys, and as many values."""
    begin, axes = constant(model, np.array([-300])), constant(model, np.array([2]))
    end = constant(model, np.array([np.iinfo(np.int64).max]))
    for name in ("Reshape_4", "Reshape_6"):
        insert(model, node_of(model, f"{LAYER}/{name}").outputs[0], "Slice", begin, end, axes)
    mask = node_of(model, f"{LAYER}/Where_2").outputs[0]
    insert(model, mask, "Slice", begin, end, constant(model, np.array([3])))
    return r"of \d+ keys, its scores are \(1, 4, 1, 300\)"


def bias_beyond_a_distance(model: ir.Model) -> str:
    """0 for the nearest 500 keys, and the distance beyond them."""
    scores = scores_of(model)
    length = ir.node("Shape", [scores], {"start": 3, "end": 4})
    squeezed = ir.node("Squeeze", [length.outputs[0]])
    zero, one = constant(model, np.int64(0)), constant(model, np.int64(1))
    index = ir.node("Range", [zero, squeezed.outputs[0], one])
    distance = ir.node("Sub", [index.outputs[0], squeezed.outputs[0]])
    far = ir.node("Add", [distance.outputs[0], constant(model, np.int64(500))])
    cut = ir.node("Min", [far.outputs[0], zero])
    bias = ir.node("Cast", [cut.outputs[0]], {"to": ir.DataType.FLOAT})
    nodes = [length, squeezed, index, distance, far, cut, bias]
    for i, node in enumerate(nodes):
        node.outputs[0].name = f"far.{i}"
    model.graph.extend(nodes)
    insert(model, scores, "Add", bias.outputs[0])
    return r"scores are combined with 'far.6', which is not a mask"


def length_factor(model: ir.Model, length: int, dtype: type[np.generic]) -> ir.Value:
    """log(keys) / log(length) for more keys than `length`, else 1 (arXiv:2202.12172)."""
    keys = ir.node("Shape", [model.graph.inputs[1]], {"start": 1, "end": 2})
    floats = ir.node("Cast", [keys.outputs[0]], {"to": ir.DataType.FLOAT})
    compared = floats if dtype is np.float32 else keys
    over = ir.node("Greater", [compared.outputs[0], constant(model, dtype(length))])
    log = ir.node("Log", [floats.outputs[0]])
    ratio = ir.node("Div", [log.outputs[0], constant(model, np.float32(np.log(length)))])
    one = constant(model, np.float32(1))
    factor = ir.node("Where", [over.outputs[0], ratio.outputs[0], one])
    nodes = [keys, floats, over, log, ratio, factor]
    for i, node in enumerate(nodes):
        node.outputs[0].name = f"length.{i}"
    model.graph.extend(nodes)
    return factor.outputs[0]


def length_factor_of_the_scores(model: ir.Model) -> str:
    insert(model, scores_of(model), "Mul", length_factor(model, 2048, np.int64))
    return r"scores are combined with 'length.5', which depends on the length"


def length_factor_of_the_scores_in_floats(model: ir.Model) -> str:
    insert(model, scores_of(model), "Mul", length_factor(model, 32768, np.float32))
    return r"scores are combined with 'length.5', which depends on the length"


def length_factor_of_the_query(model: ir.Model) -> str:
    rotated = node_of(model, f"{LAYER}/Add").outputs[0]
    insert(model, rotated, "Mul", length_factor(model, 32768, np.int64))
    return r"scores are combined with 'length.5', which depends on the length"


def halved_values(model: ir.Model) -> str:
    insert(
        model,
        node_of(model, f"{LAYER}/Reshape_6").outputs[0],
        "Mul",
        constant(model, np.float32(0.5)),
    )
    return r"its result is not that of an attention"


def keys_not_rotated(model: ir.Model) -> str:
    rotated = node_of(model, f"{LAYER}/Add_1").outputs[0]
    ir.convenience.replace_all_uses_with(rotated, node_of(model, f"{LAYER}/Transpose_1").outputs[0])
    return r"scores are not"


def softmax_over_queries(model: ir.Model) -> str:
    node_of(model, f"{LAYER}/Softmax").attributes.add(ir.AttrInt64("axis", -2))
    return r"its result is not that of an attention"


@pytest.mark.parametrize(
    "change",
    [
        other_scale_for_a_head,
        slopes_for_distance,
        float_mask_as_input,
        causal_by_position_ids,
        own_key_hidden,
        mask_without_attention_mask,
        factor_that_grows_with_the_position,
        factor_of_the_scores,
        hole_in_a_table,
        slice_of_the_keys,
        bias_beyond_a_distance,
        length_factor_of_the_scores,
        length_factor_of_the_scores_in_floats,
        length_factor_of_the_query,
        halved_values,
        keys_not_rotated,
        softmax_over_queries,
    ],
)
def test_near_miss_is_left_alone_with_the_reason(
    change: Callable[[ir.Model], str], load: Callable[..., ir.Model]
) -> None:
    model = load("llama", layers=1)
    expected = change(model)
    outcomes = run_passes(model).outcomes
    (left,) = (o for o in outcomes.values() if o.op_type == "Softmax" and o.becomes is None)
    assert left.node == f"{LAYER}/Softmax"
    assert any(node.name == f"{LAYER}/Softmax" for node in model.graph)
    assert re.search(expected, left.reason), left.reason


def test_model_with_a_near_miss_computes_what_it_did(
    load: Callable[..., ir.Model], tmp_path: Path
) -> None:
    model = load("llama")
    other_scale_for_a_head(model)
    expected = logits(model, tmp_path / "source")
    run_passes(model)
    assert len(attentions(model)) == 1  # from the other layer
    assert_same(model, expected, tmp_path / "compiled")


def test_compile_names_the_attention_where_nothing_can_be_compiled(tmp_path: Path) -> None:
    folder = write_export("llama", tmp_path / "export")
    model = ir.load(folder / "model.onnx")
    own_key_hidden(model)
    ir.save(model, folder / "model.onnx")
    with pytest.raises(AieError, match=rf"{LAYER}/Softmax: its mask"):
        ort_aie_ep.compile(folder, tmp_path / "compiled")
    assert not (tmp_path / "compiled").exists()


# ---- norms and Gelus -----------------------------------------------------------------------------


def test_norm_with_another_power_is_left_alone(load: Callable[..., ir.Model]) -> None:
    model = load("llama")
    power = node_of(model, "/model/norm/Pow")
    power.replace_input_with(1, constant(model, np.float32(2.01)))
    run_passes(model)
    assert sum(node.op_type == "SimplifiedLayerNormalization" for node in model.graph) == 4
    assert sum(node.op_type == "ReduceMean" for node in model.graph) == 1


def test_gelu_with_another_constant_is_left_alone(load: Callable[..., ir.Model]) -> None:
    model = load("phi")
    cubic = node_of(model, "/model/layers.0/mlp/activation_fn/Mul_1")
    cubic.replace_input_with(1, constant(model, np.float32(0.0448)))
    run_passes(model)
    assert sum(node.op_type == "FastGelu" for node in model.graph) == 1
    assert sum(node.op_type == "Tanh" for node in model.graph) == 1
