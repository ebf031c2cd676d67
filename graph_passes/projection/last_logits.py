"""Logits of the last position only, with `compile --last-logits`.

Before: logits (batch, sequence, vocabulary) = ... Mul(Tanh(Div(lm_head(hidden))))
After:  logits (batch, 1, vocabulary) = ... Mul(Tanh(Div(lm_head(GatherND(hidden, last)))))

A host that only generates, such as onnxruntime-genai, needs no other logits. The lm_head is the
largest projection, and while a prompt is read all but its last row are discarded.

Each batch row has its own `last`: the last of the call's tokens that attention_mask shows. Rows
that are padded on the right, as onnxruntime-genai's Tokenizer.encode_batch pads them, end earlier
than the others. If the source itself takes the row at -1 (prune_lm_head of the model builder), the
pass replaces -1 with `last`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir import tape
from onnx_ir.passes import common as common_passes

from ort_aie_ep.errors import AieError
from ort_aie_ep.graph_passes.base import DOMAIN, NONE
from ort_aie_ep.graph_passes.walk import (
    attribute,
    before,
    constant,
    constant_array,
    input_at,
    is_read,
    made_by,
    node_label,
    only_reader,
)

LOGITS, MASK = "logits", "attention_mask"
PREFIX = f"{LOGITS}.last"
# Each row of the result is that row of input 0 times a matrix.
PROJECTIONS = {
    (DOMAIN, "Q4NXMatMul"),
    (DOMAIN, "GEMM"),
    ("com.microsoft", "MatMulNBits"),
    ("", "MatMul"),
}
SKIP = 4  # input of aie projections that is added to input 0
# Each element of the result is computed from that element of one input, and from constants.
ELEMENTWISE = {"Add", "Cast", "Clip", "Div", "Identity", "Mul", "Neg", "Sub", "Tanh", "Where"}
# A matrix may pass through these before the node that multiplies by it.
UNMULTIPLIED = ("Transpose", "DequantizeLinear", "Cast", "Identity")
LENGTHS_OPS = {(DOMAIN, "FlowAttention"), ("com.microsoft", "GroupQueryAttention")}
SEQLENS_K = 5  # their input that gives each row's length
OPSET = 13  # Unsqueeze with axes as an input; ArgMax and GatherND as they are used here
ENDLESS = np.iinfo(np.int64).max


class _Unfit(Exception):
    """The message says why the graph has no place to choose a row."""


def keep_last_logits(model: ir.Model) -> None:
    """Lets the lm_head see only each batch row's last position.

    Raises:
        AieError: the graph has no output `logits` (batch, sequence, vocabulary), it is not computed
            by a projection followed by elementwise operators, or nothing says where a row ends.
    """
    try:
        logits, path = _path_from_projection(model)
        if len(logits.shape or ()) != 3:
            raise _Unfit(
                f"output '{LOGITS}' must be (batch, sequence, vocabulary), got {logits.shape}"
            )
        head = path[0]
        if not _mend(model, head):
            _choose(model, head, [0, SKIP] if head.domain == DOMAIN else [0])
    except _Unfit as unfit:
        raise AieError(f"last logits: {unfit}") from None
    for total in head.outputs[1:]:
        total.shape = None
    for node in path:
        value = node.outputs[0]
        if value.shape is not None:
            value.shape = ir.Shape([value.shape[0], 1, *value.shape[2:]])


def mend_pruned_logits(model: ir.Model) -> str:
    """Makes a graph that computes only the logits of position -1 compute those of each row's last
    token.

    Returns what was changed, or why it was not, for the user; empty for a graph that computes all
    logits.
    """
    try:
        head = _path_from_projection(model)[1][0]
    except _Unfit:
        return ""
    try:
        mended = _mend(model, head)
    except _Unfit as unfit:
        return (
            f"output '{LOGITS}' has position -1 only, and stays so: {unfit}. In a batch whose "
            "prompts are padded on the right, shorter ones get the logits of their padding"
        )
    if not mended:
        return ""
    return (
        f"output '{LOGITS}' had position -1 only (prune_lm_head); now it has each row's last token "
        f"in {MASK}, so that prompts may be padded on the right"
    )


def _mend(model: ir.Model, head: ir.Node) -> bool:
    """Gives the lm_head each row's last position instead of -1. Returns whether it had -1."""
    rows = head.inputs[0]
    assert rows is not None
    hidden = _source_of_row(rows)
    if hidden is None:
        return False
    index = _last_index(model, hidden)
    head.replace_input_with(0, _chosen(model, head, hidden, index, 0))
    common_passes.RemoveUnusedNodesPass()(model)
    return True


