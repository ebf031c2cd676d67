"""What the xrt target leaves to the host, as far as a graph tells: its reasons, in its words.

The executor decides call by call (`WhyNot...` in src/targets/xrt); a test holds each string of this
file against those sources.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import onnx_ir as ir

TWO_BITS = "2-bit weights"
INT8 = "int8 numerics"
SUM_WITHOUT_NORM = "a sum without a norm"
FEW_OUT_FEATURES = "a projection to fewer than 128 out-features"
TOKEN_IN_FEATURES = "a token's projection from more than 16384 in-features"
IN_FEATURES = "a projection from more than 65536 in-features"
LONG_BIAS = "a bias of more than 40960"
ONE_ROW = "a single row of an unquantised projection"
EMBEDDING = "rows of an embedding"
WINDOWED_CACHE = "a cache that keeps a window only"
HIDDEN_KEYS = "an attention mask with hidden keys"
BIAS = "attention_bias"
HEAD_SINK = "head_sink"
SMOOTH_SOFTMAX = "smooth_softmax"
WIDE_HEADS = "heads of more than 256 dimensions"
WINDOW_WITHOUT_CAUSALITY = "a window without causality"
NO_TOKEN_PROJECTION = "no overlay decode or fused_dqp"
NO_TOKEN_ATTENTION = "no overlay decode or flow_kv"
NO_DEQUANT = "no overlay dequant"
NO_GEMM = "no overlay gemm"
NO_PROMPT_ATTENTION = "no overlay flow_qkv"

REASONS = frozenset(
    value for name, value in tuple(globals().items()) if name.isupper() and isinstance(value, str)
)

# What the designs take; their head comments state it. Rows and columns are those of whole blocks.
LEAST_OUT_FEATURES, MOST_TOKEN_IN_FEATURES, MOST_IN_FEATURES = 128, 16384, 65536
MOST_BIAS = 80 * 16 * 32
MOST_HEAD_DIM = 256
_BLOCK_ROWS, _BLOCK_COLS = 32, 256

# Places of inputs, as src/ort/projection_ops.cc and docs/flow-attention.md have them.
_MATMUL_BIAS, _NORM_WEIGHT, _SKIP = 2, 3, 4
_KEY, _PAST_KEY, _ATTENTION_BIAS, _HEAD_SINK, _ATTENTION_MASK = 1, 3, 10, 11, 16


@dataclass(frozen=True)
class Verdict:
    """What the xrt target does with an operator's calls.

    Attributes:
        always: why the host takes all of them; empty if the NPU takes some.
        sometimes: of the others, why the host takes some of them, or empty.
    """

    always: str = ""
    sometimes: str = ""


def judge(node: ir.Node, overlays: Collection[str]) -> Verdict:
    """The verdict on a node of the domain aie, with the designs that there are overlays of."""
    judge_one = _JUDGES.get(node.op_type)
    return judge_one(node, overlays) if judge_one is not None else Verdict()


def _projection(node: ir.Node, overlays: Collection[str]) -> Verdict:
    n, k = _blocks(node)
    if _int(node, "bits", 4) == 2:
        return Verdict(TWO_BITS)
    if os.environ.get("ORT_AIE_NUMERICS") == "int8":
        return Verdict(INT8)
    if _given(node, _SKIP) and not _given(node, _NORM_WEIGHT):
        return Verdict(SUM_WITHOUT_NORM)
    if n < LEAST_OUT_FEATURES:
        return Verdict(FEW_OUT_FEATURES)
    if k > MOST_IN_FEATURES:
        return Verdict(IN_FEATURES)
    has_bias = node.op_type == "Q4NXMatMul" and _given(node, _MATMUL_BIAS)
    token = prompt = ""
    if k > MOST_TOKEN_IN_FEATURES:
        token = TOKEN_IN_FEATURES
    elif has_bias and _int(node, "N", 0) > MOST_BIAS:
        token = LONG_BIAS
    elif not {"decode", "fused_dqp"} & set(overlays):
        token = NO_TOKEN_PROJECTION
    if "dequant" not in overlays:
        prompt = NO_DEQUANT
    elif "gemm" not in overlays:
        prompt = NO_GEMM
    return _either(token, prompt)


def _gemm(node: ir.Node, overlays: Collection[str]) -> Verdict:
    n, k = _blocks(node)
    if n < LEAST_OUT_FEATURES:
        return Verdict(FEW_OUT_FEATURES)
    if k > MOST_IN_FEATURES:
        return Verdict(IN_FEATURES)
    return Verdict(NO_GEMM) if "gemm" not in overlays else Verdict(sometimes=ONE_ROW)


def _gather(node: ir.Node, overlays: Collection[str]) -> Verdict:
    return Verdict(EMBEDDING)


def _attention(node: ir.Node, overlays: Collection[str]) -> Verdict:
    if _int(node, "sliding_window_cache", 0) == 1:
        return Verdict(WINDOWED_CACHE)
    if _given(node, _ATTENTION_BIAS):
        return Verdict(BIAS)
    if _given(node, _HEAD_SINK):
        return Verdict(HEAD_SINK)
    if _int(node, "smooth_softmax", 0) == 1:
        return Verdict(SMOOTH_SOFTMAX)
    if _head_dim(node) > MOST_HEAD_DIM:
        return Verdict(WIDE_HEADS)
    if _int(node, "causal", 1) == 0 and _int(node, "local_window_size", -1) > 0:
        return Verdict(WINDOW_WITHOUT_CAUSALITY)
    token = "" if {"decode", "flow_kv"} & set(overlays) else NO_TOKEN_ATTENTION
    verdict = _either(token, "" if "flow_qkv" in overlays else NO_PROMPT_ATTENTION)
    if verdict == Verdict() and _given(node, _ATTENTION_MASK):
        return Verdict(sometimes=HIDDEN_KEYS)
    return verdict


_JUDGES: Mapping[str, Callable[[ir.Node, Collection[str]], Verdict]] = {
    "Q4NXMatMul": _projection,
    "Q4NXGatedMLP": _projection,
    "Q4NXGather": _gather,
    "FlowAttention": _attention,
    "GEMM": _gemm,
}


def _either(token: str, prompt: str) -> Verdict:
    """Of reasons against calls of one row, and against those of more."""
    return Verdict(token) if token and prompt else Verdict(sometimes=token or prompt)


def _int(node: ir.Node, name: str, default: int) -> int:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


def _blocks(node: ir.Node) -> tuple[int, int]:
    """Out-features and in-features of whole blocks."""
    n, k = _int(node, "N", 0), _int(node, "K", 0)
    return -(-n // _BLOCK_ROWS) * _BLOCK_ROWS, -(-k // _BLOCK_COLS) * _BLOCK_COLS


def _given(node: ir.Node, place: int) -> bool:
    """Whether there is this input: an absent one has no name, or is a tensor of no elements."""
    value = node.inputs[place] if place < len(node.inputs) else None
    return value is not None and not (value.shape is not None and 0 in value.shape.dims)


def _head_dim(node: ir.Node) -> int:
    """Of the cache, else of the query; 0 if the graph does not tell."""
    if _given(node, _PAST_KEY):
        return _last_dim(node, _PAST_KEY)
    heads, kv_heads = _int(node, "num_heads", 1), _int(node, "kv_num_heads", 1)
    return _last_dim(node, 0) // (heads if _given(node, _KEY) else heads + 2 * kv_heads)


def _last_dim(node: ir.Node, place: int) -> int:
    value = node.inputs[place]
    dim = value.shape[-1] if value is not None and value.shape else 0
    return dim if isinstance(dim, int) else 0
