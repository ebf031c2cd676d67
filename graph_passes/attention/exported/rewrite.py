"""Attention that an exporter spelled out -> aie.FlowAttention.

Before: projections of query, key, value -> (norms) -> rotation -> Concat with the KV cache ->
        repetition of key-value heads -> scores, mask, Softmax -> product with the values
After:  FlowAttention(query, key, value, past_key, past_value, cos, sin, position_ids, norm
        weights, attention_mask), the Reshapes and Transposes around it gone

The export's own computation of cosines and sines remains, once for all layers, and gives
FlowAttention a row for each token. So every scaling of positions is exact, at any length.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir import tape
from onnx_ir.passes import common as common_passes

from ort_aie_ep.graph_passes.attention.exported.formula import Parameters, Rotary
from ort_aie_ep.graph_passes.attention.exported.operators import check_operators
from ort_aie_ep.graph_passes.attention.exported.proof import prove, read_parameters
from ort_aie_ep.graph_passes.attention.exported.region import Region, find_region
from ort_aie_ep.graph_passes.attention.exported.runnable import RunnableRegion
from ort_aie_ep.graph_passes.attention.node import (
    OP_TYPE,
    Angles,
    Layout,
    angle_inputs,
    flow_attention,
    why_not_flow_attention,
)
from ort_aie_ep.graph_passes.base import DOMAIN, Attribute, Report
from ort_aie_ep.graph_passes.subgraph import NoMatch
from ort_aie_ep.graph_passes.walk import is_op, node_label, type_name


def fuse_exported_attention(model: ir.Model, report: Report) -> bool:
    """Replaces each Softmax's attention that is proved to be one. Returns whether there was any."""
    softmaxes = [node for node in model.graph if is_op(node, "Softmax")]
    # The others are attention without a cache, for which another pass has a reason.
    softmaxes = [node for node in softmaxes if node_label(node) not in report.outcomes]
    angles: dict[tuple[object, ...], Angles] = {}
    nodes: dict[ir.Node, None] = {}
    for softmax in softmaxes:
        try:
            region = find_region(softmax)
            check_operators(region)
            runnable = RunnableRegion(model, region)
            parameters = prove(runnable, read_parameters(runnable))
            reason = _why_not(region, parameters)
        except NoMatch as error:
            reason = str(error)
        if reason:
            report.left(softmax, reason)
            continue
        _replace(region, parameters, angles)
        made = region.origins()
        nodes.update(dict.fromkeys(n for n in region.nodes if any(made[v] for v in n.outputs)))
    if not nodes:
        return False
    model.graph.sort()
    common_passes.RemoveUnusedNodesPass()(model)
    for node in nodes:
        if node.graph is None:
            report.fused(node, f"{DOMAIN}.{OP_TYPE}")
    return True


def _why_not(region: Region, parameters: Parameters) -> str:
    return why_not_flow_attention(
        Layout(parameters.heads, parameters.kv_heads, parameters.size),
        causal=1,
        window=parameters.window,
        type=type_name(region.output, region.query, region.keys.past),
        cache_type=type_name(region.keys.past),
    )


