"""Tensors that a pass computes, as initializers of each graph that reads them.

A body has its own initializer, because in ONNX Runtime 1.23 a custom op does not see constants of
outer graphs as constants. The bytes are written once, and all initializers refer to them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import onnx_ir as ir

from ort_aie_ep.graph_passes.walk import free_name

# Metadata of an initializer: the first one of the same tensor.
SAME_AS = "ort_aie.same_as"


class SharedInitializers:
    """One tensor for each key."""

    def __init__(self) -> None:
        self._values: dict[Hashable, dict[ir.Graph, ir.Value]] = {}

    def value(self, node: ir.Node, key: Hashable, make: Callable[[], ir.Value]) -> ir.Value:
        """The initializer of `key` in the graph of `node`, made by `make` if it is the first."""
        graph = node.graph
        assert isinstance(graph, ir.Graph)
        values = self._values.setdefault(key, {})
        if graph not in values:
            first = next(iter(values.values()), None)
            value = make() if first is None else _copy(first, len(values) + 1)
            # Different tensors may be made of one: of the same codes with other scales.
            value.name = free_name(value.name or "", graph.initializers)
            graph.register_initializer(value)
            values[graph] = value
        return values[graph]


def copies(model: ir.Model) -> dict[ir.Value, ir.Value]:
    """Initializers of a tensor that already has one, with that first one."""
    found: dict[ir.Value, ir.Value] = {}
    firsts: dict[ir.Value, ir.Value] = {}  # what was the first may be gone
    for graph in model.graphs():
        for value in graph.initializers.values():
            first = firsts.setdefault(value.meta.get(SAME_AS, value), value)
            if first is not value:
                found[value] = first
    return found


@contextmanager
def copies_left_out(model: ir.Model) -> Iterator[None]:
    """Context for writing tensors to a data file: copies are left out, then refer to its bytes."""
    left_out = {copy: (first, copy.const_value) for copy, first in copies(model).items()}
    for copy in left_out:
        copy.const_value = None
    yield
    for copy, (first, before) in left_out.items():
        tensor = first.const_value
        copy.const_value = before
        if isinstance(tensor, ir.ExternalTensor):
            copy.const_value = ir.ExternalTensor(
                tensor.location,
                tensor.offset,
                tensor.length,
                tensor.dtype,
                shape=tensor.shape,
                name=copy.name or "",
                base_dir=tensor.base_dir,
            )


def _copy(first: ir.Value, number: int) -> ir.Value:
    tensor, name = first.const_value, f"{first.name} ({number})"
    assert tensor is not None
    lazy = ir.LazyTensor(
        lambda: ir.tensor(tensor.numpy(), name=name, dtype=tensor.dtype),
        dtype=tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name,
    )  # fmt: skip
    value = ir.val(name, const_value=lazy)
    value.meta[SAME_AS] = first
    return value
