"""Masks that models compute before ONNX's Attention: which are read, and which are used as they
are."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from onnx import parser
from op_models import ORT_VERSION, open_session, run
from test_standard_attention import Feeds, bound, compiled, layer_model, runtime

from ort_aie_ep.graph_passes import subgraph

pytestmark = pytest.mark.skipif(
    ORT_VERSION < (1, 31), reason="compares with ONNX Runtime's Attention of 1.31"
)

# Columns of keys, and rows of queries after a past, as exporters count both.
LENGTHS = """
    total = Shape<start = 1, end = 2>(attention_mask)
    new = Shape<start = 1, end = 2>(q)
    zero = Constant<value_int = 0>() one = Constant<value_int = 1>()
    total0 = Squeeze(total) new0 = Squeeze(new)
    past0 = Sub(total0, new0)
    key = Range(zero, total0, one)
    row = Range(past0, total0, one)
    last = Constant<value_ints = [-1]>() middle = Constant<value_ints = [1, 2]>()
    query = Unsqueeze(row, last)
    causal = LessOrEqual(key, query)
    shown2 = Cast<to = 9>(attention_mask)
    shown = Unsqueeze(shown2, middle)
"""
CAUSAL = "mask = And(causal, shown)"
FLOATS = """
    both = And(causal, shown)
    null = Constant<value_float = 0.0>() lowest = Constant<value_float = %s>()
    mask = Where(both, null, lowest)
"""
WINDOW = """
    size = Constant<value_int = 6>()
    oldest = Sub(query, size)
    near = Greater(key, oldest)
    local = And(causal, near)
    mask = And(local, shown)
"""


def masked(
    text: str, *, past: int | None = 4, tokens: int = 7, **options: Any
) -> tuple[onnx.ModelProto, Feeds]:
    """A layer whose Attention reads what `text` computes."""
    model, inputs = layer_model(batch=3, past=past, tokens=tokens, **options)
    total = (past or 0) + tokens
    padding = np.array([0, 2, total - 1])[:, None]
    inputs["attention_mask"] = (np.arange(total) >= padding).astype(np.int64)
    nodes = parser.parse_function(
        '<domain: "test", opset_import: ["" : 23]> f (attention_mask, q) => (mask) {'
        f"{LENGTHS}{text}}}"
    ).node
    attention = next(node for node in model.graph.node if node.op_type == "Attention")
    attention.input.append("mask")
    kept = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes, *kept])
    model.graph.input.append(
        onnx.helper.make_tensor_value_info(
            "attention_mask", onnx.TensorProto.INT64, ["batch", "total"]
        )
    )
    return model, inputs


def insert(model: onnx.ModelProto, text: str, name: str, constants: dict[str, list[int]]) -> None:
    """A function that computes the mask from another input (batch, tokens) as well."""
    function = f'<domain: "test", opset_import: ["" : 23]> f ({name}) => (mask) {{{text}}}'
    kept = list(model.graph.node)
    place = next(i for i, node in enumerate(kept) if node.output[0] == "shown") + 1
    del model.graph.node[:]
    model.graph.node.extend([*kept[:place], *parser.parse_function(function).node, *kept[place:]])
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.array(array), key) for key, array in constants.items()
    )
    model.graph.input.append(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, ["batch", "tokens"])
    )


def attention_of(model: onnx.ModelProto, inputs: Feeds) -> ir.Node:
    """The FlowAttention that the layer becomes. For tokens, it gives ONNX Runtime's results."""
    changed, outcomes = compiled(model)
    assert outcomes["/attention"] == "aie.FlowAttention"
    ours = run(open_session(ir.to_proto(changed).SerializeToString()), inputs)
    theirs = runtime(model, inputs)
    new = inputs["q"].shape[1]
    tokens = inputs["attention_mask"][:, -new:] != 0
    assert np.abs(ours["out"] - theirs["out"])[tokens].max() <= bound(inputs)
    (node,) = (node for node in changed.graph if node.op_type == "FlowAttention")
    return node


def facts(node: ir.Node) -> dict[str, Any]:
    names = [value.name if value is not None else None for value in node.inputs]
    return {
        "causal": node.attributes.get_int("causal", 1),
        "window": node.attributes.get_int("local_window_size", -1),
        "shown": names[16] if len(names) > 16 else None,
        "bias": names[10] if len(names) > 10 and names[10] != "ort_aie.none" else None,
    }


@pytest.mark.parametrize("past", [None, 4])
@pytest.mark.parametrize("tokens", [1, 7])
@pytest.mark.parametrize("text", [CAUSAL, FLOATS % "-1e9", FLOATS % "-3.4028234663852886e38"])
def test_causal_order_and_padding_are_read(past: int | None, tokens: int, text: str) -> None:
    node = attention_of(*masked(text, past=past, tokens=tokens))
    assert facts(node) == {"causal": 1, "window": -1, "shown": "attention_mask", "bias": None}


@pytest.mark.parametrize("past", [None, 4, 40])
def test_a_window_is_read(past: int | None) -> None:
    node = attention_of(*masked(WINDOW, past=past))
    assert facts(node) == {"causal": 1, "window": 6, "shown": "attention_mask", "bias": None}


