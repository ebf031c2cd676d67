"""Attention without a KV cache that an exporter spelled out -> aie.FlowAttention.

Before: Softmax(scale * Q . K^T + mask?) . V, of Q, K, V (B, H, T, D) that are Transposes of
        (B, T, H, D), with the scale on the query, on the key or on the scores
After:  FlowAttention(query, key, value, ..., attention_bias), of tensors (B, T, H * D)

Vision towers are written like this by eager and by decomposed attention of torch. Each node on the
way is one of a few, so nothing needs to be run: Casts that do not narrow, factors of one constant
number, a mask that is added, and what moves the keys. Attention with a cache is in `exported/`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ort_aie_ep.graph_passes.attention.builder import SWAP, BuilderRule, splits_channels
from ort_aie_ep.graph_passes.attention.exported.region import find_cache
from ort_aie_ep.graph_passes.attention.node import Layout, flow_attention, why_not_flow_attention
from ort_aie_ep.graph_passes.projection.width import projected_width
from ort_aie_ep.graph_passes.subgraph import HALVES, narrows
from ort_aie_ep.graph_passes.walk import (
    attribute,
    constant_array,
    fixed_dim,
    is_op,
    made_by,
    nodes_above,
    only_reader,
    permutes,
    rank,
    same_dim,
    type_name,
)

# The opset since which Softmax has one axis, the last by default.
ONE_AXIS = 13
# Types that probabilities may be cast to.
ROUNDED_TO = (ir.DataType.FLOAT, ir.DataType.DOUBLE, *HALVES)


@dataclass(frozen=True)
class _Scaled:
    """A value before it was multiplied by a number, and that number."""

    value: ir.Value
    factor: float


@dataclass(frozen=True)
class _Attention:
    """The attention around a Softmax.

    Attributes:
        query, key, value: (B, T, H, D), before they were transposed.
        columns: the keys as the product takes them, (B, H, D, T), before their factor.
        mask: what is added to the scores.
        scores: the input of the Softmax.
        scale: the product of all factors.
        first, last: the products with the keys and with the values.
    """

    query: ir.Value
    key: ir.Value
    value: ir.Value
    columns: ir.Value
    mask: ir.Value | None
    scores: ir.Value
    scale: float
    first: ir.Node
    last: ir.Node


class SpelledOutAttention(BuilderRule):
    """Replaces the attention around each eligible Softmax."""

    op_type = "Softmax"
    domain = ""

    def prepare(self, model: ir.Model) -> None:  # noqa: D102
        self.opset = model.graph.opset_imports.get("", 1)

    def takes(self, node: ir.Node) -> bool:  # noqa: D102
        return super().takes(node) and _find(node) is not None

    def why_not(self, node: ir.Node) -> str:  # noqa: D102
        found = _find(node)
        assert found is not None
        axis = attribute(node, "axis", -1 if self.opset >= ONE_AXIS else 1)
        if axis not in (-1, 3):
            return f"its axis is {axis}; expected the last"
        if found.scale == 0 or not math.isfinite(found.scale):
            return f"its scores are multiplied by {found.scale:g}"
        layout, *others = (_layout(x) for x in (found.query, found.key, found.value))
        if layout is None or None in others or not _turns(found):
            return "the number of heads or their dimension is not known before it runs"
        if others != [layout, layout]:
            return "query, key and value have different heads"
        for name, tokens in (("key", found.key), ("value", found.value)):
            if tokens.dtype != found.query.dtype:
                return f"query is {type_name(found.query)} and {name} {type_name(tokens)}"
            if _is_repeated(tokens, found.query, 0) or _is_repeated(found.query, tokens, 0):
                return f"query and {name} have different batches"
        return _why_not_mask(found) or why_not_flow_attention(
            layout,
            causal=0,
            window=-1,
            type=type_name(found.query),
            cache_type=type_name(found.query),
        )

    def replace(self, node: ir.Node) -> Sequence[ir.Node]:  # noqa: D102
        found = _find(node)
        assert found is not None
        layout = _layout(found.query)
        assert layout is not None
        inputs = {
            name: self.builder.channels(tokens, layout.heads * layout.dim)
            for name, tokens in (
                ("query", found.query), ("key", found.key), ("value", found.value),
            )
        }  # fmt: skip
        mask = None if found.mask is None else self.builder.bias(found.mask, found.query.dtype)
        attention = flow_attention(
            node,
            {**inputs, "attention_bias": mask},
            {
                "num_heads": layout.heads,
                "kv_num_heads": layout.heads,
                "causal": 0,
                "scale": found.scale,
            },
        )
        self.builder.put_in_place(found.last, attention, layout, (None, None))
        return found.first, found.last


def _find(softmax: ir.Node) -> _Attention | None:
    """The attention around a Softmax, or None if its nodes are others."""
    scores = softmax.inputs[0]
    last = _product_of(softmax.outputs[0])
    if scores is None or last is None:
        return None
    read = _read_scores(scores)
    if read is None:
        return None
    first, factor, mask = read
    if first.inputs[0] is None or first.inputs[1] is None or last.inputs[1] is None:
        return None
    query, key = _scaled(first.inputs[0]), _scaled(first.inputs[1])
    if rank(last.outputs[0]) not in (None, 4):
        return None
    of_query, of_keys = _tokens(query.value), _tokens_of_columns(key.value)
    of_values = _tokens(last.inputs[1])
    if of_query is None or of_keys is None or of_values is None:
        return None
    if _reads_cache([of_keys, of_values]):
        return None
    scale = factor * query.factor * key.factor
    return _Attention(
        of_query, of_keys, of_values, key.value, mask, scores, scale, first, last
    )  # fmt: skip


def _why_not_mask(found: _Attention) -> str:
    mask, scores = found.mask, found.scores
    if mask is None:
        return ""
    if mask.dtype != found.query.dtype:
        return f"its mask is {type_name(mask)}; expected {type_name(found.query)}"
    if mask.shape is None or scores.shape is None:
        return "the shape of its mask is not known before it runs"
    if not 2 <= len(mask.shape) <= 4:
        return f"its mask is {mask.shape}; expected two to four dimensions"
    if not same_dim(mask.shape[-1], scores.shape[-1]):
        return "its mask is not known to have a column for each key"
    products = found.first.outputs[0]
    if any(_is_repeated(products, mask, axis) for axis in range(-1, -len(mask.shape) - 1, -1)):
        return "its mask has more rows, heads or batches than the scores that it is added to"
    return ""


def _is_repeated(value: ir.Value, other: ir.Value, axis: int) -> bool:
    """Whether an axis is 1 in `value` and not known to be 1 in `other`, and so may be broadcast."""
    dims = [None if x.shape is None else x.shape[axis] for x in (value, other)]
    return dims[0] == 1 and dims[1] is not None and dims[1] != 1


def _product_of(probabilities: ir.Value) -> ir.Node | None:
    """The product of probabilities with values, if nothing else reads the probabilities. Casts to
    ROUNDED_TO may be before it: they round about as much as aie.FlowAttention does."""
    reader = only_reader(probabilities)
    while is_op(reader, "Cast", "Identity"):
        if reader.op_type == "Cast" and attribute(reader, "to", 0) not in ROUNDED_TO:
            return None
        probabilities = reader.outputs[0]
        reader = only_reader(probabilities)
    product = None if reader is None else made_by(reader.outputs[0], "MatMul")
    return product if product is not None and product.inputs[0] is probabilities else None


def _read_scores(scores: ir.Value) -> tuple[ir.Node, float, ir.Value | None] | None:
    """The product of queries and keys, the factor of its result, and the mask."""
    mask = None
    scores = _before_wide_casts(scores)
    added = made_by(scores, "Add")
    if added is not None:
        sides = [_product(_scaled(side).value) for side in added.inputs if side is not None]
        if len(sides) != 2 or (sides[0] is None) == (sides[1] is None):
            return None
        of_products, mask = added.inputs[:: 1 if sides[0] is not None else -1]
        assert of_products is not None
        scores = of_products
    scaled = _scaled(scores)
    product = _product(scaled.value)
    return None if product is None else (product, scaled.factor, mask)


def _product(value: ir.Value) -> ir.Node | None:
    """The MatMul of queries and keys that gives `value`, which nothing else reads."""
    node = made_by(value, "MatMul")
    return node if node is not None and only_reader(value) is not None else None


def _scaled(value: ir.Value) -> _Scaled:
    """A value before Casts that do not narrow it and before factors of one constant number."""
    factor = 1.0
    while True:
        value = _before_wide_casts(value)
        node = made_by(value, "Mul", "Div")
        if node is None:
            return _Scaled(value, factor)
        numbers = [constant_array(operand) for operand in node.inputs]
        places = [i for i, x in enumerate(numbers) if x is not None and x.size == 1]
        other = node.inputs[1 - places[0]] if len(places) == 1 else None
        number = numbers[places[0]] if places else None
        if number is None or other is None or (node.op_type == "Div" and places[0] == 0):
            return _Scaled(value, factor)
        exact = float(number.reshape(-1)[0])
        factor = factor / exact if node.op_type == "Div" and exact else factor * exact
        value = other


def _before_wide_casts(value: ir.Value) -> ir.Value:
    """`value` before Identities and Casts to a type that holds its numbers."""
    while True:
        node = made_by(value, "Cast", "Identity")
        source = node.inputs[0] if node is not None else None
        if node is None or source is None:
            return value
        if node.op_type == "Cast" and (source.dtype is None or narrows(node, source.dtype)):
            return value
        value = source


def _tokens(value: ir.Value) -> ir.Value | None:
    """(B, T, H, D) of which `value` (B, H, T, D) is the Transpose."""
    node = value.producer()
    return node.inputs[0] if permutes(node, SWAP) else None


def _tokens_of_columns(value: ir.Value) -> ir.Value | None:
    """(B, T, H, D) of which `value` (B, H, D, T) is a Transpose, perhaps in two or by way of
    (B * H, T, D)."""
    node = value.producer()
    if permutes(node, [0, 2, 3, 1]):
        return node.inputs[0]
    if permutes(node, [0, 1, 3, 2]):
        source = node.inputs[0]
        return None if source is None else _tokens(source)
    ends = _turned_flat(value)
    return None if ends is None else _tokens(ends[0])


def _turned_flat(columns: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """(B, H, T, D) and (B * H, T, D), if `columns` (B, H, D, T) is their Transpose, reshaped."""
    split = made_by(columns, "Reshape")
    turned = split.inputs[0] if split is not None else None
    swap = turned.producer() if turned is not None else None
    flat = swap.inputs[0] if permutes(swap, [0, 2, 1]) else None
    joined = made_by(flat, "Reshape")
    source = joined.inputs[0] if joined is not None else None
    return None if flat is None or source is None else (source, flat)


def _turns(found: _Attention) -> bool:
    """Whether the Reshapes on the way of the keys, if there are any, join and split heads."""
    ends = _turned_flat(found.columns)
    if ends is None:
        return True
    shapes = [value.shape for value in (*ends, found.columns)]
    if [None if shape is None else len(shape) for shape in shapes] != [4, 3, 4]:
        return False
    (_, heads, tokens, dim), (_, *flat), (_, *columns) = (tuple(shape or ()) for shape in shapes)
    expected = [(flat, (tokens, dim)), (columns, (heads, dim, tokens))]
    return all(same_dim(a, b) for got, known in expected for a, b in zip(got, known, strict=True))


def _reads_cache(values: Sequence[ir.Value]) -> bool:
    """Whether keys or values come from a KV cache."""
    nodes = nodes_above(values, edge=lambda value: projected_width(value) is not None)
    return any(find_cache(node) is not None for node in nodes)


def _layout(tokens: ir.Value) -> Layout | None:
    """The heads of (B, T, H, D)."""
    dim, heads = fixed_dim(tokens, 3), fixed_dim(tokens, 2)
    split = made_by(tokens, "Reshape")
    if heads is None and dim is not None and split is not None and splits_channels(split):
        heads = (fixed_dim(split.inputs[0], 2) or 0) // dim
    return None if heads is None or dim is None else Layout(heads, heads, dim, split=True)
