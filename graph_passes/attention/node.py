"""aie.FlowAttention: its inputs, and the only place that makes such a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import onnx_ir as ir

from ort_aie_ep import _native
from ort_aie_ep.graph_passes.base import DOMAIN, Attribute, aie_node, none_value
from ort_aie_ep.graph_passes.walk import attribute, fixed_dim, input_at, is_op

OP_TYPE = "FlowAttention"
INPUTS = _native.FLOW_ATTENTION_INPUTS
OUTPUTS = ("output", "present_key", "present_value")


@dataclass(frozen=True)
class Layout:
    """The heads of one attention; `split`: its tensors are (B, H, T, D), else (B, T, H * D)."""

    heads: int
    kv_heads: int
    dim: int
    split: bool = False


@dataclass(frozen=True)
class Quantisation:
    """The kinds of a KV cache, the bits of a code, and whether there are scales."""

    keys: str = "NONE"
    values: str = "NONE"
    bits: int = 0
    has_key_scales: bool = False
    has_value_scales: bool = False


NOT_QUANTISED = Quantisation()


class Angles(NamedTuple):
    """cos_cache, sin_cache and position_ids."""

    cos: ir.Value
    sin: ir.Value
    positions: ir.Value


def why_not_flow_attention(
    layout: Layout,
    *,
    causal: int,
    window: int,
    type: str,
    cache_type: str,
    output_qk: bool = False,
    qk_output: int = 0,
    quantisation: Quantisation = NOT_QUANTISED,
    query_seqlens: bool = False,
    other_epsilons: bool = False,
    do_rotary: int = 0,
    sliding_window_cache: int = 0,
    present: tuple[bool, bool] = (True, True),
    shapes: Mapping[int, Sequence[int] | None] | None = None,
) -> str:
    """The reason why the library has no such FlowAttention, or an empty string.

    `window` counts a query's own key; -1 means none. `qk_output` and the rest are those of
    GroupQueryAttention: `present` says which of the two outputs it has, and `shapes` has what is
    known of its inputs by position (-1: a dimension that is not known; None: not even their
    number).
    """
    return _native.why_not_flow_attention(
        num_heads=layout.heads,
        kv_num_heads=layout.kv_heads,
        head_dim=layout.dim,
        qk_output=qk_output,
        causal=causal,
        local_window_size=window,
        k_quant_type=quantisation.keys,
        v_quant_type=quantisation.values,
        kv_cache_bit_width=quantisation.bits,
        has_k_scale=quantisation.has_key_scales,
        has_v_scale=quantisation.has_value_scales,
        has_output_qk=output_qk,
        has_query_seqlens=query_seqlens,
        has_other_epsilons=other_epsilons,
        type=type,
        cache_type=cache_type,
        do_rotary=do_rotary,
        sliding_window_cache=sliding_window_cache,
        has_present_key=present[0],
        has_present_value=present[1],
        shapes=shapes or {},
    )


def flow_attention(
    old: ir.Node,
    inputs: Mapping[str, ir.Value | None],
    attributes: Mapping[str, Attribute],
) -> ir.Node:
    """An aie.FlowAttention with inputs by name and the name of `old`, not yet in a graph."""
    assert inputs.keys() <= set(INPUTS)
    values = [inputs.get(name) for name in INPUTS]
    while values[-1] is None:
        values.pop()
    given = [none_value(old) if value is None else value for value in values]
    return aie_node(old, OP_TYPE, given, attributes, len(OUTPUTS))


def angle_inputs(angles: Angles | None) -> dict[str, ir.Value | None]:
    """Inputs 7 to 9; empty for an attention that does not rotate."""
    cos, sin, positions = angles or (None, None, None)
    return {"cos_cache": cos, "sin_cache": sin, "position_ids": positions}


def is_flow_attention(node: ir.Node) -> bool:
    """Whether a node is an aie.FlowAttention."""
    return is_op(node, OP_TYPE, domain=DOMAIN)


def cached_head_dim(attention: ir.Node, *caches: ir.Value | None) -> int | None:
    """Channels of a head by the first of its past and present whose width is known.

    `attention` is an aie.FlowAttention or a GroupQueryAttention, whose codes of 4 bits stand two in
    an element.
    """
    in_element = 2 if attribute(attention, "kv_cache_bit_width", 0) == 4 else 1
    widths = (fixed_dim(cache, 3) for cache in caches)
    return next((width * in_element for width in widths if width), None)


def named_input(attention: ir.Node, name: str) -> ir.Value | None:
    """An input of an aie.FlowAttention, or one of the first 16 of a GroupQueryAttention."""
    return input_at(attention, INPUTS.index(name))
