"""Parts of a graph as separate models, to find out what they compute by running them.

A part that agrees with a formula on random inputs, up to float rounding, computes that formula,
whatever nodes an exporter wrote it with.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from ort_aie_ep.graph_passes.walk import Array, attribute, constant, nodes_above
from ort_aie_ep.runtime.sessions import LOG_FATAL, new_options

# The domain of nodes whose bodies are separate models while passes run (bodies.py).
HOLDER_DOMAIN = "ort_aie.holder"
HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
BITS = dict.fromkeys(HALVES, 16) | {ir.DataType.FLOAT: 32, ir.DataType.DOUBLE: 64}
EPSILON = float(np.finfo(np.float32).eps)
# A score below is masked: -inf, or the most negative number of a type, float16's -65504 among them;
# exp(-1e4) is 0 in float32.
MASKED = -1e4
ENDLESS = np.iinfo(np.int32).max  # and above: ends of slices
# Constants of a part, in total: no part that is examined has weights of a projection.
MOST_BYTES = 16 << 20


class NoMatch(Exception):
    """A part of a graph is not what a pass looks for; the message is the reason a user sees."""


class Part:
    """The nodes between some inputs and outputs, in their own session; `nodes` are the model's.

    Half precision is widened to float32, so that the result shows the formula and not the rounding
    of every step.
    """

    def __init__(
        self,
        model: ir.Model,
        inputs: Sequence[ir.Value],
        outputs: Sequence[ir.Value],
        stand_ins: Mapping[int, int] | None = None,
    ) -> None:
        """`stand_ins` gives constants of one number other magnitudes.

        Raises:
            NoMatch: the outputs depend on other graph inputs or on large constants, or cannot be
                run.
        """
        import onnxruntime  # here: most models have nothing to find out

        nodes, constants = _between(inputs, outputs)
        tensors = [v.const_value for v in constants if v.const_value is not None]
        size = sum(tensor.nbytes for tensor in tensors)
        if size > MOST_BYTES:
            raise NoMatch(f"reads constants of {size} bytes, expected at most {MOST_BYTES}")
        proto = onnx.ModelProto(ir_version=model.ir_version)
        for domain, version in model.opset_imports.items():
            proto.opset_import.add(domain=domain, version=version)
        graph = proto.graph
        graph.name = "part"
        graph.initializer.extend(_given(value, stand_ins or {}) for value in constants)
        graph.node.extend(_node(node, stand_ins or {}) for node in nodes)
        for value in inputs:
            dtype = _widened(value.dtype)
            graph.input.append(onnx.helper.make_tensor_value_info(str(value.name), dtype, None))
        # ONNX Runtime infers their types.
        graph.output.extend(onnx.ValueInfoProto(name=value.name) for value in outputs)
        options = new_options(threads=1)
        options.log_severity_level = LOG_FATAL  # the reason says what fails
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            self._session = onnxruntime.InferenceSession(
                proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime has no common class
            raise NoMatch(_failure(error)) from error
        self._outputs = [value.name for value in outputs]
        self.nodes = nodes

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """The outputs, float where they are float.

        Raises:
            NoMatch: ONNX Runtime refuses to compute them.
        """
        try:
            outputs: list[Array] = self._session.run(self._outputs, dict(feeds))
        except Exception as error:
            raise NoMatch(_failure(error)) from error
        return outputs


def narrows(cast: ir.Node, dtype: ir.DataType | None) -> bool:
    """Whether a Cast's type has fewer numbers than values of `dtype` (None: float32)."""
    bits = BITS.get(dtype or ir.DataType.FLOAT, 32)
    return BITS.get(ir.DataType(attribute(cast, "to", 0)), 0) < bits


def magnitude(array: Array) -> int:
    """The largest magnitude, rounded up, of a few numbers, except those that stand for "no end" or
    hide a score."""
    if array.size == 0 or array.dtype.kind not in "biuf":
        return 0
    numbers = array.astype(np.float64)
    counted = np.abs(numbers) < ENDLESS
    if array.dtype.kind == "f":
        counted &= numbers > MASKED
    return math.ceil(float(np.abs(numbers[counted]).max(initial=0)))


def _between(
    inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]
) -> tuple[list[ir.Node], list[ir.Value]]:
    """The nodes that compute the outputs from the inputs, in order, and their initializers."""
    known = set(inputs)
    constants: dict[ir.Value, None] = {}

    def edge(value: ir.Value) -> bool:
        node = value.producer()
        if value in known:
            return True
        if node is None:
            if not value.is_initializer():
                raise NoMatch(f"depends on '{value.name}' too")
            constants[value] = None
        elif node.domain == HOLDER_DOMAIN:
            raise NoMatch(f"'{node.name}' has a graph of its own")
        return node is None

    return nodes_above(outputs, edge=edge), list(constants)


def _widened(dtype: ir.DataType | None) -> ir.DataType:
    return ir.DataType.FLOAT if dtype is None or dtype in HALVES else dtype


def _given(value: ir.Value, stand_ins: Mapping[int, int]) -> onnx.TensorProto:
    tensor = value.const_value
    if tensor is None:
        raise NoMatch(f"depends on '{value.name}' too")
    proto = _tensor(tensor, stand_ins)
    proto.name = str(value.name)
    return proto


def _node(node: ir.Node, stand_ins: Mapping[int, int]) -> onnx.NodeProto:
    proto = ir.serde.serialize_node(node)
    number = constant(node.outputs[0]) if stand_ins and node.op_type == "Constant" else None
    if number is not None and number.size == 1:
        del proto.attribute[:]
        proto.attribute.append(onnx.helper.make_attribute("value", _tensor(number, stand_ins)))
    for attr in proto.attribute:
        if attr.type == onnx.AttributeProto.TENSOR and attr.t.data_type in HALVES:
            attr.t.CopyFrom(_tensor(ir.from_proto(attr.t), {}))
        elif proto.op_type == "Cast" and attr.name == "to" and attr.i in HALVES:
            attr.i = ir.DataType.FLOAT
    return proto


def _tensor(tensor: ir.TensorProtocol, stand_ins: Mapping[int, int]) -> onnx.TensorProto:
    """The tensor itself: a serialized model has no folder in which to find a tensor's file."""
    exchanged = bool(stand_ins) and tensor.size == 1
    if exchanged or tensor.dtype in HALVES or isinstance(tensor, ir.ExternalTensor):
        array = tensor.numpy()
        array = array.astype(np.float32) if tensor.dtype in HALVES else array
        tensor = ir.tensor(_exchanged(array, stand_ins) if exchanged else array)
    return ir.serde.serialize_tensor(tensor)


def _exchanged(array: Array, stand_ins: Mapping[int, int]) -> Array:
    stand_in = stand_ins.get(magnitude(array))
    if stand_in is None:
        return array
    number: Array = np.full_like(array, np.copysign(stand_in, array.astype(np.float64).item()))
    return number


def _failure(error: Exception) -> str:
    """ONNX Runtime's message about nodes that were run separately from their model."""
    line = str(error).strip().splitlines()[0]
    node = re.search(r"running (\w+) node\. Name:'([^']*)' Status Message: (.*)", line)
    if node is None:
        return f"it cannot be run apart from the model: {line}"
    kind, name, text = node.groups()
    text = re.sub(r"^\S+:\d+ .*?\) ", "", text)  # the place in ONNX Runtime's sources
    return f"it cannot be run apart from the model: {kind} '{name}' fails ({text})"
