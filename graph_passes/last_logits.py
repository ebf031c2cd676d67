"""Logits of the last position only, asked for with `compile --last-logits`.

Before: logits (batch, sequence, vocabulary) = lm_head(hidden)
After:  logits (batch, 1, vocabulary) = lm_head(Gather(hidden, [-1], axis=1))

What a host needs that only generates, onnxruntime-genai among them. The lm_head is the largest
projection, and all but its last row are thrown away while a prompt is read.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ort_aie_ep.errors import AieError
from ort_aie_ep.graph_passes.base import DOMAIN

LOGITS = "logits"
HEADS = ("Q4NXMatMul", "GEMM")
SKIP = 4  # input of Q4NXMatMul that is added to A


def keep_last_logits(model: ir.Model) -> None:
    """Lets the lm_head see the last position alone.

    Raises:
        AieError: the graph has no output `logits` (batch, sequence, vocabulary) that an
            aie.Q4NXMatMul or aie.GEMM computes.
    """
    graph = model.graph
    logits = next((output for output in graph.outputs if output.name == LOGITS), None)
    head = logits.producer() if logits is not None else None
    if logits is None or head is None or head.domain != DOMAIN or head.op_type not in HEADS:
        raise AieError(f"last logits: output '{LOGITS}' is not computed by an aie projection")
    if logits.shape is None or len(logits.shape) != 3:
        raise AieError(
            f"last logits: output '{LOGITS}' must be (batch, sequence, vocabulary), "
            f"got {logits.shape}"
        )
    if any(value.uses() or value.is_graph_output() for value in head.outputs[1:]):
        raise AieError(f"last logits: all rows of '{head.outputs[1].name}' are used elsewhere")
    last = ir.Value(
        name=f"{LOGITS}.last",
        type=ir.TensorType(ir.DataType.INT64),
        shape=ir.Shape([1]),
        const_value=ir.tensor(np.array([-1], np.int64), name=f"{LOGITS}.last"),
    )
    graph.register_initializer(last)
    for index in (0, SKIP):
        hidden = head.inputs[index] if index < len(head.inputs) else None
        if hidden is None:
            continue
        gather = ir.Node(
            "",
            "Gather",
            [hidden, last],
            [ir.AttrInt64("axis", 1)],
            outputs=[ir.Value(name=f"{LOGITS}.hidden.{index}", type=hidden.type)],
            name=f"{head.name}/LastPosition_{index}",
        )
        graph.insert_before(head, gather)
        head.replace_input_with(index, gather.outputs[0])
    for total in head.outputs[1:]:
        total.shape = None
    logits.shape = ir.Shape([logits.shape[0], 1, logits.shape[2]])