def _choose(model: ir.Model, head: ir.Node, positions: Sequence[int]) -> None:
    """Gives the lm_head each row's last position instead of all positions, in these inputs."""
    hidden = head.inputs[0]
    assert hidden is not None
    index = _last_index(model, hidden)
    for position in positions:
        rows = input_at(head, position)
        if rows is not None:
            head.replace_input_with(position, _chosen(model, head, rows, index, position))


def _path_from_projection(model: ir.Model) -> tuple[ir.Value, list[ir.Node]]:
    """The output logits, and the nodes that compute it: the lm_head, elementwise operators."""
    logits = next((output for output in model.graph.outputs if output.name == LOGITS), None)
    if logits is None:
        raise _Unfit(f"the graph has no output '{LOGITS}'")
    path: list[ir.Node] = []
    value = logits
    while True:
        node = value.producer()
        if node is None:
            raise _Unfit(f"no node computes '{value.name}'")
        path.insert(0, node)
        if value is not logits and only_reader(value) is None:
            raise _Unfit(f"all rows of '{value.name}' are used elsewhere")
        projection = (node.domain, node.op_type) in PROJECTIONS
        if not projection and (node.domain or node.op_type not in ELEMENTWISE):
            name = f"{node.domain}.{node.op_type}".lstrip(".")
            raise _Unfit(
                f"'{value.name}' is computed by '{node_label(node)}' ({name}), which is neither a "
                "projection nor an elementwise operator"
            )
        if any(map(is_read, node.outputs[1:])):
            raise _Unfit(f"all rows of '{node.outputs[1].name}' are used elsewhere")
        if projection:
            if node.op_type == "MatMul" and not _is_matrix(input_at(node, 1)):
                raise _Unfit(
                    f"'{node_label(node)}' (MatMul) does not multiply by a constant matrix"
                )
            return logits, path
        value = _elementwise_source(node)


def _elementwise_source(node: ir.Node) -> ir.Value:
    """The input that the rows of an elementwise operator come from."""
    found = None
    for value in node.inputs:
        if value is None or _same_for_all_rows(value):
            continue
        if found is not None:
            raise _Unfit(
                f"'{node_label(node)}' ({node.op_type}) has two inputs with rows: '{found.name}' "
                f"and '{value.name}'"
            )
        found = value
    if found is None:
        raise _Unfit(f"'{node_label(node)}' ({node.op_type}) reads only constants")
    return found


def _same_for_all_rows(value: ir.Value) -> bool:
    tensor = constant(value)
    return tensor is not None and all(dim == 1 for dim in tensor.shape.numpy()[:-1])


def _is_matrix(value: ir.Value | None) -> bool:
    """Whether it has two dimensions and is computed from constants: a Transpose, for example."""
    if value is None:
        return False
    tensor = constant(before(value, *UNMULTIPLIED, domains=("", "com.microsoft")))
    return tensor is not None and len(tensor.shape) == 2


def _source_of_row(rows: ir.Value) -> ir.Value | None:
    """hidden (batch, sequence, width) for any spelling of hidden[:, -1:]."""
    node = made_by(rows, "Gather", "Slice", "Unsqueeze")
    if node is None:
        return None
    source = input_at(node, 0)
    if node.op_type == "Unsqueeze":
        gather = made_by(source, "Gather")
        if gather is None or _numbers(input_at(node, 1)) != [1]:
            return None
        return _gathered_at_last(gather, rank=0)
    if node.op_type == "Slice":
        starts, ends, axes, steps = (_numbers(input_at(node, i)) for i in range(1, 5))
        at_end = ends is not None and len(ends) == 1 and ends[0] >= np.iinfo(np.int32).max
        fits = starts == [-1] and at_end and axes == [1] and steps in (None, [1])
        return source if fits else None
    return _gathered_at_last(node, rank=1)


def _gathered_at_last(node: ir.Node, rank: int) -> ir.Value | None:
    """The value of which a Gather takes position -1, with an index of `rank` dimensions."""
    if attribute(node, "axis", 0) != 1:
        return None
    index = constant_array(input_at(node, 1))
    return node.inputs[0] if index is not None and index.tolist() == [-1, [-1]][rank] else None