def _replace(
    region: Region, parameters: Parameters, angles: dict[tuple[object, ...], Angles]
) -> None:
    graph, rotary = region.softmax.graph, parameters.rotary
    assert isinstance(graph, ir.Graph)
    turned = angle_inputs(None if rotary is None else _angles(graph, region.query, rotary, angles))
    inputs: dict[str, ir.Value | None] = {
        "query": region.query,
        "key": None if region.packed else region.key,
        "value": None if region.packed else region.value,
        "cos_cache": turned["cos_cache"],
        "sin_cache": turned["sin_cache"],
        "q_norm_weight": parameters.query_norm,
        "k_norm_weight": parameters.key_norm,
    }
    activations = region.output.dtype or region.query.dtype
    inputs = {name: _of_type(graph, value, activations) for name, value in inputs.items()}
    inputs |= {
        "past_key": region.keys.past,
        "past_value": region.values.past,
        "position_ids": turned["position_ids"],
        "attention_mask": _of_type(graph, parameters.mask, ir.DataType.INT64),
    }
    attributes: dict[str, Attribute] = {
        "num_heads": parameters.heads,
        "kv_num_heads": parameters.kv_heads,
        "scale": parameters.scale,
        "softcap": parameters.softcap,
        "local_window_size": parameters.window,
        "do_rotary": int(rotary is not None),
        "rotary_interleaved": int(rotary is not None and rotary.interleaved),
        "causal": 1,
    }
    if parameters.query_norm is not None:
        attributes["qk_norm_epsilon"] = parameters.epsilon
    node = flow_attention(region.softmax, inputs, attributes)
    graph.append(node)  # sorted by the caller
    replaced = (region.output, region.keys.present, region.values.present)
    for old, new in zip(replaced, node.outputs, strict=True):
        new.type, new.shape = old.type, old.shape
        name, old.name = old.name, f"{old.name}.decomposed"
        new.name = name
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)


def _of_type(graph: ir.Graph, value: ir.Value | None, dtype: ir.DataType | None) -> ir.Value | None:
    """The value, cast if its type differs: half-precision exports compute attention, or parts of
    it, in float32."""
    if value is None or dtype is None or value.dtype in (None, dtype):
        return value
    name = f"{value.name}.{dtype.name.lower()}"
    cast = next((v for v in _casts(value) if v.name == name), None)
    if cast is not None:
        return cast
    node = ir.Node("", "Cast", [value], [ir.AttrInt64("to", dtype)], name=name, num_outputs=1)
    node.outputs[0].name = name
    node.outputs[0].type = ir.TensorType(dtype)
    graph.append(node)
    return node.outputs[0]


def _casts(value: ir.Value) -> list[ir.Value]:
    return [user.outputs[0] for user in value.consumers() if user.op_type == "Cast"]


def _angles(
    graph: ir.Graph,
    query: ir.Value,
    rotary: Rotary,
    known: dict[tuple[object, ...], Angles],
) -> Angles:
    """cos, sin (rows, width / 2) and the row of each token (batch, sequence), made once."""
    columns = (rotary.columns.start, rotary.columns.stop, rotary.columns.step)
    key = (rotary.cos, rotary.sin, columns)
    if key in known:
        return known[key]
    new = tape.Tape(graph)
    prefix = f"{rotary.cos.name}.angles"

    def constant(name: str, *numbers: int) -> ir.Value:
        return new.initializer(ir.tensor(np.array(numbers, np.int64), name=f"{prefix}.{name}"))

    def op(name: str, op_type: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
        value = new.op(op_type, inputs, attributes, name=f"{prefix}.{name}")
        value.name = f"{prefix}.{name}"
        return value

    start, stop, step = (constant(f"columns.{i}", number) for i, number in enumerate(columns))
    last, flat = constant("last", -1), constant("flat", -1, rotary.width // 2)
    cos, sin = (
        op(name, "Reshape", op(f"{name}.half", "Slice", table, start, stop, last, step), flat)
        for name, table in (("cos", rotary.cos), ("sin", rotary.sin))
    )
    cos.type, sin.type = rotary.cos.type, rotary.sin.type
    zero, one, two = (constant(name, i) for i, name in enumerate(("zero", "one", "two")))
    tokens = op("tokens", "Shape", query)
    shape = op("shape", "Slice", tokens, zero, two)  # batch, sequence
    length = op("length", "Slice", tokens, one, two)
    rows = op("rows", "Slice", op("table", "Shape", cos), zero, one)
    numbers = op("numbers", "Range", *(op(f"{v.name}.0d", "Squeeze", v) for v in (zero, rows, one)))
    # A row for each token, or for each position where all of the batch share them.
    each = op("each", "Reshape", numbers, op("each.shape", "Concat", last, length, axis=0))
    known[key] = Angles(cos, sin, op("position_ids", "Expand", each, shape))
    return known[key]
