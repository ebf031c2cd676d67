"""Tensors that a pass computes, as initializers of each graph that reads them.

A body has an initializer of its own: in ONNX Runtime 1.23, constants of outer graphs are none to a
custom op. All are written once, and name the same bytes of the data file.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import onnx_ir as ir

# Metadata of an initializer: the first one of the same tensor.
SAME_AS = "ort_aie.same_as"


class SharedInitializers:
    """One tensor for each key."""

    def __init__(self) -> None:
        self._values: dict[Hashable, dict[ir.Graph, ir.Value]] = {}

    def value(self, node: ir.Node, key: Hashable, make: Callable[[], ir.Value]) -> ir.Value:
        """The initializer of `key` in the graph of `node`, made by `make` where it is the first."""
        graph = node.graph
        assert isinstance(graph, ir.Graph)
        values = self._values.setdefault(key, {})
        if graph not in values:
            first = next(iter(values.values()), None)
            value = make() if first is None else _copy(first, len(values) + 1)
            graph.register_initializer(value)
            values[graph] = value
        return values[graph]


def _copy(first: ir.Value, number: int) -> ir.Value:
    tensor, name = first.const_value, f"{first.name} ({number})"
    assert tensor is not None
    lazy = ir.LazyTensor(
        lambda: ir.tensor(tensor.numpy(), name=name, dtype=tensor.dtype),
        dtype=tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=name,
    )
    value = ir.Value(name=name, shape=first.shape, type=first.type, const_value=lazy)
    value.meta[SAME_AS] = first
    return value