def _numbers(value: ir.Value | None) -> list[int] | None:
    array = constant_array(value)
    return None if array is None else [int(n) for n in array.reshape(-1)]


def _last_index(model: ir.Model, hidden: ir.Value) -> ir.Value:
    """(batch, 1, 1) int64: the row of `hidden` that is each batch row's last token.

    The call's tokens are the last ones of attention_mask. A row of which it shows no token gets the
    last position, like a row without padding.
    """
    graph = model.graph
    mask = next((value for value in graph.inputs if value.name == MASK), None)
    if mask is None or (mask.shape is not None and len(mask.shape) != 2):
        raise _Unfit(
            f"no graph input {MASK} (batch, tokens) says where the rows of a padded batch end"
        )
    version = graph.opset_imports.get("", 1)
    if version < OPSET:
        raise _Unfit(f"the model is of opset {version}, and its rows are chosen from {OPSET} on")
    new = tape.Tape()

    def number(name: str, *values: int) -> ir.Value:
        return new.initializer(ir.tensor(np.array(values, np.int64), name=f"{PREFIX}.{name}"))

    def op(name: str, op_type: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
        value = new.op(op_type, inputs, attributes, name=f"{PREFIX}/{name}")
        value.name = f"{PREFIX}.{name}"
        return value

    one, end = number("one", 1), number("end", ENDLESS)
    # From an input, if one has as many tokens: then the nodes up to `hidden` can be one region.
    sequence = op("sequence", "Gather", op("tokens_shape", "Shape", _like(graph, hidden)), one)
    tail = op("tail", "Slice", mask, op("start", "Neg", sequence), end, one)
    # ArgMax does not take bool, and some versions of ONNX Runtime's do not take int64.
    shown = op("shown", "Cast", tail, to=ir.DataType.BOOL)
    digits = op("digits", "Cast", shown, to=ir.DataType.INT32)
    last = op("index", "ArgMax", digits, axis=1, select_last_index=1)
    if any(_gives_lengths(node) for node in graph):
        # Attention by lengths allows padding only in a first prompt. After it, each row's past is
        # its length minus the call's tokens, and a mask may be longer than the tokens so far.
        total = op("total", "Gather", op("mask_shape", "Shape", mask), one)
        first = op("first_prompt", "Equal", sequence, total)
        last = op("row", "Where", first, last, op("unpadded", "Sub", sequence, one))
    index = op("indices", "Unsqueeze", last, one)
    index.type = ir.TensorType(ir.DataType.INT64)
    index.shape = ir.Shape([hidden.shape[0] if hidden.shape is not None else None, 1, 1])
    for value in new.initializers:
        graph.register_initializer(value)
    source = hidden.producer()
    if source is not None:
        graph.insert_after(source, new.nodes)
    else:
        graph.insert_before(graph[0], new.nodes)
    return index


def _like(graph: ir.Graph, hidden: ir.Value) -> ir.Value:
    """A graph input with as many batch rows and tokens as `hidden`, else `hidden`."""
    if hidden.shape is None:
        return hidden
    tokens = hidden.shape[:2]
    for value in graph.inputs:
        shape = value.shape
        if shape is None or len(shape) < 2 or shape[:2] != tokens:
            continue
        if not any(shape.is_unknown_dim(axis) for axis in (0, 1)):
            return value
    return hidden


def _gives_lengths(node: ir.Node) -> bool:
    if (node.domain, node.op_type) not in LENGTHS_OPS:
        return False
    lengths = input_at(node, SEQLENS_K)
    return lengths is not None and lengths.name != NONE


def _chosen(
    model: ir.Model, head: ir.Node, hidden: ir.Value, index: ir.Value, position: int
) -> ir.Value:
    """(batch, 1, width): the row `index` of each batch row of `hidden`."""
    gather = ir.Node(
        "",
        "GatherND",
        [hidden, index],
        [ir.AttrInt64("batch_dims", 1)],
        outputs=[ir.Value(name=f"{LOGITS}.hidden.{position}", type=hidden.type)],
        name=f"{head.name}/LastPosition_{position}",
    )
    model.graph.insert_before(head, gather)
    return gather.outputs[0]
