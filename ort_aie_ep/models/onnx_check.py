"""Checks that an ONNX file has a graph as the standard defines it, before anything uses it.

Tensors have a type, possible sizes and the data for them; each name is defined once; nodes have the
inputs, outputs and attributes that their operators' schemas require; nothing reads a value that
nothing defines, or its own result. Passes need not check again. ONNX Runtime itself reports what
only it knows: types and shapes that do not match.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from ort_aie_ep.errors import AieError
from ort_aie_ep.models import ryzen_ai

INT64 = 2**63 - 1
# A schema's maximum number of inputs or outputs if it allows any number.
_ANY = 2**31 - 1
# Values that an int32_data entry holds; each entry of other fields holds one.
_PER_INT32 = {4: 2, 2: 4}
_TYPED_DATA = {
    "float_data": ("FLOAT", "COMPLEX64"),
    "double_data": ("DOUBLE", "COMPLEX128"),
    "int64_data": ("INT64",),
    "uint64_data": ("UINT32", "UINT64"),
    "string_data": ("STRING",),
}
# The attribute's field for values that are messages. These may be missing; a missing number is 0.
_MESSAGES = {
    onnx.AttributeProto.TENSOR: "t",
    onnx.AttributeProto.GRAPH: "g",
    onnx.AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    onnx.AttributeProto.TYPE_PROTO: "tp",
}
_NAMED = {
    onnx.GraphProto: "graph",
    onnx.NodeProto: "node",
    onnx.TensorProto: "tensor",
    onnx.ValueInfoProto: "value",
    onnx.FunctionProto: "function",
}
_SINGLE = onnx.defs.OpSchema.FormalParameterOption.Single


@dataclass(frozen=True)
class _Operator:
    """How many inputs and outputs an operator takes, and which inputs may not be left empty."""

    inputs: range
    outputs: range
    required: Collection[int]
    attributes: dict[str, onnx.defs.OpSchema.Attribute] = field(default_factory=dict)


def _contributed(inputs: int, outputs: int, *required: int) -> _Operator:
    return _Operator(range(inputs, _ANY), range(outputs, _ANY), required or range(inputs))


# Operators without a schema in ONNX that passes and explanations examine. ONNX Runtime adds
# optional inputs to its own operators with each version, so there is no maximum.
_OTHERS = {
    ("", "SimplifiedLayerNormalization"): _contributed(2, 1),
    ("com.microsoft", "BiasGelu"): _contributed(2, 1),
    ("com.microsoft", "FastGelu"): _contributed(1, 1),
    ("com.microsoft", "GatherBlockQuantized"): _contributed(3, 1),
    ("com.microsoft", "Gelu"): _contributed(1, 1),
    ("com.microsoft", "GroupQueryAttention"): _contributed(7, 1, 0, 5, 6),
    ("com.microsoft", "MatMulNBits"): _contributed(3, 1),
    ("com.microsoft", "MultiHeadAttention"): _contributed(1, 1),
    ("com.microsoft", "QuickGelu"): _contributed(1, 1),
    ("com.microsoft", "RotaryEmbedding"): _contributed(4, 1),
    ("com.microsoft", "SkipLayerNormalization"): _contributed(3, 1),
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): _contributed(3, 1),
}
_ANYTHING = _contributed(0, 1)


def check_model(model: onnx.ModelProto, path: Path) -> bool:
    """Checks all graphs of a model; returns whether any has its nodes in the wrong order for ONNX.

    Raises:
        AieError: something is wrong; the message names the node or tensor.
    """
    if not model.graph.node:
        raise AieError(f"{path} has no graph: it is empty or not an ONNX model")
    _require_text(model, path.name, "")
    opsets: dict[str, int] = {}
    for opset in model.opset_import:
        domain = _domain(opset.domain)
        if domain in opsets or not 1 <= opset.version < _ANY:
            raise AieError(f"{path}: the opset '{opset.domain}' {opset.version} is not possible")
        opsets[domain] = opset.version
    if not opsets:
        raise AieError(f"{path} names no opset: it is damaged, or older than opsets")
    for function in model.functions:
        own = {_domain(opset.domain): opset.version for opset in function.opset_import}
        _Graph(path.name, own, f"function '{function.name}': ").check_function(function)
    graph = _Graph(path.name, opsets)
    graph.check(model.graph, set())
    return graph.unsorted


def _require_text(message: Any, model: str, within: str) -> None:
    """Checks that all strings are UTF-8: protobuf gives those that are not as bytes.

    `within` says which node or tensor has the message, and is empty at first.
    """
    if type(message) in _NAMED:
        own = message.name
        if not own and isinstance(message, onnx.NodeProto):
            own = next(iter(message.output), "")
        within = f"the {_NAMED[type(message)]} '{_escaped(own)}': "
    for each, value in message.ListFields():
        if each.message_type is not None:
            for inner in [value] if hasattr(value, "ListFields") else value:
                _require_text(inner, model, within)
        elif each.type == each.TYPE_STRING:
            for text in [value] if isinstance(value, str | bytes) else value:
                if isinstance(text, bytes):
                    raise AieError(
                        f"{model}: {within}its {each.name} '{_escaped(text)}' is not UTF-8: "
                        "rename it where the model is made"
                    )


def _escaped(text: str | bytes) -> str:
    return text if isinstance(text, str) else text.decode(errors="backslashreplace")


class _Graph:
    """The check of a graph and of the graphs inside it."""

    def __init__(self, model: str, opsets: dict[str, int], where: str = "") -> None:
        self._where = f"{model}: {where}"
        self._opsets = opsets
        self._operators: dict[tuple[str, str], _Operator] = {}
        self.unsorted = False

    def check(self, graph: onnx.GraphProto, outer: Collection[str]) -> set[str]:
        """Returns the names that it reads from the graphs around it, which define `outer`."""
        if graph.sparse_initializer:
            name = graph.sparse_initializer[0].values.name
            raise self._error(f"initializer '{name}' is sparse, which is not supported")
        inputs = [value.name for value in graph.input]
        self._once(inputs, "graph input")
        initializers = [tensor.name for tensor in graph.initializer]
        self._once(initializers, "initializer")
        for tensor in graph.initializer:
            self._tensor(tensor)
        known = {*inputs, *initializers}
        free = self._nodes(graph.node, known, outer)
        for value in graph.output:
            if value.name not in known and value.name not in outer:
                raise self._error(f"nothing defines the graph output '{value.name}'")
        return free

    def check_function(self, function: onnx.FunctionProto) -> None:
        self._once(list(function.input), "input")
        known = set(function.input)
        self._nodes(function.node, known, ())
        for name in function.output:
            if name not in known:
                raise self._error(f"nothing defines the output '{name}'")

    def _nodes(
        self, nodes: Iterable[onnx.NodeProto], known: set[str], outer: Collection[str]
    ) -> set[str]:
        """Adds the nodes' outputs to `known`; returns the names they read from outer graphs."""
        nodes = list(nodes)
        givers: dict[str, onnx.NodeProto] = {}
        for node in nodes:
            self._node(node)
            for name in filter(None, node.output):
                if name in known or name in givers:
                    by = f"by {_label(givers[name])}" if name in givers else "by the graph"
                    raise self._error(f"{_label(node)} defines '{name}', also defined {by}")
                givers[name] = node
        known.update(givers)
        reads: list[set[str]] = []
        free: set[str] = set()
        for node in nodes:
            names = set(filter(None, node.input))
            for graph in _graphs(node):
                names |= self.check(graph, {*known, *outer})
            for name in names - known:
                if name not in outer:
                    raise self._error(f"{_label(node)} reads '{name}', which nothing defines")
                free.add(name)
            reads.append({name for name in names if name in givers})
        self._order(nodes, reads)
        return free

    def _order(self, nodes: list[onnx.NodeProto], reads: list[set[str]]) -> None:
        """Raises AieError if nodes read each other's results in a cycle."""
        missing = [len(names) for names in reads]
        readers: dict[str, list[int]] = {}
        for index, names in enumerate(reads):
            for name in names:
                readers.setdefault(name, []).append(index)
        done: list[int] = []
        ready = [index for index, count in enumerate(missing) if not count]
        while ready:
            done.append(ready.pop())
            for name in nodes[done[-1]].output:
                for index in readers.pop(name, ()) if name else ():
                    missing[index] -= 1
                    if not missing[index]:
                        ready.append(index)
        if len(done) < len(nodes):
            stuck = next(node for node, count in zip(nodes, missing, strict=True) if count)
            raise self._error(f"{_label(stuck)} waits for its own result: the graph has a cycle")
        given: set[str] = set()
        for node, names in zip(nodes, reads, strict=True):
            self.unsorted |= not names <= given
            given.update(node.output)

    def _node(self, node: onnx.NodeProto) -> None:
        if not node.op_type:
            raise self._error(f"{_label(node)} has no operator")
        attributes: dict[str, onnx.AttributeProto] = {}
        for attribute in node.attribute:
            if not attribute.name or attribute.name in attributes:
                raise self._error(f"{_label(node)} has attribute '{attribute.name}' twice")
            attributes[attribute.name] = attribute
            self._attribute(node, attribute)
        if node.op_type == "Constant" and not _domain(node.domain) and len(attributes) != 1:
            raise self._error(
                f"{_label(node)} has {len(attributes)} attributes; a Constant has one, its value"
            )
        key = _domain(node.domain), node.op_type
        operator = self._operators.get(key)
        if operator is None:
            operator = self._operators[key] = self._operator(*key)
        for what, names, counts in (
            ("inputs", node.input, operator.inputs),
            ("outputs", node.output, operator.outputs),
        ):
            used = max((i + 1 for i, name in enumerate(names) if name), default=0)
            if used not in counts:
                most = f" to {counts[-1]}" if len(counts) > 1 else ""
                most = most if counts.stop < _ANY else " or more"
                raise self._error(
                    f"{_label(node)} has {used} {what}; {node.op_type} has {counts.start}{most}"
                )
        for index in operator.required:
            if index >= len(node.input) or not node.input[index]:
                raise self._error(f"{_label(node)} lacks input {index} of {node.op_type}")
        for name, schema in operator.attributes.items():
            given = attributes.get(name)
            if given is None:
                if schema.required:
                    raise self._error(f"{_label(node)} lacks attribute {name}")
            elif not given.ref_attr_name:
                wanted = str(schema.type).removeprefix("AttrType.")
                got = onnx.AttributeProto.AttributeType.Name(given.type)
                if got != wanted:
                    raise self._error(
                        f"{_label(node)}: attribute {name} must be {wanted}, got {got}"
                    )

    def _operator(self, domain: str, op_type: str) -> _Operator:
        if domain in ryzen_ai.DOMAINS:
            raise self._error(
                f"it has nodes {domain}.{op_type}, which only AMD's Ryzen AI Software runs: "
                f"{ryzen_ai.INSTEAD}"
            )
        if (domain, op_type) in _OTHERS:
            return _OTHERS[domain, op_type]
        schema = _schema(op_type, domain, self._opsets.get(domain, 1))
        if schema is None:
            return _ANYTHING
        # A variadic last parameter has at least as many inputs as min_input says, none left out.
        required = [
            i for i, formal in enumerate(schema.inputs[: schema.min_input])
            if formal.option == _SINGLE
        ]  # fmt: skip
        return _Operator(
            range(schema.min_input, schema.max_input + 1),
            range(max(schema.min_output, 1), schema.max_output + 1),
            required,
            schema.attributes,
        )

    def _attribute(self, node: onnx.NodeProto, attribute: onnx.AttributeProto) -> None:
        if attribute.ref_attr_name:
            return
        kinds = onnx.AttributeProto
        message = _MESSAGES.get(attribute.type)
        if attribute.type == kinds.UNDEFINED or (message and not attribute.HasField(message)):
            raise self._error(
                f"{_label(node)}: attribute {attribute.name} has no value of its type "
                f"{kinds.AttributeType.Name(attribute.type)}"
            )
        tensors = [attribute.t] if attribute.type == kinds.TENSOR else attribute.tensors
        for tensor in tensors:
            self._tensor(tensor, f"{_label(node)}: attribute {attribute.name}, ")

    def _tensor(self, tensor: onnx.TensorProto, place: str = "") -> None:
        what = f"{place}tensor '{tensor.name}'"
        try:
            dtype = ir.DataType(tensor.data_type)
        except ValueError:
            dtype = ir.DataType.UNDEFINED
        if dtype == ir.DataType.UNDEFINED:
            raise self._error(f"{what} has the type {tensor.data_type}, which ONNX does not have")
        dims = tuple(tensor.dims)
        size = math.prod(dims)
        if any(dim < 0 for dim in dims) or not 0 <= size <= INT64 // 16:
            raise self._error(f"{what} has the shape {dims}, which is not possible")
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            if dtype == ir.DataType.STRING:
                raise self._error(f"{what} has text in an external file, which ONNX does not allow")
            return
        name = f"{what}, {dtype.name} {dims},"
        if tensor.HasField("raw_data"):
            nbytes = -(-dtype.bitwidth * size // 8) if dtype != ir.DataType.STRING else -1
            if len(tensor.raw_data) != nbytes:
                needs = f"needs {nbytes}" if nbytes >= 0 else "has none"
                raise self._error(
                    f"{what} holds {len(tensor.raw_data)} bytes, but {dtype.name} {dims} {needs}"
                )
            return
        source = next((f for f, names in _TYPED_DATA.items() if dtype.name in names), "int32_data")
        found = len(getattr(tensor, source))
        if size and not found:
            raise self._error(
                f"{name} has no data: the graph was saved without its weights; export or download "
                "the model again with its weights"
            )
        entries = size
        if dtype.name.startswith("COMPLEX"):
            entries = 2 * size
        elif source == "int32_data":
            entries = -(-size // _PER_INT32.get(dtype.bitwidth, 1))
        if found != entries:
            raise self._error(f"{name} has {found} values in {source}; expected {entries}")

    def _once(self, names: Iterable[str], what: str) -> None:
        seen: set[str] = set()
        for name in names:
            if not name:
                raise self._error(f"{what} without a name")
            if name in seen:
                raise self._error(f"{what} '{name}' appears twice")
            seen.add(name)

    def _error(self, text: str) -> AieError:
        return AieError(f"{self._where}{text}")


def _schema(op_type: str, domain: str, version: int) -> onnx.defs.OpSchema | None:
    """An operator's schema; the newest one if the model's opset does not have the operator."""
    for known in (version, onnx.defs.onnx_opset_version()):
        try:
            return onnx.defs.get_schema(op_type, known, domain)
        except onnx.defs.SchemaError:
            continue
    return None


def _graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _label(node: onnx.NodeProto) -> str:
    if node.name:
        return f"node '{node.name}' ({node.op_type})"
    result = node.output[0] if node.output else ""
    return f"node '{node.op_type} -> {result}'"
