"""The ops of hybrid models, compared with ONNX Runtime's own operators: convolutions and linear
attention with a state, their gates, narrow products, and what moves elements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from op_models import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    ORT_VERSION,
    Array,
    model_of,
    one_op_model,
    open_session,
    run,
)

from ort_aie_ep import _native

pytestmark = pytest.mark.skipif(ORT_VERSION < (1, 32), reason="compared with its operators")
U = 2.0**-24
# Half the distance of neighbours below 1: of what inputs and results are rounded to.
ROUNDED = {FLOAT32: 0.0, FLOAT16: 2.0**-11, BFLOAT16: 2.0**-8}


def ours(op: str, feeds: Mapping[str, Array | None], outputs: Any, **given: Any) -> list[Array]:
    """The results of an op of aie."""
    model = one_op_model(op, feeds, outputs, {"format": _native.FORMAT} | given)
    results = run(open_session(model), {k: x for k, x in feeds.items() if x is not None})
    return [results[name] for name in outputs]


def theirs(
    op: str, feeds: Mapping[str, Array | None], outputs: Any, domain: str = "com.microsoft",
    **given: Any,
) -> list[Array]:  # fmt: skip
    """Those of an operator of ONNX Runtime, in float32."""
    wide = {name: x if x is None else x.astype(np.float32) for name, x in feeds.items()}
    model = one_op_model(op, wide, dict.fromkeys(outputs, FLOAT32), given, domain=domain)
    results = run(open_session(model), {k: x for k, x in wide.items() if x is not None})
    return [results[name] for name in outputs]


def assert_near(actual: Array, expected: Array, bound: float) -> None:
    """Whether the largest distance is at most `bound` of the largest result."""
    assert actual.shape == expected.shape
    if expected.size:
        scale = np.abs(expected).max()
        assert np.abs(actual.astype(np.float64) - expected).max() <= bound * scale


def numbers(*shape: int, dtype: np.dtype[Any] = FLOAT32, scale: float = 1.0) -> Array:
    seed = [*shape, int(scale * 64)]
    x: Array = (scale * np.random.default_rng(seed).standard_normal(shape)).astype(dtype)
    return x


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize(
    ("batch", "channels", "tokens", "taps", "with_bias", "with_past"),
    [(1, 2048, 1, 4, True, True), (2, 130, 1, 3, False, True), (2, 5, 37, 4, True, True),
     (1, 96, 2, 5, False, True), (1, 33, 9, 1, True, False), (3, 7, 3, 4, False, False),
     (2, 4, 0, 3, True, True)],
)  # fmt: skip
def test_convolutions(
    dtype: np.dtype[Any], activation: str, batch: int, channels: int, tokens: int, taps: int,
    with_bias: bool, with_past: bool,
) -> None:  # fmt: skip
    feeds = {
        "A": numbers(batch, channels, tokens, dtype=dtype),
        "weight": numbers(channels, 1, taps, dtype=dtype),
        "bias": numbers(channels, dtype=dtype) if with_bias else None,
        "past": numbers(batch, channels, taps - 1, dtype=dtype) if with_past else None,
    }
    y, present = ours(
        "CausalConv", feeds, {"Y": dtype, "present": dtype}, taps=taps, activation=activation
    )
    expected = theirs("CausalConvWithState", feeds, ["Y", "present"], activation=activation)
    np.testing.assert_array_equal(present, expected[1])  # it is only moved
    assert_near(y, expected[0], (taps + 16) * U + ROUNDED[dtype])


RULES = ["linear", "gated", "delta", "gated_delta"]


def recurrence(
    dtype: np.dtype[Any], rule: str, tokens: int, heads: tuple[int, int, int],
    dims: tuple[int, int], by_channel: bool = False, shared_beta: bool = False, past: bool = True,
    state: np.dtype[Any] | None = None,
) -> dict[str, Array | None]:  # fmt: skip
    """Inputs for two sequences; queries and keys have length one, as the delta rule needs."""
    q_heads, k_heads, kv_heads = heads
    key_dim, value_dim = dims

    def unit(count: int) -> Array:
        x = numbers(2, tokens, count, key_dim)
        x /= np.linalg.norm(x, axis=-1, keepdims=True) + 1e-9
        y: Array = x.reshape(2, tokens, count * key_dim).astype(dtype)
        return y

    decays = kv_heads * (key_dim if by_channel else 1)
    decay = -np.abs(numbers(2, tokens, decays, scale=0.5)).astype(dtype)
    beta = 1 / (1 + np.exp(-numbers(2, tokens, 1 if shared_beta else kv_heads)))
    return {
        "query": unit(q_heads), "key": unit(k_heads),
        "value": numbers(2, tokens, kv_heads * value_dim, dtype=dtype),
        "past": numbers(2, kv_heads, key_dim, value_dim, dtype=state or dtype) if past else None,
        "decay": decay if rule.startswith("gated") else None,
        "beta": beta.astype(dtype) if rule.endswith("delta") else None,
    }  # fmt: skip


def attend(
    feeds: Mapping[str, Array | None], heads: tuple[int, int, int], scale: float = 0.0
) -> Any:
    query, past = feeds["query"], feeds["past"]
    assert query is not None
    types = {"Y": query.dtype, "present": query.dtype if past is None else past.dtype}
    given = {"q_num_heads": heads[0], "kv_num_heads": heads[2], "scale": scale}
    return ours("LinearAttention", feeds, types, **given)


def bound_of(tokens: int, dims: tuple[int, int], dtype: np.dtype[Any], state: Any) -> float:
    """Each token sums key_dim products twice, and rounds its state; a later token keeps at most all
    of that."""
    return 2 * (dims[0] + 8) * (tokens + 1) * U + ROUNDED[dtype] + ROUNDED[state or dtype]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("tokens", "heads", "dims", "more"),
    [(1, (4, 4, 4), (128, 128), {}), (1, (2, 2, 4), (32, 32), {"shared_beta": True}),
     (13, (2, 2, 4), (16, 96), {}), (5, (6, 2, 2), (33, 37), {}), (3, (2, 1, 2), (8, 3), {}),
     (6, (4, 4, 4), (64, 64), {"by_channel": True}), (2, (2, 2, 2), (16, 16), {"past": False})],
)  # fmt: skip
def test_linear_attention(
    rule: str, tokens: int, heads: tuple[int, int, int], dims: tuple[int, int],
    more: dict[str, Any],
) -> None:  # fmt: skip
    feeds = recurrence(FLOAT32, rule, tokens, heads, dims, **more)
    y, present = attend(feeds, heads)
    given = {"q_num_heads": heads[0], "kv_num_heads": heads[2], "update_rule": rule}
    expected = theirs("LinearAttention", feeds, ["Y", "present"], **given)
    bound = bound_of(tokens, dims, FLOAT32, None)
    assert_near(y, expected[0], bound)
    assert_near(present, expected[1], bound)


@pytest.mark.parametrize("state", [FLOAT32, None])
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
@pytest.mark.parametrize("tokens", [1, 4])
def test_linear_attention_of_16_bits(dtype: np.dtype[Any], state: Any, tokens: int) -> None:
    heads, dims = (2, 2, 4), (32, 48)
    feeds = recurrence(dtype, "gated_delta", tokens, heads, dims, state=state)
    y, present = attend(feeds, heads, scale=0.5)
    assert present.dtype == (state or dtype)
    expected = theirs("LinearAttention", feeds, ["Y", "present"], q_num_heads=2, kv_num_heads=4,
                      scale=0.5)  # fmt: skip
    bound = bound_of(tokens, dims, dtype, state)
    assert_near(y, expected[0], bound)
    assert_near(present, expected[1], bound)


def test_a_prompt_is_its_tokens_one_by_one() -> None:
    heads, dims = (2, 2, 4), (32, 128)
    feeds = recurrence(FLOAT32, "gated_delta", 5, heads, dims)
    y, present = attend(feeds, heads)
    state = feeds["past"]
    for t in range(5):
        token = {
            name: x if x is None or name == "past" else np.ascontiguousarray(x[:, t : t + 1])
            for name, x in feeds.items()
        }
        one, state = attend(token | {"past": state}, heads)
        np.testing.assert_array_equal(one, y[:, t : t + 1])
    np.testing.assert_array_equal(state, present)


def test_no_token_leaves_the_state() -> None:
    feeds = recurrence(FLOAT32, "gated_delta", 0, (2, 2, 2), (8, 8))
    np.testing.assert_array_equal(attend(feeds, (2, 2, 2))[1], feeds["past"])
    none, past = numbers(2, 0, 2, 8), numbers(2, 2, 8, 8)
    given = {"query": none, "key": none, "value": none, "past": past}
    y, present = ours("GatedDeltaNet", given, {"Y": FLOAT32, "present": FLOAT32})
    assert y.shape == none.shape
    np.testing.assert_array_equal(present, past)


@pytest.mark.parametrize(
    ("dtype", "gates"), [(FLOAT32, FLOAT32), (FLOAT16, FLOAT32), (BFLOAT16, BFLOAT16)]
)
@pytest.mark.parametrize(
    ("rule", "given", "lead", "heads", "dims", "channels"),
    [("gated_delta", {"gate_activation": "qwen", "beta_activation": "sigmoid", "qk_l2_norm": 1},
      (2, 5), (2, 4), (32, 70), ""),
     ("gated_delta", {"gate_activation": "softplus", "beta_activation": "sigmoid",
                      "qk_l2_norm": 1}, (1, 1), (2, 2), (128, 128), ""),
     ("gated_delta", {"gate_activation": "kda", "gate_lower_bound": -2.0, "qk_l2_norm": 1},
      (6,), (1, 3), (16, 8), "decay bias"),
     ("gated_delta", {"gate_activation": "sigmoid", "qk_l2_norm": 1, "scale": -2.0},
      (4,), (2, 2), (8, 3), "decay"),
     ("gated", {"scale": 0.5}, (2, 3), (3, 6), (33, 37), ""),
     ("linear", {}, (8,), (2, 2), (5, 4), ""),
     ("delta", {"qk_l2_norm": 1}, (2, 4), (2, 4), (16, 16), "")],
)  # fmt: skip
def test_gated_delta_nets(
    dtype: np.dtype[Any], gates: np.dtype[Any], rule: str, given: dict[str, Any],
    lead: tuple[int, ...], heads: tuple[int, int], dims: tuple[int, int], channels: str,
) -> None:  # fmt: skip
    """Against ONNX Runtime's kernel, which has the state of each value's row."""
    count, (key_dim, value_dim) = heads[1], dims
    gated, learns = rule.startswith("gated"), rule.endswith("delta")
    wide = (key_dim,) if "decay" in channels else ()
    sigmoid = "beta_activation" in given
    decay, beta = numbers(*lead, count, *wide), numbers(*lead, count, dtype=gates)
    gate = given.get("gate_activation", "")
    feeds: dict[str, Array | None] = {
        "query": numbers(*lead, heads[0], key_dim, dtype=dtype),
        "key": numbers(*lead, heads[0], key_dim, dtype=dtype, scale=2),
        "value": numbers(*lead, count, value_dim, dtype=dtype),
        "past": numbers(2 if lead != (1, 1) else 1, count, value_dim, key_dim),
        "decay": (decay if gate else -np.abs(decay)).astype(gates) if gated else None,
        "beta": (beta if sigmoid else np.abs(beta / 8)) if learns else None,
        "rate": numbers(count, scale=0.5) if gate else None,
        "bias": numbers(count, *(wide if "bias" in channels else ())) if gate else None,
    }  # fmt: skip
    for name in ("query", "key"):
        feeds[name][0] = 0  # type: ignore[index]
    names = {"softplus": "softplus", "qwen": "softplus", "sigmoid": "sigmoid", "kda": "sigmoid"}
    more = {"gate": names[gate]} if gate else {}
    y, present = ours(
        "GatedDeltaNet", feeds, {"Y": dtype, "present": FLOAT32}, **more, sigmoid=int(sigmoid),
        lower_bound=given.get("gate_lower_bound", -5.0), unit=given.get("qk_l2_norm", 0),
        scale=given.get("scale", 0.0),
    )  # fmt: skip
    order = ["query", "key", "value", "none", "decay", "beta", "past", "rate", "bias"]
    theirs_ = theirs("GatedDeltaNet", {name: feeds.get(name) for name in order}, ["Y", "present"],
                     update_rule=rule, **given)  # fmt: skip
    bound = bound_of(lead[-1], dims, dtype, FLOAT32)
    assert_near(y, theirs_[0], bound)
    assert_near(present, theirs_[1], bound)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
@pytest.mark.parametrize("heads", [4, 33])
def test_gates(dtype: np.dtype[Any], heads: int) -> None:
    feeds = {
        "a": numbers(2, 3, heads, dtype=dtype, scale=16), "bias": numbers(heads),
        "factor": -np.abs(numbers(heads)), "b": numbers(2, 3, heads, dtype=dtype, scale=16),
    }  # fmt: skip
    names = ["decay", "beta"]
    actual = ours("LinearAttentionGate", feeds, dict.fromkeys(names, dtype))
    for y, expected in zip(actual, theirs("LinearAttentionGate", feeds, names), strict=True):
        assert_near(y, expected, 16 * U + ROUNDED[dtype])


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
@pytest.mark.parametrize(("rows", "k", "n"), [(1, 2048, 16), (7, 96, 37), (3, 33, 64)])
def test_narrow_products(dtype: np.dtype[Any], rows: int, k: int, n: int) -> None:
    feeds = {"A": numbers(1, rows, k, dtype=dtype), "W": numbers(k, n, dtype=dtype)}
    (y,) = ours("NarrowMatMul", feeds, {"Y": dtype}, K=k, N=n)
    (expected,) = theirs("MatMul", feeds, ["Y"], domain="")
    assert_near(y, expected, k * U + ROUNDED[dtype])


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16])
def test_vectors_of_length_one(dtype: np.dtype[Any]) -> None:
    a = numbers(2, 5, 33, dtype=dtype)
    a[0, 0] = 0
    (y,) = ours("Activation", {"A": a}, {"Y": dtype}, function="unit")
    (expected,) = theirs("LpNormalization", {"A": a}, ["Y"], domain="")
    assert_near(y, expected, 33 * U + ROUNDED[dtype])


def test_vectors_whose_squares_are_no_floats() -> None:
    a = numbers(2, 33) * np.float32([[1e30], [1e-30]])
    (y,) = ours("Activation", {"A": a}, {"Y": FLOAT32}, function="unit")
    wide = a.astype(np.float64)
    assert_near(y, wide / np.linalg.norm(wide, axis=-1, keepdims=True), 33 * U)


def test_gated_linear_units() -> None:
    feeds = {"A": numbers(2, 3, 1100, scale=4), "B": numbers(2, 3, 1100)}
    (y,) = ours("SwiGLU", feeds, {"Y": FLOAT32})
    nodes = helper.make_node("SwiGLU", ["A", "B"], ["Y"])
    values = [helper.make_tensor_value_info(name, 1, None) for name in ("A", "B", "Y")]
    model = model_of(helper.make_graph([nodes], "graph", values[:2], values[2:]), 28)
    assert_near(y, ReferenceEvaluator(model).run(None, feeds)[0], 16 * U)  # ONNX Runtime has none


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
@pytest.mark.parametrize("shape", [(2, 37, 21), (1, 96, 1), (2, 5, 7, 32), (3, 1, 4)])
def test_transposes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    a = numbers(*shape, dtype=dtype)
    (y,) = ours("Transpose", {"A": a}, {"Y": dtype})
    np.testing.assert_array_equal(y, a.swapaxes(1, 2))
    if a.ndim == 4:
        (y,) = ours("Transpose", {"A": a}, {"Y": dtype}, axis=2)
        np.testing.assert_array_equal(y, a.swapaxes(2, 3))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_splits(axis: int) -> None:
    a = numbers(9, 9, 9)
    parts = ours("Split", {"A": a}, dict.fromkeys("UVW", FLOAT32), axis=axis, sizes="2,4,3")
    for part, expected in zip(parts, np.split(a, [2, 6], axis), strict=True):
        np.testing.assert_array_equal(part, expected)


@pytest.mark.parametrize(
    ("sizes", "shape"), [("0,0,4,32", (2, 3, 4, 32)), ("0,-1", (2, 384)), ("6,128", (6, 128))]
)
def test_reshapes(sizes: str, shape: tuple[int, ...]) -> None:
    a = numbers(2, 3, 128)
    (y,) = ours("Reshape", {"A": a}, {"Y": FLOAT32}, sizes=sizes)
    np.testing.assert_array_equal(y, a.reshape(shape))


STATES = {"CausalConv", "GatedDeltaNet", "LinearAttention"}
A = numbers(2, 4, 6)
HEADS = {"q_num_heads": 2, "kv_num_heads": 2}
DELTA_NET = {"query": A, "key": A, "value": A, "past": numbers(1, 4, 6, 6)}


@pytest.mark.parametrize(
    ("op", "feeds", "given", "message"),
    [
        ("Reshape", {"A": A}, {"sizes": "0,x"}, "attribute sizes must be .* got '"),
        ("Reshape", {"A": A}, {"sizes": "5,-1"}, "not as many elements"),
        ("Split", {"A": A}, {"axis": 2, "sizes": "4,4"}, "8 elements along axis 2"),
        ("Transpose", {"A": A[0]}, {}, r"input A must be \(batch, m, n, ...\)"),
        ("NarrowMatMul", {"A": A, "W": A[0]}, {"K": 6, "N": 65}, "N at most 64"),
        ("CausalConv", {"A": A, "weight": A[:, :1]}, {"taps": 6, "activation": "silu"}, "weight"),
        ("CausalConv", {"A": A, "weight": A}, {"taps": 0, "activation": "silu"}, "taps must be 1"),
        ("LinearAttention", {"query": A, "key": A, "value": A[:, :1]}, HEADS, "input value"),
        ("LinearAttention", {"query": A, "key": A, "value": A}, HEADS | {"kv_num_heads": 3},
         "must be a multiple of the other, got 2 and 3"),
        ("LinearAttentionGate", {"a": A, "bias": A[0, 0], "factor": A[0]}, {}, "input factor"),
        ("GatedDeltaNet", DELTA_NET, {"gate": "relu"}, "gate must be softplus or sigmoid, got"),
        ("GatedDeltaNet", DELTA_NET, {"gate": "softplus"}, "input decay is missing"),
        ("GatedDeltaNet", DELTA_NET | {"query": A[:1], "key": A[:1]}, {}, "input value"),
        ("GatedDeltaNet", DELTA_NET | {"past": A[None, :, :, :1]}, {}, "input past must be"),
        ("GatedDeltaNet", DELTA_NET | {"past": numbers(3, 4, 6, 6)}, {}, "for each of 3 seq"),
    ],
)  # fmt: skip
def test_errors_say_what_is_expected(
    op: str, feeds: dict[str, Array], given: dict[str, Any], message: str
) -> None:
    outputs = dict.fromkeys(["Y", "present"][: 2 if op in STATES else 1])
    with pytest.raises(Exception, match=message):
        ours(op, feeds, dict.fromkeys(outputs, FLOAT32), **given)
