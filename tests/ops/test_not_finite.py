"""NaN and infinities in attention: the rows of the table in docs/flow-attention.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from op_models import FLOAT32, ORT_VERSION, one_op_model, open_session, run

from ort_aie_ep.graph_passes import run_passes

pytestmark = pytest.mark.skipif(ORT_VERSION < (1, 31), reason="compares with ONNX Runtime 1.31")

Array = npt.NDArray[Any]
BATCH, H, KV, D = 2, 4, 2, 32
# The poisoned element: channel 3 of one token, in the batch's second row and the first head.
ROW, CHANNEL = 1, 3
NAN, INFINITIES = (np.nan,), (np.inf, -np.inf)
BAD = NAN + INFINITIES
LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Call:
    """An operator with its inputs, of which tokens are (batch, heads, tokens, D) or
    (batch, tokens, heads * D)."""

    op: str
    inputs: dict[str, Array | None]
    attributes: dict[str, Any]

    @property
    def heads(self) -> slice:
        """Those that read the poisoned key-value head."""
        return slice(0, 1 if self.op == "MultiHeadAttention" else H // KV)

    def results(self, *calls: dict[str, Array | None]) -> Iterator[Array]:
        """(batch, heads, tokens, D): what ONNX Runtime's own operator gives for the first call,
        and what it becomes for all."""
        outputs = {"out": FLOAT32}
        if self.op == "GroupQueryAttention":
            outputs |= {"present_key": FLOAT32, "present_value": FLOAT32}
        domain = "" if self.op == "Attention" else "com.microsoft"
        dims = {name: x.shape for name, x in self.inputs.items() if x is not None}
        source = onnx.load_from_string(
            one_op_model(self.op, self.inputs, outputs, self.attributes, domain=domain, dims=dims)
        )
        source.opset_import[0].CopyFrom(helper.make_opsetid("", 24))
        model = ir.from_proto(source)
        run_passes(model)
        assert any(node.op_type == "FlowAttention" for node in model.graph)
        ours = open_session(ir.to_proto(model).SerializeToString())
        theirs = open_session(source.SerializeToString())
        for session, inputs in ((theirs, calls[0]), *((ours, call) for call in calls)):
            out = run(session, inputs)["out"]
            yield out if out.ndim == 4 else out.reshape(BATCH, -1, H, D).swapaxes(1, 2)

    def poisoned(self, name: str, token: int, bad: float) -> dict[str, Array | None]:
        array = self.inputs[name]
        assert array is not None
        array = array.copy()
        place = (ROW, 0, token) if array.ndim == 4 else (ROW, token)
        array[(*place, CHANNEL)] = bad
        return self.inputs | {name: array}


def random(*shape: int) -> Array:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def group_query(tokens: int, past: int = 0, *, capacity: int = 0, **attributes: Any) -> Call:
    total = past + tokens
    cache = (BATCH, KV, capacity or total, D)
    inputs = {
        "query": random(BATCH, tokens, H * D), "key": random(BATCH, tokens, KV * D),
        "value": random(BATCH, tokens, KV * D) + 1, "past key": random(*cache),
        "past value": random(*cache) + 1, "seqlens": np.full(BATCH, total - 1, np.int32),
        "total": np.array([total], np.int32),
    }  # fmt: skip
    given = {"num_heads": H, "kv_num_heads": KV, **attributes}
    return Call("GroupQueryAttention", inputs, given)


def standard(
    tokens: int, mask: Array | None = None, *, valid: Array | None = None, **attributes: Any
) -> Call:
    inputs = {"query": random(BATCH, H, tokens, D), "key": random(BATCH, KV, tokens, D),
              "value": random(BATCH, KV, tokens, D) + 1, "mask": mask}  # fmt: skip
    if valid is not None:
        inputs |= {"past key": None, "past value": None, "valid": valid}
    return Call("Attention", inputs, attributes)


def multi_head(tokens: int, bias: Array | None = None, **attributes: Any) -> Call:
    inputs: dict[str, Array | None] = {
        name: random(BATCH, tokens, H * D) + i for i, name in enumerate(("query", "key", "value"))
    }
    if bias is not None:
        inputs |= {"no bias": None, "no mask": None, "bias": bias}
    return Call("MultiHeadAttention", inputs, {"num_heads": H, **attributes})


def hides(hidden: float | None, at: int, *, query: bool = False) -> Callable[[int], Array]:
    """A mask that hides the key `at` of the second batch row, or all keys from that query: of
    booleans, or adding `hidden`."""

    def mask(tokens: int) -> Array:
        shown = np.ones((BATCH, 1, tokens, tokens), bool)
        shown[(ROW, slice(None), at) if query else (ROW, ..., at)] = False
        return shown if hidden is None else np.where(shown, 0, hidden).astype(np.float32)

    return mask


def masked(make: Callable[..., Call], mask: Callable[[int], Array]) -> Callable[[int], Call]:
    return lambda n: make(n, mask(n))


ALL = (group_query, standard, multi_head)
CAUSAL = (
    group_query,
    lambda n: standard(n, is_causal=1),
    lambda n: multi_head(n, unidirectional=1),
)
MASKED = (
    masked(standard, hides(None, 2)),
    masked(standard, hides(-np.inf, 2)),
    masked(multi_head, hides(-np.inf, 2)),
)
NOTHING: tuple[Any, ...] = (slice(0),)


def seen(call: Call, token: int) -> slice:
    """The queries that see a token of `ALL`."""
    return slice(token if call.op == "GroupQueryAttention" else 0, None)


@dataclass(frozen=True)
class Case:
    """A row of the table.

    Attributes:
        calls: of a number of tokens.
        what: the input that is poisoned.
        hit: the places of the result that become NaN, of a call and the poisoned token.
        theirs: the places where ONNX Runtime's result is NaN, at least in one.
        bad: the values.
        at: the poisoned token; by default the one in the middle.
        may: the places that may change.
        tokens: few and many rows are two ways through the kernels.
    """

    calls: tuple[Callable[[int], Call], ...]
    what: str
    hit: Callable[[Call, int], tuple[Any, ...]]
    theirs: Callable[[Call, int], tuple[Any, ...]] = lambda call, token: NOTHING
    bad: tuple[float, ...] = BAD
    at: int | None = None
    may: Callable[[Call, int], tuple[Any, ...]] | None = None
    tokens: tuple[int, ...] = (6, 40)


def all_of(call: Call, token: int) -> tuple[Any, ...]:
    return ROW, call.heads


def of_token(call: Call, token: int) -> tuple[Any, ...]:
    return ROW, 0, token


def nothing(call: Call, token: int) -> tuple[Any, ...]:
    return NOTHING


def in_channel(call: Call, token: int) -> tuple[Any, ...]:
    return ROW, call.heads, seen(call, token), CHANNEL


CASES = {
    "a query that is NaN": Case(
        ALL, "query", of_token,
        lambda call, token: NOTHING if call.op[0] == "G" else of_token(call, token), NAN),
    "an infinite query": Case(ALL, "query", of_token, of_token, INFINITIES),
    "a query that sees no key": Case(
        (masked(standard, hides(None, 2, query=True)),
         masked(standard, hides(-np.inf, 2, query=True))), "query", nothing, at=2),
    "a key that is NaN": Case(
        ALL, "key", lambda call, token: (ROW, call.heads, seen(call, token)),
        lambda call, token: (ROW, call.heads, -1), NAN),
    "a value that is NaN": Case(
        ALL, "value", in_channel, in_channel, NAN,
        may=lambda call, token: (ROW, call.heads, slice(None), CHANNEL)),
    "a later key": Case(
        CAUSAL, "key", nothing,
        lambda call, token: NOTHING if call.op[0] == "G" else (ROW, call.heads, slice(token)),
        # ONNX Runtime's NaN is that of a score of inf: of the five queries before, some give one.
        at=5, may=lambda call, token: (ROW, call.heads, slice(token, None))),
    "a key behind the window": Case(
        (lambda n: group_query(n, 300, local_window_size=3),), "past key", nothing, at=2,
        tokens=(1,)),
    "a value behind the window": Case(
        (lambda n: group_query(n, 300, local_window_size=3),), "past value", nothing, all_of, at=2,
        tokens=(1,)),
    **{f"a {what} beyond the length": Case(
        (lambda n: group_query(n, 300, capacity=310),), what, nothing, at=305, tokens=(1,))
       for what in ("past key", "past value")},
    "a key that nonpad_kv_seqlen leaves out": Case(
        (lambda n: standard(n, valid=np.array([n, n // 2])),), "key", nothing, at=-1),
    "a value that nonpad_kv_seqlen leaves out": Case(
        (lambda n: standard(n, valid=np.array([n, n // 2])),), "value", nothing, all_of, at=-1),
    "a hidden key": Case(MASKED, "key", nothing, all_of, at=2),
    "a key at the lowest float": Case(
        tuple(masked(make, hides(LOWEST, 3)) for make in (standard, multi_head)), "key", all_of,
        all_of, NAN, at=3),
    "a later value": Case(
        CAUSAL, "value", nothing, lambda call, token: (ROW, call.heads, slice(30), CHANNEL), at=30,
        # A weight of 0 times NaN is NaN, in the rows of a block of 24.
        may=lambda call, token: (ROW, call.heads, slice(24, None), CHANNEL),
        tokens=(40,)),
    "a value of a chunk behind the window": Case(
        (lambda n: group_query(n, local_window_size=3),), "value", nothing,
        lambda call, token: (ROW, call.heads, slice(3, None), CHANNEL), at=0,
        may=lambda call, token: (ROW, call.heads, slice(264), CHANNEL), tokens=(600,)),
    "a value that a mask hides": Case(
        (masked(standard, hides(None, 3)),), "value",
        lambda call, token: (ROW, call.heads, slice(None), CHANNEL), all_of, at=3),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_is_not_finite_reaches(case: Case) -> None:
    for make, tokens, bad in product(case.calls, case.tokens, case.bad):
        call = make(tokens)
        token = tokens // 2 if case.at is None else case.at
        poisoned = call.poisoned(case.what, token, bad)
        theirs, ours, clean = call.results(poisoned, call.inputs)
        hit, in_theirs = case.hit(call, token), case.theirs(call, token)
        assert np.isnan(ours[hit]).all()
        assert np.isnan(theirs[in_theirs]).any() == (in_theirs != NOTHING)
        may = np.zeros(ours.shape, bool)
        may[hit] = True
        may[(case.may or nothing)(call, token)] = True
        np.testing.assert_array_equal(ours[~may], clean[~may])


@pytest.mark.parametrize("bad", INFINITIES)
def test_infinities_that_are_seen_are_as_in_onnx_runtime(bad: float) -> None:
    """A score of inf becomes NaN in the softmax, and one of -inf a weight of 0."""
    for make in ALL:
        for tokens in (6, 40):
            call, token = make(tokens), tokens // 2
            place = ROW, call.heads, seen(call, token)
            theirs, ours, clean = call.results(call.poisoned("key", token, bad), call.inputs)
            assert np.isnan(ours[place]).any()
            np.testing.assert_array_equal(np.isnan(ours[place]), np.isnan(theirs[place]))
            np.testing.assert_array_equal(ours[1 - ROW], clean[1 - ROW])
            for result in [*call.results(call.poisoned("value", token, bad))]:
                assert (result[(*place, CHANNEL)] == bad).all()


@pytest.mark.parametrize("bad", INFINITIES)
def test_a_soft_cap_makes_infinite_scores_finite(bad: float) -> None:
    for tokens in (6, 40):
        call = standard(tokens, softcap=20.0)
        for result in call.results(call.poisoned("key", 3, bad)):
            assert np.isfinite(result).all()
