"""The weights and biases of QMoE as initializers of Q4NXMoE, packed only when they are written.

A fused FC1 holds gate and up. They become two tensors, as the kernels of gated projections read
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ort_aie_ep import _native
from ort_aie_ep.errors import AieError
from ort_aie_ep.graph_passes.weights.packed import tensor_rows
from ort_aie_ep.graph_passes.weights.shared_initializers import SharedInitializers

if TYPE_CHECKING:
    from ort_aie_ep._native import _ExpertConstant


class PackedExperts:
    """The initializers of a model's experts, one for each constant of the source and its part."""

    def __init__(self) -> None:
        self._shared = SharedInitializers()

    def value(self, node: ir.Node, constant: _ExpertConstant) -> ir.Value:
        """The initializer of a constant of the QMoE `node`, made on first use."""
        inputs = [constant[role] for role in ("source", "scales", "zero_points")]
        sources = [node.inputs[place] if place >= 0 else None for place in inputs]
        key = (*(value and value.name for value in sources), *constant["layout"])
        return self._shared.value(node, key, lambda: _make(constant, sources))


def _make(constant: _ExpertConstant, sources: list[ir.Value | None]) -> ir.Value:
    source, scales, zero_points = sources
    assert source is not None
    name, shape = f"{source.name}_{constant['name']}", ir.Shape(constant["shape"])
    dtype = ir.DataType.FLOAT if scales is None else ir.DataType.UINT8

    def array() -> npt.NDArray[np.generic]:
        if scales is None:
            return _bias(source, constant)
        return _pack(source, scales, zero_points, constant)

    tensor = ir.LazyTensor(
        lambda: ir.tensor(array(), name=name), dtype=dtype, shape=shape, name=name
    )
    return ir.val(name, const_value=tensor)


def _bias(source: ir.Value, constant: _ExpertConstant) -> npt.NDArray[np.generic]:
    _, first, step, n, *_ = constant["layout"]
    assert source.const_value is not None
    part = source.const_value.numpy()[:, first::step][:, :n]
    return np.ascontiguousarray(part, np.float32)


def _pack(
    source: ir.Value, scales: ir.Value, zero_points: ir.Value | None, constant: _ExpertConstant
) -> npt.NDArray[np.uint8]:
    experts = constant["shape"][0]
    blocks = np.empty(constant["shape"], np.uint8)
    assert scales.const_value is not None
    for expert in range(experts):
        try:
            blocks[expert] = _native.pack_expert(
                tensor_rows(source, experts, expert, 1),
                tensor_rows(scales, experts, expert, 1),
                None if zero_points is None else tensor_rows(zero_points, experts, expert, 1),
                constant["layout"],
                scales.const_value.dtype.name,
            )
        except ValueError as problem:
            raise AieError(f"'{source.name}': {problem}") from problem
    return blocks
