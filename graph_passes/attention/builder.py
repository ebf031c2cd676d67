"""The nodes before and after an aie.FlowAttention, for an operator that has its tensors in another
layout, its mask as a matrix, or a row of angles for each token."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from onnx_ir import tape
from onnx_ir.passes import common as common_passes

from ort_aie_ep.graph_passes.attention.node import OP_TYPE, OUTPUTS, Angles, Layout
from ort_aie_ep.graph_passes.attention.shapes import inferred_shapes
from ort_aie_ep.graph_passes.base import NodeRule
from ort_aie_ep.graph_passes.projection.norm import NORMS
from ort_aie_ep.graph_passes.walk import (
    attribute,
    constant_array,
    fixed_dim,
    input_at,
    is_op,
    is_read,
    made_by,
    node_label,
    only_reader,
    permutes,
    producer,
    rank,
    same_dim,
)

SWAP = [0, 2, 1, 3]  # (B, T, H, D) <-> (B, H, T, D)


class BuilderRule(NodeRule):
    """An operator of attention -> aie.FlowAttention, with nodes around it that may change too."""

    becomes = OP_TYPE
    builder: GraphBuilder

    def apply(self, model: ir.Model) -> None:  # noqa: D102
        if not any(self.takes(node) for node in model.graph):
            return
        self.prepare(model)
        with inferred_shapes(model):
            self.builder = GraphBuilder(model.graph)
            super().apply(model)
        model.graph.sort()
        common_passes.RemoveUnusedNodesPass()(model)

    def prepare(self, model: ir.Model) -> None:
        """Prepares a model that has nodes of this rule."""


class GraphBuilder:
    """Makes nodes at the end of a graph, which is sorted afterwards.

    Values that several layers need, such as a mask in another form, are made once.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._tape = tape.Tape(graph)
        self._made: dict[tuple[str, ir.Value], ir.Value] = {}

    # --- layouts ----------------------------------------------------------------------------------

    def rows(self, value: ir.Value, layout: Layout, heads: int) -> ir.Value:
        """(B, H, T, D) or (B, T, H * D) -> (B, T, H * D)."""
        if not layout.split:
            return value
        tokens = self._once("tokens", value, lambda: self._tokens(value))
        return self.channels(tokens, heads * layout.dim)

    def _tokens(self, value: ir.Value) -> ir.Value:
        """(B, H, T, D) -> (B, T, H, D)."""
        tokens = _before_swap(value) or self._norm_before_swap(value)
        if tokens is None:
            shape = value.shape
            tokens = self._op("Transpose", [value], value.name, perm=SWAP)
            tokens.type = value.type
            tokens.shape = None if shape is None else ir.Shape([shape[i] for i in SWAP])
        return tokens

    def _norm_before_swap(self, value: ir.Value) -> ir.Value | None:
        """(B, T, H, D) of a norm of heads that an exporter put behind the Transpose."""
        norm = made_by(value, *NORMS)
        weight = input_at(norm, 1) if norm is not None else None
        tokens = _before_swap(norm.inputs[0]) if norm is not None else None
        if norm is None or tokens is None or rank(weight) != 1:
            return None
        if attribute(norm, "axis", -1) not in (-1, 3) or only_reader(value) is None:
            return None
        normed = self._tape.op(norm.op_type, [tokens, weight], norm.attributes)
        normed.name, producer(normed).name = f"{value.name}.of_tokens", norm.name
        normed.type, normed.shape = value.type, tokens.shape
        return normed

    def channels(self, tokens: ir.Value, width: int) -> ir.Value:
        """(B, T, H, D) -> (B, T, H * D), which is `width`."""
        return self._once("channels", tokens, lambda: self._channels(tokens, width))

    def _channels(self, tokens: ir.Value, width: int) -> ir.Value:
        split = made_by(tokens, "Reshape")
        source = split.inputs[0] if split is not None and splits_channels(split) else None
        if source is not None and fixed_dim(source, 2) == width:
            return source
        flat = self._reshape(tokens, f"{tokens.name}.rows", 0, 0, width)
        flat.type = tokens.type
        if tokens.shape is not None:
            flat.shape = ir.Shape([*tokens.shape[:2], width])
        return flat

    def put_in_place(
        self,
        old: ir.Node,
        attention: ir.Node,
        layout: Layout,
        presents: tuple[ir.Value | None, ir.Value | None],
    ) -> None:
        """Replaces `old`, whose first output is in its layout, with an aie.FlowAttention.

        Presents that nothing reads are None.
        """
        self._graph.append(attention)
        outputs, result, query = attention.outputs, old.outputs[0], attention.inputs[0]
        if result.type is None and query is not None:
            result.type = query.type
        for output, name in zip(outputs, OUTPUTS, strict=True):
            output.name, output.type = f"{node_label(old)}.{name}", result.type
        for present, output in zip(presents, outputs[1:], strict=True):
            if present is not None:
                _take_over(present, output)
        if not layout.split:
            _take_over(result, outputs[0])
            return
        if result.shape is not None:
            outputs[0].shape = ir.Shape(
                [result.shape[0], result.shape[SWAP[1]], layout.heads * layout.dim]
            )
        self._spread(outputs[0], result, layout)

    def _spread(self, output: ir.Value, old: ir.Value, layout: Layout) -> None:
        """Replaces `old` (B, H, T, D) with `output` (B, T, H * D)."""
        tokens = self._reshape(output, f"{old.name}.tokens", 0, 0, layout.heads, layout.dim)
        tokens.type = old.type
        for user in list(old.consumers()):
            if _keeps_shape(user):
                _take_over(user.outputs[0], old)
        for user in old.consumers():
            if not permutes(user, SWAP):
                continue
            swapped = user.outputs[0]
            for flattening in swapped.consumers():
                if _joins_channels(flattening, layout.heads * layout.dim):
                    _take_over(flattening.outputs[0], output)
            _take_over(swapped, tokens)
        if is_read(old):
            _take_over(old, self._op("Transpose", [tokens], f"{old.name}.split", perm=SWAP))

    # --- masks ------------------------------------------------------------------------------------

    def bias(self, mask: ir.Value, dtype: ir.DataType | None) -> ir.Value:
        """A mask of rank 2 to 4 that broadcasts to (B, H, S, T) -> attention_bias of `dtype`."""

        def make() -> ir.Value:
            value = mask
            if mask.dtype == ir.DataType.BOOL:
                assert dtype is not None
                shown, hidden = (self._constant(np.array(x, dtype.numpy())) for x in (0.0, -np.inf))
                value = self._op("Where", [mask, shown, hidden], f"{mask.name}.bias")
            missing = 4 - (rank(mask) or 4)
            if missing == 0:
                return value
            axes = self._constant(np.arange(missing, dtype=np.int64))
            return self._op("Unsqueeze", [value, axes], f"{mask.name}.broadcast")

        return self._once("bias", mask, make)

    def key_mask(self, mask: ir.Value) -> ir.Value:
        """A mask (B, 1, 1, T) of keys alone -> attention_mask."""

        def make() -> ir.Value:
            axes = self._constant(np.array([1, 2], np.int64))
            keys = self._op("Squeeze", [mask, axes], f"{mask.name}.keys")
            return self._op("Cast", [keys], f"{mask.name}.attention_mask", to=ir.DataType.INT64)

        return self._once("key_mask", mask, make)

    def valid_keys(self, count: ir.Value, keys: ir.Value) -> ir.Value:
        """`count` (B), how many of the `keys` (..., T, D) of a row are valid -> attention_mask."""

        def make() -> ir.Value:
            zero, one, end = (self._constant(np.array(x, np.int64)) for x in (0, 1, [1]))
            axis = self._constant(np.array(-2 + (rank(keys) or 0), np.int64))
            shape = self._op("Shape", [keys], f"{count.name}.shape")
            total = self._op("Gather", [shape, axis], f"{count.name}.total")
            index = self._op("Range", [zero, total, one], f"{count.name}.index")
            column = self._op("Unsqueeze", [count, end], f"{count.name}.column")
            valid = self._op("Less", [index, column], f"{count.name}.valid")
            return self._op("Cast", [valid], f"{count.name}.mask", to=ir.DataType.INT64)

        return self._once("valid_keys", count, make)

    # --- angles -----------------------------------------------------------------------------------

    def angles(self, cos: ir.Value, sin: ir.Value, positions: ir.Value | None) -> Angles:
        """cos and sin (B, T, width) without `positions` are a row for each token."""
        if positions is not None:
            return Angles(cos, sin, positions)

        def table(value: ir.Value) -> ir.Value:
            width = fixed_dim(value, 2)
            assert width is not None
            return self._once(
                "table", value, lambda: self._reshape(value, f"{value.name}.table", -1, width)
            )

        def make() -> ir.Value:
            zero, one = (self._constant(np.array(x, np.int64)) for x in (0, 1))
            shape = self._op("Shape", [cos], f"{cos.name}.shape", end=2)
            count = self._op("ReduceProd", [shape], f"{cos.name}.count", keepdims=0)
            index = self._op("Range", [zero, count, one], f"{cos.name}.index")
            return self._op("Reshape", [index, shape], f"{cos.name}.position_ids")

        return Angles(table(cos), table(sin), self._once("rows", cos, make))

    # --- nodes ------------------------------------------------------------------------------------

    def like(self, op_type: str, value: ir.Value, other: ir.Value, name: str) -> ir.Value:
        """A node of two inputs whose result is like the first."""
        result = self._op(op_type, [value, other], name)
        result.type, result.shape = value.type, value.shape
        return result

    def initializer(self, array: np.ndarray, name: str) -> ir.Value:
        """A constant of the graph, made once for each name."""
        if name in self._graph.initializers:
            return self._graph.initializers[name]
        return self._tape.initializer(ir.tensor(array, name=name))

    def _constant(self, array: np.ndarray) -> ir.Value:
        text = "_".join(map(str, np.atleast_1d(array).tolist()))
        return self.initializer(array, f"ort_aie.{array.dtype}_{array.ndim}d_{text}")

    def _reshape(self, value: ir.Value, name: str, *dims: int) -> ir.Value:
        return self._op("Reshape", [value, self._constant(np.array(dims, np.int64))], name)

    def _op(
        self, op_type: str, inputs: list[ir.Value], name: str | None, **attributes: int | list[int]
    ) -> ir.Value:
        value = self._tape.op(op_type, inputs, attributes)
        value.name = producer(value).name = f"{name}.{op_type}" if name else None
        return value

    def _once(self, kind: str, value: ir.Value, make: Callable[[], ir.Value]) -> ir.Value:
        if (kind, value) not in self._made:
            self._made[kind, value] = make()
        return self._made[kind, value]


