"""A model with float32 where it has 16 bits: the reference for float16's rounding errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
TYPE_ATTRIBUTES = ("to", "dtype", "stash_type", "output_dtype")


def in_float32(source: Path, destination: Path) -> Path:
    """Writes the model with the same weights, but float32 tensors and float32 sums in projections.

    The difference of its results is the cost of types and accuracy levels.
    """
    model = onnx.load(source)
    _widen(model.graph)
    onnx.save(model, destination, save_as_external_data=True, location=f"{destination.name}.data")
    return destination


def _widen(graph: onnx.GraphProto) -> None:
    graph.ClearField("value_info")
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type in HALVES:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "MatMulNBits" and attribute.name == "accuracy_level":
                attribute.i = 0
            if attribute.name in TYPE_ATTRIBUTES and attribute.i in HALVES:
                attribute.i = TensorProto.FLOAT
            if attribute.HasField("t"):
                _widen_tensor(attribute.t)
            if attribute.HasField("g"):
                _widen(attribute.g)


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in HALVES:
        array = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
