"""NaN and infinities in attention: the rows of the table in docs/flow-attention.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from op_models import NUMPY_TYPES, ORT_VERSION, open_session, run

from ort_aie_ep.graph_passes import run_passes

Array = npt.NDArray[Any]
BATCH, H, KV, D = 2, 4, 2, 32
# The poisoned element: channel 3 of one token, in the batch's second row and the first head.
ROW, CHANNEL = 1, 3
NAMES = {"query": "q", "key": "k", "value": "v", "past key": "pk", "past value": "pv"}
BAD = [np.nan, np.inf, -np.inf]
NEWEST = pytest.mark.skipif(ORT_VERSION < (1, 31), reason="compares with ONNX Runtime 1.31")


def random(*shape: int, seed: int) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


@dataclass(frozen=True)
class Call:
    """A model of one node, its inputs, and whether tokens are (batch, tokens, H * D)."""

    node: onnx.NodeProto
    inputs: dict[str, Array]
    opset: int = 23
    split: bool = False  # tensors are (batch, heads, tokens, D)
    outputs: list[str] = field(default_factory=lambda: ["out"])

    def sessions(self) -> tuple[Any, Any]:
        """For ONNX Runtime's own operator, and for the result of the passes."""
        types = {dtype: element for element, dtype in NUMPY_TYPES.items()}
        graph = helper.make_graph(
            [self.node],
            "graph",
            [
                helper.make_tensor_value_info(name, types[array.dtype], array.shape)
                for name, array in self.inputs.items()
            ],
            [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        )
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        source = helper.make_model(graph, opset_imports=opsets, ir_version=11)
        model = ir.from_proto(source)
        run_passes(model)
        assert any(node.op_type == "FlowAttention" for node in model.graph)
        changed = ir.to_proto(model).SerializeToString()
        return open_session(source.SerializeToString()), open_session(changed)

    def poisoned(self, what: str, token: int, bad: float) -> dict[str, Array]:
        inputs = {name: array.copy() for name, array in self.inputs.items()}
        array = inputs[NAMES[what]]
        if array.ndim == 4:
            array[ROW, 0, token, CHANNEL] = bad
        else:
            array[ROW, token, CHANNEL] = bad
        return inputs

    def output(self, session: Any, inputs: dict[str, Array]) -> Array:
        """(batch, heads, tokens, D)."""
        out = np.asarray(run(session, dict(inputs))["out"])
        return out if self.split else out.reshape(BATCH, -1, H, D).swapaxes(1, 2)


def group_query(
    tokens: int, past: int = 0, *, capacity: int = 0, window: int = -1, **attributes: Any
) -> Call:
    total = past + tokens
    inputs = {
        "q": random(BATCH, tokens, H * D, seed=0),
        "k": random(BATCH, tokens, KV * D, seed=1),
        "v": random(BATCH, tokens, KV * D, seed=2),
        "pk": random(BATCH, KV, capacity or total, D, seed=3),
        "pv": random(BATCH, KV, capacity or total, D, seed=4),
        "seqlens": np.full(BATCH, total - 1, np.int32),
        "total": np.array([total], np.int32),
    }
    node = helper.make_node(
        "GroupQueryAttention", list(inputs), ["out", "present_key", "present_value"],
        domain="com.microsoft", num_heads=H, kv_num_heads=KV, local_window_size=window,
        **attributes,
    )  # fmt: skip
    return Call(node, inputs)


def standard(
    tokens: int, mask: Array | None = None, *, valid: Array | None = None, **attributes: Any
) -> Call:
    inputs = {
        "q": random(BATCH, H, tokens, D, seed=0),
        "k": random(BATCH, KV, tokens, D, seed=1),
        "v": random(BATCH, KV, tokens, D, seed=2),
    }
    names = ["q", "k", "v"]
    if mask is not None:
        names, inputs["mask"] = [*names, "mask"], mask
    if valid is not None:
        names, inputs["valid"] = [*names, "", "", "", "valid"], valid
    node = helper.make_node("Attention", names, ["out"], **attributes)
    return Call(node, inputs, opset=23 if valid is None else 24, split=True)


def multi_head(tokens: int, bias: Array | None = None, **attributes: Any) -> Call:
    inputs = {name: random(BATCH, tokens, H * D, seed=i) for i, name in enumerate("qkv")}
    names = ["q", "k", "v"]
    if bias is not None:
        names, inputs["bias"] = [*names, "", "", "bias"], bias
    node = helper.make_node(
        "MultiHeadAttention", names, ["out"], domain="com.microsoft", num_heads=H, **attributes
    )
    return Call(node, inputs)


def shown(tokens: int, hidden: int) -> Array:
    """A mask (batch, 1, queries, keys) that hides one key of the second row of the batch."""
    mask = np.ones((BATCH, 1, tokens, tokens), bool)
    mask[ROW, :, :, hidden] = False
    return mask


def added(mask: Array, hidden: float) -> Array:
    return np.where(mask, 0, hidden).astype(np.float32)


LOWEST = float(np.finfo(np.float32).min)
TOKENS = [6, 40]  # few and many rows: two ways through the kernels
Outputs = tuple[Array, Array, Array]  # ONNX Runtime's, ort_aie_ep's, the latter unpoisoned


def outputs(call: Call, what: str, token: int, bad: float) -> Outputs:
    theirs, ours = call.sessions()
    inputs = call.poisoned(what, token, bad)
    # Before 1.31, ONNX Runtime does not run all of them.
    reference = call.output(theirs, inputs) if ORT_VERSION >= (1, 31) else np.zeros(0)
    return reference, call.output(ours, inputs), call.output(ours, call.inputs)


def heads_of(call: Call) -> slice:
    """The query heads that read the poisoned key-value head."""
    return slice(0, 1 if call.node.op_type == "MultiHeadAttention" else H // KV)


def assert_others_clean(call: Call, actual: Array, clean: Array) -> None:
    """Nothing reaches another row of the batch, or the heads of another key-value head."""
    heads = heads_of(call)
    np.testing.assert_array_equal(actual[1 - ROW], clean[1 - ROW])
    np.testing.assert_array_equal(actual[ROW, heads.stop :], clean[ROW, heads.stop :])


# --- queries --------------------------------------------------------------------------------------


@NEWEST
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("make", [group_query, standard, multi_head])
def test_a_query_reaches_its_own_token_and_head(make: Any, tokens: int, bad: float) -> None:
    call, token = make(tokens), tokens // 2
    theirs, ours, clean = outputs(call, "query", token, bad)
    hit = np.zeros(ours.shape, bool)
    hit[ROW, 0, token] = True
    assert np.isnan(ours[hit]).all()
    np.testing.assert_array_equal(ours[~hit], clean[~hit])
    # GroupQueryAttention gives numbers for a NaN query among several.
    lost = make is group_query and np.isnan(bad)
    assert np.isnan(theirs[hit]).all() != lost
    assert np.isfinite(theirs[~hit]).all()


@NEWEST
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("hidden", [None, -np.inf])
@pytest.mark.parametrize("tokens", TOKENS)
def test_a_query_that_sees_no_key_gives_zeros(
    tokens: int, hidden: float | None, bad: float
) -> None:
    mask = np.ones((BATCH, 1, tokens, tokens), bool)
    mask[ROW, :, 2] = False
    call = standard(tokens, mask if hidden is None else added(mask, hidden))
    theirs, ours, _ = outputs(call, "query", 2, bad)
    assert not ours[ROW, :, 2].any()
    assert not theirs[ROW, :, 2].any()
    assert np.isfinite(ours).all()


# --- keys and values that are seen ----------------------------------------------------------------


@NEWEST
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("make", [group_query, standard, multi_head])
@pytest.mark.parametrize("what", ["key", "value"])
def test_nan_that_is_seen_reaches_all_that_see_it(what: str, make: Any, tokens: int) -> None:
    call, token = make(tokens), tokens // 2
    theirs, ours, clean = outputs(call, what, token, np.nan)
    first = token if make is group_query else 0
    seen = ours[ROW, heads_of(call), first:]
    assert np.isnan(seen if what == "key" else seen[..., CHANNEL]).all()
    assert np.isnan(theirs[ROW, heads_of(call), -1, CHANNEL]).all()
    assert_others_clean(call, ours, clean)


@NEWEST
@pytest.mark.parametrize("bad", [np.inf, -np.inf])
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("make", [group_query, standard, multi_head])
def test_infinities_that_are_seen_are_as_in_onnx_runtime(
    make: Any, tokens: int, bad: float
) -> None:
    call, token = make(tokens), tokens // 2
    seen = slice(token if make is group_query else 0, None)
    theirs, ours, clean = outputs(call, "key", token, bad)
    # A score of inf becomes NaN in the softmax, and one of -inf becomes a weight of 0.
    assert np.isnan(ours[ROW, heads_of(call), seen]).any()
    np.testing.assert_array_equal(
        np.isnan(ours[ROW, heads_of(call), seen]), np.isnan(theirs[ROW, heads_of(call), seen])
    )
    assert_others_clean(call, ours, clean)
    theirs, ours, clean = outputs(call, "value", token, bad)
    for result in (theirs, ours):
        assert (result[ROW, heads_of(call), seen, CHANNEL] == bad).all()
    assert_others_clean(call, ours, clean)


@NEWEST
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("bad", [np.inf, -np.inf])
def test_a_soft_cap_makes_infinite_scores_finite(bad: float, tokens: int) -> None:
    theirs, ours, _ = outputs(standard(tokens, softcap=20.0), "key", 3, bad)
    assert np.isfinite(ours).all()
    assert np.isfinite(theirs).all()


# --- keys that are hidden -------------------------------------------------------------------------


@NEWEST
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(
    ("call", "reaches"),
    [
        (lambda n: group_query(n), False),
        (lambda n: standard(n, is_causal=1), True),
        (lambda n: multi_head(n, unidirectional=1), True),
    ],
    ids=["GroupQueryAttention", "Attention", "MultiHeadAttention"],
)
def test_a_later_key_does_not_reach_earlier_queries(
    call: Any, reaches: bool, tokens: int, bad: float
) -> None:
    made, token = call(tokens), tokens // 2
    theirs, ours, clean = outputs(made, "key", token, bad)
    np.testing.assert_array_equal(ours[:, :, :token], clean[:, :, :token])
    assert np.isnan(theirs[ROW, heads_of(made), :token]).any() == reaches


@NEWEST
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("what", ["past key", "past value"])
def test_what_the_window_leaves_behind_does_not_reach(what: str, bad: float) -> None:
    call = group_query(1, 300, window=3)
    theirs, ours, clean = outputs(call, what, 2, bad)
    np.testing.assert_array_equal(ours, clean)
    assert np.isnan(theirs).any() == (what == "past value")


@NEWEST
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("what", ["past key", "past value"])
def test_what_lies_beyond_the_length_does_not_reach(what: str, bad: float) -> None:
    call = group_query(1, 300, capacity=310)
    theirs, ours, clean = outputs(call, what, 305, bad)
    np.testing.assert_array_equal(ours, clean)
    assert np.isfinite(theirs).all()


@NEWEST
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("what", ["key", "value"])
def test_what_nonpad_kv_seqlen_leaves_out_does_not_reach(
    what: str, tokens: int, bad: float
) -> None:
    call = standard(tokens, valid=np.array([tokens, tokens // 2]))
    theirs, ours, clean = outputs(call, what, tokens - 1, bad)
    np.testing.assert_array_equal(ours, clean)
    assert np.isnan(theirs).any() == (what == "value")


@NEWEST
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    "make",
    [
        lambda n: standard(n, shown(n, n // 2)),
        lambda n: standard(n, added(shown(n, n // 2), -np.inf)),
        lambda n: multi_head(n, added(shown(n, n // 2), -np.inf)),
    ],
    ids=["booleans", "-inf", "attention_bias"],
)
def test_a_key_that_a_mask_hides_does_not_reach(make: Any, bad: float, tokens: int) -> None:
    call = make(tokens)
    theirs, ours, clean = outputs(call, "key", tokens // 2, bad)
    np.testing.assert_array_equal(ours, clean)
    assert np.isnan(theirs[ROW, heads_of(call)]).any()


@NEWEST
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("make", [standard, multi_head])
def test_a_key_at_the_lowest_float_is_seen(make: Any, tokens: int) -> None:
    """The mask adds a number to its score, as to any other."""
    call = make(tokens, added(shown(tokens, 3), LOWEST))
    theirs, ours, clean = outputs(call, "key", 3, np.nan)
    for result in (theirs, ours):
        assert np.isnan(result[ROW, heads_of(call)]).all()
    assert_others_clean(call, ours, clean)


# --- values that are hidden -----------------------------------------------------------------------


@NEWEST
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    "make",
    [
        lambda: group_query(40),
        lambda: standard(40, is_causal=1),
        lambda: multi_head(40, unidirectional=1),
    ],
    ids=["GroupQueryAttention", "Attention", "MultiHeadAttention"],
)
def test_a_later_value_reaches_its_block_at_most(make: Any, bad: float) -> None:
    """A weight of 0 times NaN is NaN, if they are multiplied at all."""
    call = make()
    theirs, ours, clean = outputs(call, "value", 30, bad)
    before = slice(0, 24 // heads_of(call).stop)  # the first block of 24 rows
    np.testing.assert_array_equal(ours[:, :, before], clean[:, :, before])
    assert_others_clean(call, ours, clean)
    assert np.isnan(theirs[ROW, heads_of(call), :30, CHANNEL]).all()


@NEWEST
@pytest.mark.parametrize("bad", BAD)
def test_a_value_behind_the_window_reaches_its_chunk_at_most(bad: float) -> None:
    call = group_query(600, window=3)
    theirs, ours, clean = outputs(call, "value", 0, bad)
    behind = slice(256 + 24, None)  # a chunk of keys, and a block of rows
    np.testing.assert_array_equal(ours[:, :, behind], clean[:, :, behind])
    assert_others_clean(call, ours, clean)
    assert np.isnan(theirs[ROW, heads_of(call), 3:, CHANNEL]).all()


@NEWEST
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("bad", BAD)
def test_a_value_that_a_mask_hides_reaches(bad: float, tokens: int) -> None:
    call = standard(tokens, shown(tokens, 3))
    theirs, ours, clean = outputs(call, "value", 3, bad)
    for result in (theirs, ours):
        assert np.isnan(result[ROW, heads_of(call), :, CHANNEL]).all()
    assert_others_clean(call, ours, clean)