def _take_over(old: ir.Value, new: ir.Value) -> None:
    """Replaces `old` with `new`, which gets its name if `old` is an output of the graph."""
    if old.is_graph_output():
        name, old.name = old.name, f"{old.name}.replaced"
        new.name = name
    new.shape = old.shape if new.shape is None else new.shape
    new.type = old.type if new.type is None else new.type
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)


def _reshape_dims(node: ir.Node, rank: int) -> list[int] | None:
    """The constant shape of a Reshape to `rank` dimensions."""
    if not is_op(node, "Reshape") or attribute(node, "allowzero", 0):
        return None
    shape = constant_array(input_at(node, 1))
    dims = None if shape is None else shape.tolist()
    return dims if dims is not None and len(dims) == rank else None


def _before_swap(value: ir.Value | None) -> ir.Value | None:
    """(B, T, H, D) of which `value` is the Transpose."""
    swap = value.producer() if value is not None else None
    return swap.inputs[0] if permutes(swap, SWAP) else None


def splits_channels(node: ir.Node) -> bool:
    """Whether a node is a Reshape (B, T, C) -> (B, T, H, D)."""
    dims = _reshape_dims(node, 4)
    if rank(node.inputs[0]) != 3:
        return False
    return (dims is not None and dims[:2] == [0, 0]) or _keeps_tokens(node, 4)


