"""The type of the KV cache, set with `compile --kv`.

Before: past and present have the activations' type (FLOAT as the builder writes models)
After:  past and present, inputs and outputs of the graph, are FLOAT16 or BFLOAT16; or codes: INT8,
        or UINT8 with two in a byte, and k_scale and v_scale are initializers

This is the only pass that changes a model's interface; hosts take the type from the graph.
FlowAttention reads and writes a cache of any of these types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import onnx_ir as ir

from ort_aie_ep.errors import AieError
from ort_aie_ep.formats.kv_codes import BITS, Floats
from ort_aie_ep.graph_passes.attention.node import INPUTS, is_flow_attention, named_input
from ort_aie_ep.graph_passes.base import none_value
from ort_aie_ep.graph_passes.bodies import body_labels
from ort_aie_ep.graph_passes.walk import attribute, node_label

TYPES = {"f16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}
CODES = {8: ir.DataType.INT8, 4: ir.DataType.UINT8}
_REASONS = 5


@dataclass(frozen=True)
class CachedAttention:
    """A FlowAttention whose past and present are inputs and outputs of the graph."""

    node: ir.Node
    past_key: ir.Value
    past_value: ir.Value

    @property
    def label(self) -> str:
        """The node's name."""
        return node_label(self.node)

    @property
    def present_key(self) -> ir.Value:
        """The output that continues `past_key`."""
        return self.node.outputs[1]

    @property
    def present_value(self) -> ir.Value:
        """The output that continues `past_value`."""
        return self.node.outputs[2]


class Scales(NamedTuple):
    """The scales of one attention's cached codes, (1, KV heads, 1, head size) float32 each."""

    keys: Floats
    values: Floats


def set_cache_type(model: ir.Model, kv: str) -> None:
    """Gives each FlowAttention's past and present the type `kv` ("f16" or "bf16").

    Raises:
        AieError: as `cached_attentions`.
    """
    for attention in cached_attentions(model, kv):
        for value in _cache(attention):
            value.type = ir.TensorType(TYPES[kv])


def quantise_cache(model: ir.Model, kv: str, scales: Sequence[Scales]) -> None:
    """Makes each FlowAttention's past and present codes ("int8" or "int4").

    `scales` are in the order of `cached_attentions`.

    Raises:
        AieError: as `cached_attentions`.
    """
    for attention, given in zip(cached_attentions(model, kv), scales, strict=True):
        _quantise(attention, BITS[kv], given)


def cached_attentions(model: ir.Model, kv: str) -> list[CachedAttention]:
    """Every FlowAttention, if the caches of all of them can get the type `kv`.

    Raises:
        AieError: there is no FlowAttention; one is in the body of an If, Loop or Scan; or other
            nodes use a cache too, or it is already quantised.
    """
    nodes = [node for node in model.graph.all_nodes() if is_flow_attention(node)]
    if not nodes:
        raise AieError(f"kv type {kv}: no attention became aie.FlowAttention, which alone takes it")
    bodies = body_labels(model)
    found, reasons = [], []
    for node in nodes:
        attention = _cached(node, model, bodies)
        if isinstance(attention, CachedAttention):
            found.append(attention)
        else:
            reasons.append(f"node '{node_label(node)}': {attention}")
    if reasons:
        shown = reasons[:_REASONS]
        more = [f"and {len(reasons) - _REASONS} more"] * (len(reasons) > _REASONS)
        raise AieError(
            f"kv type {kv}: {len(reasons)} of {len(nodes)} attention nodes cannot take it, and "
            "nothing was changed:\n  " + "\n  ".join([*shown, *more])
        )
    return found


def _cached(node: ir.Node, model: ir.Model, bodies: Mapping[str, str]) -> CachedAttention | str:
    """The node, or why its cache cannot change."""
    if node.graph is not model.graph:
        return (
            f"it is in the {bodies[node.name or '']}; the type of past and present can be changed "
            "only in the main graph"
        )
    if attribute(node, "kv_cache_bit_width", 0):
        return "its cache is quantised already"
    pasts = []
    for name in ("past_key", "past_value"):
        past = named_input(node, name)
        if past is None or not past.is_graph_input():
            return f"its {name} is not a graph input"
        if len(_readers(past)) != 1:
            return f"its {name} '{past.name}' is read by other nodes too"
        pasts.append(past)
    for present in node.outputs[1:3]:
        if not present.is_graph_output():
            return f"the value that continues its cache, '{present.name}', is not a graph output"
        if present.uses():
            return (
                f"the value that continues its cache, '{present.name}', is read by other nodes too"
            )
    return CachedAttention(node, *pasts)


def _cache(attention: CachedAttention) -> tuple[ir.Value, ...]:
    return (
        attention.past_key,
        attention.past_value,
        attention.present_key,
        attention.present_value,
    )


def _quantise(attention: CachedAttention, bits: int, scales: Scales) -> None:
    node = attention.node
    for value in _cache(attention):
        value.type = ir.TensorType(CODES[bits])
        if bits == 4 and value.shape is not None:
            # Hosts use a number as it is; they would read a name as the head size.
            value.shape = ir.Shape([*value.shape[:3], scales.keys.shape[3] // 2])
    given, count = len(node.inputs), max(len(node.inputs), INPUTS.index("v_scale") + 1)
    node.resize_inputs(count)
    for index in range(given, count):
        node.replace_input_with(index, none_value(node))
    for name, present, array in zip(("k_scale", "v_scale"), node.outputs[1:3], scales, strict=True):
        node.replace_input_with(INPUTS.index(name), _initializer(node, present, array))
    for name in ("k_quant_type", "v_quant_type"):
        node.attributes.add(ir.AttrString(name, "PER_CHANNEL"))
    node.attributes.add(ir.AttrInt64("kv_cache_bit_width", bits))


def _initializer(node: ir.Node, present: ir.Value, array: Floats) -> ir.Value:
    name = f"{present.name}.scale"
    value = ir.val(name, const_value=ir.tensor(array, ir.DataType.FLOAT, name=name))
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    graph.register_initializer(value)
    return value


def _readers(value: ir.Value) -> list[ir.Node]:
    """The nodes that read a value's elements. optimum's exports read lengths from its shape."""
    return [node for node, _ in value.uses() if node.op_type != "Shape"]