@pytest.mark.parametrize(
    "text",
    [
        "size = Constant<value_int = -100>() oldest = Add(query, size) near = Greater(key, oldest)",
        "size = Constant<value = int32 {100}>() query32 = Cast<to = 6>(query) "
        "key32 = Cast<to = 6>(key) oldest = Sub(query32, size) near = Greater(key32, oldest)",
        "size = Constant<value_float = 99.5>() query1 = Cast<to = 1>(query) "
        "key1 = Cast<to = 1>(key) oldest = Sub(query1, size) near = Greater(key1, oldest)",
        "ten = Constant<value_int = 10>() size = Mul(ten, ten) oldest = Sub(query, size) "
        "near = Greater(key, oldest)",
        "square = Concat<axis = 0>(total, total) ones = ConstantOfShape<value = int64[1] {1}>"
        "(square) below = Constant<value_int = -100>() lower = Trilu<upper = 0>(ones, below) "
        "rows = Gather(lower, row) far = Cast<to = 9>(rows) near = Not(far)",
        "a = Constant<value_int = 40>() b = Constant<value_int = 30>() older = Sub(query, a) "
        "old = Sub(older, b) oldest = Sub(old, b) near = Greater(key, oldest)",
    ],
    ids=["negative", "int32", "float", "product", "triangle", "three"],
)
@pytest.mark.parametrize("past", [None, 150])
def test_a_window_is_read_whatever_number_makes_it(past: int | None, text: str) -> None:
    inside = f"{text} local = And(causal, near) mask = And(local, shown)"
    node = attention_of(*masked(inside, past=past))
    assert facts(node) == {"causal": 1, "window": 100, "shown": "attention_mask", "bias": None}


def table_model(table: npt.NDArray[Any], **options: Any) -> tuple[onnx.ModelProto, Feeds]:
    """A layer whose mask is a part of a constant table (1, 1, T, T), as in GPT-2 and GPT-Neo."""
    model, inputs = masked(
        "zero1 = Constant<value_ints = [0]>() past1 = Unsqueeze(past0, zero1) "
        "rows_axis = Constant<value_ints = [2]>() columns_axis = Constant<value_ints = [3]>() "
        "rows = Slice(table, past1, total, rows_axis) "
        "near = Slice(rows, zero1, total, columns_axis) mask = And(near, shown)",
        **options,
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(table, "table"))
    return model, inputs


def band(size: int, window: int) -> npt.NDArray[np.bool_]:
    return (np.tril(np.ones((size, size))) - np.tril(np.ones((size, size)), -window))[
        None, None
    ].astype(bool)


@pytest.mark.parametrize("past", [None, 150])
@pytest.mark.parametrize("window", [100, 250, 256])
def test_a_window_in_a_table_is_read(past: int | None, window: int) -> None:
    node = attention_of(*table_model(band(256, window), past=past))
    seen = window if window < 256 else -1  # all of the table's width
    assert facts(node) == {"causal": 1, "window": seen, "shown": "attention_mask", "bias": None}


def test_a_table_that_is_not_a_window_is_used_as_it_is() -> None:
    table = band(256, 100)
    table[0, 0, 200, 3] = True
    assert facts(attention_of(*table_model(table, past=200)))["causal"] == 0


@pytest.mark.parametrize("past", [None, 4])
def test_a_large_window_is_read(past: int | None) -> None:
    text = """
        size = Constant<value_int = 100000>()
        oldest = Sub(query, size)
        near = Greater(key, oldest)
        local = And(causal, near)
        mask = And(local, shown)
    """
    assert facts(attention_of(*masked(text, past=past)))["window"] == 100000


@pytest.mark.parametrize(
    "text",
    [
        # Windows of 700,000 and of 5 keys, made of two numbers that no run is long enough for.
        "a = Constant<value_int = 500000>() b = Constant<value_int = 200000>() "
        "older = Sub(query, a) oldest = Sub(older, b)",
        "a = Constant<value_int = 500005>() b = Constant<value_int = 500000>() "
        "older = Sub(query, a) oldest = Add(older, b)",
        # 50 blocks of 200, in whole blocks.
        "a = Constant<value_int = 200>() b = Constant<value_int = 50>() queries = Div(query, a) "
        "block = Sub(queries, b) oldest = Mul(block, a)",
    ],
)
def test_a_window_that_no_run_shows_is_used_as_it_is(text: str) -> None:
    model, inputs = masked(f"{text} near = Greater(key, oldest) local = And(causal, near) "
                           "mask = And(local, shown)")  # fmt: skip
    assert facts(attention_of(model, inputs))["causal"] == 0


def test_norms_of_heads_and_a_mask() -> None:
    node = attention_of(*masked(CAUSAL, normed="tokens"))
    assert facts(node)["shown"] == "attention_mask"
    assert [value.name for value in node.inputs[14:16] if value] == ["q.norm", "k.norm"]