def _joins_channels(node: ir.Node, channels: int) -> bool:
    """Whether a node is a Reshape (B, T, H, D) -> (B, T, H * D)."""
    dims = _reshape_dims(node, 3)
    if dims is not None and dims[0] == 0:
        return dims[1:] in ([0, -1], [0, channels], [-1, channels])
    return _keeps_tokens(node, 3) and fixed_dim(node.outputs[0], 2) in (None, channels)


def _keeps_shape(node: ir.Node) -> bool:
    """Whether a node is a Reshape to the shape that its input has; a last dimension follows from
    the others."""
    source, shape = node.inputs[0], node.outputs[0].shape
    if not is_op(node, "Reshape") or source is None or source.shape is None or shape is None:
        return False
    if len(source.shape) != len(shape):
        return False
    return [same_dim(a, b) for a, b in zip(source.shape, shape, strict=True)].count(False) <= 1


def _keeps_tokens(node: ir.Node, to_rank: int) -> bool:
    """Whether a node is a Reshape to `to_rank` dimensions whose shapes say that it keeps the first
    two, or one of them and the size of the rest, from which the other follows."""
    source, shape = node.inputs[0], node.outputs[0].shape
    if not is_op(node, "Reshape") or source is None or source.shape is None or shape is None:
        return False
    if len(shape) != to_rank or len(source.shape) < 3:
        return False
    kept = [same_dim(source.shape[i], shape[i]) for i in range(2)]
    sizes = [
        math.prod(d for d in dims if isinstance(d, int)) if all(isinstance(d, int) for d in dims)
        else None
        for dims in (source.shape[2:], shape[2:])
    ]  # fmt: skip
    return all(kept) or (any(kept) and sizes[0] is not None and sizes[0] == sizes[1])
