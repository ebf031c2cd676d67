"""What the xrt target leaves to the host, as far as a graph shows: its reasons, in its words.

The executor decides call by call, in src/targets/npu/reasons.cc. This module asks the same code
through `_npu`, for calls of one row and of more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from functools import partial

import onnx_ir as ir

from ort_aie_ep import _npu
from ort_aie_ep.graph_passes.attention.node import named_input


@dataclass(frozen=True)
class Verdict:
    """What the xrt target does with an operator's calls.

    Attributes:
        always: why the host takes all of them; empty if the NPU takes some.
        sometimes: why the host takes some of them, if the NPU takes others; or empty.
    """

    always: str = ""
    sometimes: str = ""


def int8_numerics() -> bool:
    """Whether the environment asks for int8 numerics."""
    return os.environ.get("ORT_AIE_NUMERICS") == "int8"


def judge(node: ir.Node, overlays: Set[str]) -> Verdict:
    """The verdict on a node of the domain aie; `overlays` are the designs with an overlay."""
    judge_one = _JUDGES.get(node.op_type)
    return judge_one(node, set(overlays)) if judge_one is not None else Verdict()


def _projection(node: ir.Node, overlays: Set[str]) -> Verdict:
    quantised = node.op_type not in ("GEMM", "GatedGEMM")
    return _by_rows(
        partial(
            _npu.why_not_projection,
            bits=_bits(node) if quantised else 16,
            n=_int(node, "N", 0),
            k=_int(node, "K", 0),
            int8=quantised and int8_numerics(),
            overlays=overlays,
        )
    )


def _gather(node: ir.Node, overlays: Set[str]) -> Verdict:
    return Verdict(_npu.why_not_gather())


def _experts(node: ir.Node, overlays: Set[str]) -> Verdict:
    return _by_rows(
        partial(
            _npu.why_not_experts,
            bits=_bits(node),
            down_bits=_bits(node, "down_"),
            hidden=_int(node, "K", 0),
            inter=_int(node, "N", 0),
            int8=int8_numerics(),
            overlays=overlays,
        )
    )


def _cast(node: ir.Node, overlays: Set[str]) -> Verdict:
    return Verdict(sometimes=_npu.why_not_cast())


def _selection(node: ir.Node, overlays: Set[str]) -> Verdict:
    """With one row, there is nothing to select."""
    return Verdict(sometimes=_npu.why_not_gather())


def _move(node: ir.Node, overlays: Set[str]) -> Verdict:
    """Within a plan, often there is nothing to do."""
    return Verdict(sometimes=_npu.why_not_move())


def _recurrence(node: ir.Node, overlays: Set[str]) -> Verdict:
    return Verdict(_npu.why_not_recurrence())


def _vector(node: ir.Node, overlays: Set[str]) -> Verdict:
    function = node.attributes.get("function")
    activation = function.as_string() if function is not None else ""
    return _by_rows(
        partial(
            _npu.why_not_vector,
            k=_int(node, "K", 0) or _widest(node),
            activation={"Mul": "multiply", "SwiGLU": "swiglu"}.get(node.op_type, activation),
            gated=node.op_type == "GatedRMSNorm",
            overlays=overlays,
        )
    )


def _attention(node: ir.Node, overlays: Set[str]) -> Verdict:
    why_not = partial(
        _npu.why_not_attention,
        dim=_head_dim(node),
        has_bias=_given(node, "attention_bias"),
        has_head_sink=_given(node, "head_sink"),
        smooth_softmax=_int(node, "smooth_softmax", 0) == 1,
        causal=_int(node, "causal", 1) != 0,
        window=_int(node, "local_window_size", -1),
        overlays=overlays,
    )
    verdict = _by_rows(why_not)
    if verdict == Verdict() and _given(node, "attention_mask"):
        return Verdict(sometimes=why_not(rows=None, hidden_keys=True))
    return verdict


_JUDGES: Mapping[str, Callable[[ir.Node, Set[str]], Verdict]] = {
    "Q4NXMatMul": _projection,
    "Q4NXGatedMLP": _projection,
    "Q4NXGather": _gather,
    "Q4NXMoE": _experts,
    "FlowAttention": _attention,
    "RMSNorm": _vector,
    "GatedRMSNorm": _vector,
    "SwiGLU": _vector,
    "Add": _vector,
    "Mul": _vector,
    "Activation": _vector,
    "Gather": _gather,
    "Cast": _cast,
    "SelectRows": _selection,
    "Reshape": _move,
    "Split": _move,
    "Transpose": _move,
    "CausalConv": _recurrence,
    "LinearAttention": _recurrence,
    "LinearAttentionGate": _recurrence,
    "GatedDeltaNet": _recurrence,
    "NarrowMatMul": _recurrence,
    "GEMM": _projection,
    "GatedGEMM": _projection,
}


def _by_rows(why_not: Callable[..., str]) -> Verdict:
    """The verdict by `why_not` for calls of any number of rows, of one row, and of more."""
    if always := why_not(rows=None):
        return Verdict(always)
    token, prompt = why_not(rows=1), why_not(rows=2)
    return Verdict(token) if token and prompt else Verdict(sometimes=token or prompt)


def _int(node: ir.Node, name: str, default: int) -> int:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


def _bits(node: ir.Node, prefix: str = "") -> int:
    """Of the weights' codes; 0 in a form of GGUF files."""
    return 0 if f"{prefix}type" in node.attributes else _int(node, f"{prefix}bits", 4)


def _given(attention: ir.Node, name: str) -> bool:
    """Whether it has this input: an absent one has no name, or no elements."""
    value = named_input(attention, name)
    return value is not None and not (value.shape is not None and 0 in value.shape.dims)


def _head_dim(node: ir.Node) -> int:
    """The head size of the cache, or else of the query; 0 if the graph does not say."""
    if _given(node, "past_key"):
        return _width(named_input(node, "past_key"))
    heads, kv_heads = _int(node, "num_heads", 1), _int(node, "kv_num_heads", 1)
    in_query = heads if _given(node, "key") else heads + 2 * kv_heads
    return _width(named_input(node, "query")) // in_query


def _widest(node: ir.Node) -> int:
    """A vector operator's row width: one operand may be a scalar, or have an unknown shape."""
    return max(_width(value) for value in (*node.inputs, *node.outputs))


def _width(value: ir.Value | None) -> int:
    dim = value.shape[-1] if value is not None and value.shape else 0
    return dim if isinstance(dim, int) else 0
