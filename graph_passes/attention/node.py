"""aie.FlowAttention: its inputs, and the only place that makes such a node."""

from __future__ import annotations

from collections.abc import Mapping
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
) -> str:
    """The reason why the library has no such FlowAttention, or an empty string.

    `window` counts a query's own key; -1 means none.
    """
    return _native.why_not_flow_attention(
        num_heads=layout.heads,
        kv_num_heads=layout.kv_heads,
        head_dim=layout.dim,
        causal=causal,
        local_window_size=window,
        has_output_qk=output_qk,
        type=type,
        cache_type=cache_type,
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


def cached_head_dim(attention: ir.Node) -> int | None:
    """Channels of a head of an aie.FlowAttention by its past, if their number is known. Codes of 4
    bits stand two in an element."""
    in_element = 2 if attribute(attention, "kv_cache_bit_width", 0) == 4 else 1
    width = fixed_dim(named_input(attention, "past_key"), 3)
    return width * in_element if width else None


def named_input(attention: ir.Node, name: str) -> ir.Value | None:
    """An input of an aie.FlowAttention."""
    return input_at(attention, INPUTS.index(name))
