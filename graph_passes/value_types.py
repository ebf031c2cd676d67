"""Types of values that a model file omits, and nodes that change nothing.

Before: values without a type; Cast(x, to=the type that x has); Identity(initializer)
After:  every value has the type that its operator's schema gives it; such nodes are gone, and so
        are nodes whose results nothing reads

optimum's exports carry types only for their inputs and outputs, and share equal tensors through
Identity.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir

from ort_aie_ep.graph_passes.walk import graph_attributes, is_read

# Operators without a schema in ONNX: the input whose type their outputs have.
LIKE_INPUT = {
    ("com.microsoft", "MatMulNBits"): 0,
    ("", "SimplifiedLayerNormalization"): 1,
    ("aie", "Q4NXMatMul"): 0,
}
TENSOR_TYPES = {
    f"tensor({name})": dtype
    for name, dtype in {
        "bool": ir.DataType.BOOL,
        "int64": ir.DataType.INT64,
        "int32": ir.DataType.INT32,
        "float": ir.DataType.FLOAT,
    }.items()
}


# Outputs of a body that the node does not give: whether a loop goes on.
BODY_OUTPUTS_BEFORE = {"If": 0, "Loop": 1, "Scan": 0}


def infer_types(model: ir.Model) -> None:
    """Gives a type to each value, of bodies too, whose type follows from its inputs."""
    _infer_types(model.graph, model.graph.opset_imports)


def _infer_types(graph: ir.Graph, opsets: dict[str, int]) -> None:
    for value in graph.initializers.values():
        if value.dtype is None and value.const_value is not None:
            value.type = ir.TensorType(value.const_value.dtype)
    for node in graph:
        bodies = [attr.as_graph() for attr in graph_attributes(node)]
        for body in bodies:
            _infer_types(body, opsets)
        for index, value in enumerate(node.outputs):
            if value.dtype is None:
                dtype = (
                    _body_type(node, index, bodies[0])
                    if bodies
                    else _output_type(node, index, opsets)
                )
                value.type = None if dtype is None else ir.TensorType(dtype)


def remove_unread_nodes(model: ir.Model) -> None:
    """Removes nodes whose results nothing reads: there is nothing to replace or to report."""
    for node in reversed(list(model.graph)):
        if not any(map(is_read, node.outputs)):
            model.graph.remove(node, safe=True)


def remove_idle_nodes(model: ir.Model) -> None:
    """Removes casts to the type that a value has already, and identities of initializers."""
    for node in list(model.graph):
        if node.domain or node.op_type not in ("Cast", "Identity") or node.inputs[0] is None:
            continue
        source, result = node.inputs[0], node.outputs[0]
        if node.op_type == "Identity" and not source.is_initializer():
            continue
        if node.op_type == "Cast" and (source.dtype is None or source.dtype != result.dtype):
            continue
        if result.is_graph_output():
            if source.is_graph_output() or source.producer() is None:
                continue  # one value cannot have two names
            name, result.name = result.name, None
            source.name, source.shape = name, result.shape
        ir.convenience.replace_all_uses_with(result, source, replace_graph_outputs=True)
        model.graph.remove(node, safe=True)


def _body_type(node: ir.Node, index: int, body: ir.Graph) -> ir.DataType | None:
    """The type of an output of If, Loop or Scan: its elements are those of the body's output."""
    before = None if node.domain else BODY_OUTPUTS_BEFORE.get(node.op_type)
    if before is None or before + index >= len(body.outputs):
        return None
    result = body.outputs[before + index]
    return result.dtype if result is not None and isinstance(result.type, ir.TensorType) else None


def _output_type(node: ir.Node, index: int, opsets: dict[str, int]) -> ir.DataType | None:
    like = LIKE_INPUT.get((node.domain, node.op_type))
    if like is not None:
        source = node.inputs[like]
        return source.dtype if source is not None else None
    if node.op_type == "Cast" and not node.domain:
        return ir.DataType(node.attributes["to"].as_int())
    if node.op_type == "Constant" and not node.domain:
        tensor = ir.convenience.get_const_tensor(node.outputs[0])
        return None if tensor is None else tensor.dtype
    if node.op_type == "ConstantOfShape" and not node.domain:
        fill = node.attributes.get("value")
        return ir.DataType.FLOAT if fill is None else ir.DataType(fill.as_tensor().dtype)
    try:
        schema = onnx.defs.get_schema(node.op_type, opsets.get(node.domain, 1), node.domain)
    except onnx.defs.SchemaError:
        return None
    output = schema.outputs[min(index, len(schema.outputs) - 1)]
    variadic = output.option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    if variadic and not output.is_homogeneous:
        return None  # each has a type of its own, as Loop's have
    name = output.type_str
    if name in TENSOR_TYPES:
        return TENSOR_TYPES[name]
    for position, value in enumerate(node.inputs):
        formal = schema.inputs[min(position, len(schema.inputs) - 1)]
        if formal.type_str == name and value is not None and value.dtype is not None:
            return value.dtype
    allowed = [c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == name]
    single = len(allowed) == 1 and len(allowed[0]) == 1
    return TENSOR_TYPES.get(next(iter(allowed[0]))) if single else None