def test_causal_order_alone_needs_no_mask() -> None:
    node = attention_of(*masked("mask = Identity(causal)"))
    assert facts(node) == {"causal": 1, "window": -1, "shown": None, "bias": None}


@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize("past", [None, 4])
def test_a_mask_that_looks_at_values_is_used_as_it_is(past: int | None, opset: int) -> None:
    """Images' tokens see each other, as in Gemma 3. A probe need not hold a pair of them."""
    model, inputs = masked("", past=past, opset=opset)
    text = """
        image = Equal(token_type_ids, one)
        rows = Unsqueeze(image, last)
        front = Constant<value_ints = [1]>()
        columns = Unsqueeze(image, front)
        both = And(rows, columns)
        behind = Sub(total0, new0)
        edge0 = Unsqueeze(behind, null0)
        edges = Concat<axis = 0>(zeros2, edge0, zeros3)
        wide = Cast<to = 1>(both)
        padded = Pad(wide, edges)
        pairs3 = Cast<to = 9>(padded)
        pairs = Unsqueeze(pairs3, front)
        seen = Or(causal, pairs)
        mask = And(seen, shown)
    """
    constants = {"null0": [0], "zeros2": [0, 0], "zeros3": [0, 0, 0]}
    insert(model, text, "token_type_ids", constants)
    types = np.array([[0, 1, 1, 1, 0, 0, 0]] * 3)
    types[1] = [0, 0, 1, 1, 1, 1, 0]
    inputs["token_type_ids"] = types
    found = facts(attention_of(model, inputs))
    assert (found["causal"], found["shown"]) == (0, None)
    assert found["bias"] is not None


@pytest.mark.parametrize(
    "text",
    [
        "later = GreaterOrEqual(key, query) mask = And(later, shown)",
        "before = Less(key, query) mask = And(before, shown)",
        "mask = Or(causal, shown)",
        # A prefix whose tokens see each other.
        "three = Constant<value_int = 3>() early = Less(key, three) wide = Or(causal, early) "
        "mask = And(wide, shown)",
        # Distances that are added to scores (ALiBi).
        "distance = Sub(key, query) far = Cast<to = 1>(distance) mask = Identity(far)",
        "both = And(causal, shown) null = Constant<value_float = 0.0>() "
        "low = Constant<value_float = -5.0>() mask = Where(both, null, low)",
    ],
)
def test_other_masks_are_used_as_they_are(text: str) -> None:
    found = facts(attention_of(*masked(text)))
    assert (found["causal"], found["window"], found["shown"]) == (0, -1, None)
    assert found["bias"] is not None


def test_a_mask_that_reads_large_constants_is_used_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subgraph, "MOST_BYTES", 1000)
    model, inputs = masked("same = And(causal, table) mask = And(same, shown)")
    table = onnx.numpy_helper.from_array(np.ones((1001, 1), bool), "wide")
    model.graph.initializer.append(table)
    pick = onnx.helper.make_node("Gather", ["wide", "zero"], ["table"])
    nodes = list(model.graph.node)
    at = next(i for i, node in enumerate(nodes) if node.output[0] == "same")
    model.graph.node.insert(at, pick)
    assert facts(attention_of(model, inputs))["causal"] == 0


def test_a_mask_of_positions_is_used_as_it_is() -> None:
    """It agrees only where the positions are the tokens' own."""
    model, inputs = masked("")
    text = """
        first = Unsqueeze(ids, axis1) place = Transpose<perm = [0, 1, 3, 2]>(first)
        order = LessOrEqual(key, place) mask = And(order, shown)
    """
    insert(model, text, "ids", {"axis1": [1, 2]})
    inputs["ids"] = np.tile(np.arange(4, 11), (3, 1))
    assert facts(attention_of(model, inputs))["causal"] == 0


def test_a_mask_is_read_once_for_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    from ort_aie_ep.graph_passes.attention import mask as attention_mask

    parts = []
    part = attention_mask.Part
    monkeypatch.setattr(attention_mask, "Part", lambda *given: parts.append(given) or part(*given))
    model, _ = masked(CAUSAL)
    second = onnx.NodeProto()
    second.CopyFrom(next(node for node in model.graph.node if node.op_type == "Attention"))
    second.name, second.input[0], second.output[0] = "/second", "y", "second"
    model.graph.node.append(second)
    model.graph.output.append(onnx.helper.make_tensor_value_info("second", 1, None))
    changed, _ = compiled(model)
    assert [node.op_type for node in changed.graph].count("FlowAttention") == 2
    assert len(parts) <= 2  # after a cache, and without one


def test_an_attention_that_is_computed_twice_is_one() -> None:
    model, _ = masked(CAUSAL)
    second = onnx.NodeProto()
    second.CopyFrom(next(node for node in model.graph.node if node.op_type == "Attention"))
    second.name, second.output[0] = "/second", "second"
    model.graph.node.append(second)
    model.graph.node.append(onnx.helper.make_node("Neg", ["second"], ["third"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("third", 1, None))
    changed, _ = compiled(model)
    assert [node.op_type for node in changed.graph].count("FlowAttention") == 1
