"""The type of the KV cache, asked for with `compile --kv`.

Before: past and present are of the activations' type (FLOAT as the builder writes models)
After:  past and present, inputs and outputs of the graph, are FLOAT16 or BFLOAT16

The one change of a model's interface; hosts take the type from the graph. FlowAttention reads and
writes a cache of any float type.
"""

from __future__ import annotations

import onnx_ir as ir

from ort_aie_ep.errors import AieError
from ort_aie_ep.graph_passes.attention.node import is_flow_attention, named_input
from ort_aie_ep.graph_passes.bodies import body_labels
from ort_aie_ep.graph_passes.walk import node_label

TYPES = {"f16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}


def set_cache_type(model: ir.Model, kv: str) -> None:
    """Gives each FlowAttention's past and present the type `kv` ("f16" or "bf16").

    Raises:
        AieError: `kv` is unknown, there is no FlowAttention, or one is in the body of an If, Loop
            or Scan, or a cache is used by other nodes too.
    """
    if kv not in TYPES:
        raise AieError(f"kv type {kv!r} is unknown; expected one of {', '.join(TYPES)}")
    nodes = [node for node in model.graph.all_nodes() if is_flow_attention(node)]
    if not nodes:
        raise AieError(f"kv type {kv}: no attention became aie.FlowAttention, which alone takes it")
    bodies = body_labels(model)
    for node in nodes:
        if node.graph is not model.graph:
            raise AieError(
                f"kv type {kv}: node '{node_label(node)}' is in the {bodies[node.name or '']}; the "
                "type of past and present can be changed in the main graph alone"
            )
        for name in ("past_key", "past_value"):
            past = named_input(node, name)
            if past is None or not past.is_graph_input() or len(_readers(past)) != 1:
                raise AieError(
                    f"kv type {kv}: the past of node '{node_label(node)}' is no graph input of its "
                    "own"
                )
            past.type = ir.TensorType(TYPES[kv])
        for present in node.outputs[1:3]:
            if not present.is_graph_output() or present.uses():
                raise AieError(
                    f"kv type {kv}: the present of node '{node_label(node)}' is no graph output of "
                    "its own"
                )
            present.type = ir.TensorType(TYPES[kv])


def _readers(value: ir.Value) -> list[ir.Node]:
    """The nodes that read a value's elements: optimum's exports take lengths from its shape."""
    return [node for node, _ in value.uses() if node.op_type != "Shape"]
