"""RMS norms and tanh-Gelus that an exporter wrote out -> one node each.

Before: y = w * (x / sqrt(mean(x * x) + epsilon)), in whatever nodes, in whatever order
After:  y = SimplifiedLayerNormalization(x, w)
Before: y = 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x))), likewise
After:  y = com.microsoft.FastGelu(x)

The pass starts at the ReduceMean and the Tanh, runs the nodes around them on random rows and
compares the result with the formula. That is not a proof for an operator that acts on numbers that
no row contains, such as a Clip at 1e9; so only the formulas' operators are allowed. Later passes
fuse both into projections.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ort_aie_ep.graph_passes.base import put_in_place
from ort_aie_ep.graph_passes.subgraph import EPSILON, NoMatch, Part, narrows
from ort_aie_ep.graph_passes.walk import (
    Array,
    attribute,
    below,
    bottlenecks,
    constant_array,
    input_at,
)

# Nodes of the longest spelling, with a margin; anything larger is something else.
NORM_NODES = GELU_NODES = 12
NORM_OPERATORS = {
    "Add",
    "Cast",
    "Div",
    "Identity",
    "Mul",
    "Pow",
    "ReduceMean",
    "Reciprocal",
    "Sqrt",
}
GELU_OPERATORS = {"Add", "Div", "Identity", "Mul", "Pow", "Tanh"}
ROWS = 12
SEED = 1


def collapse_norms(model: ir.Model) -> None:
    """Replaces each RMS norm over the last dimension."""
    for mean in [node for node in model.graph if node.op_type == "ReduceMean"]:
        for product in below(mean, NORM_NODES):
            weight = _vector_operand(product)
            if weight is None:
                continue
            found = _norm(model, product.outputs[0], weight, mean)
            if found is not None:
                source, epsilon = found
                _replace(
                    model,
                    product,
                    "SimplifiedLayerNormalization",
                    [source, weight],
                    [
                        ir.AttrInt64("axis", -1),
                        ir.AttrFloat32("epsilon", epsilon),
                        ir.AttrInt64("stash_type", 1),
                    ],
                )
            break


def collapse_gelus(model: ir.Model) -> None:
    """Replaces each tanh-Gelu of float32, the only type that the CPU EP's FastGelu supports."""
    for tanh in [node for node in model.graph if node.op_type == "Tanh"]:
        for last in below(tanh, 3):
            source = _gelu_source(model, last.outputs[0])
            if source is not None:
                _replace(model, last, "FastGelu", [source], [], domain="com.microsoft")
                break


def _vector_operand(node: ir.Node) -> ir.Value | None:
    """The constant (N), N > 1, that a Mul multiplies by."""
    if node.op_type != "Mul":
        return None
    for value in node.inputs:
        array = constant_array(value)
        if array is not None and array.ndim == 1 and array.size > 1:
            return value
    return None


def _norm(
    model: ir.Model, result: ir.Value, weight: ir.Value, mean: ir.Node
) -> tuple[ir.Value, float] | None:
    """x and epsilon of the norm whose result is `result`, or None if it is not a norm."""
    users = mean.outputs[0].consumers()
    sums = [constant_array(v) for user in users if user.op_type == "Add" for v in user.inputs]
    epsilons = [float(array.reshape(-1)[0]) for array in sums if array is not None]
    w = constant_array(weight)
    if len(epsilons) != 1 or w is None or not attribute(mean, "keepdims", 1):
        return None
    rank = _rank_over_last_dimension(mean)
    if rank is None:
        return None
    rng = np.random.default_rng(SEED)
    # Rows of very different sizes, some of them so small that epsilon counts.
    rows = rng.standard_normal((*[2] * (rank - 2), ROWS, w.size))
    x = (rows * np.logspace(-6, 5, ROWS)[:, None]).astype(np.float32)
    root = np.sqrt(np.mean(np.square(x, dtype=np.float64), -1, keepdims=True) + epsilons[0])
    expected = w.astype(np.float64) * x / root
    # A mean of N terms and about eight roundings more.
    tolerance = (w.size + 8) * EPSILON * np.abs(expected)
    for source in bottlenecks(result, NORM_NODES):
        if _agrees(model, source, result, NORM_OPERATORS, weight.dtype, x, expected, tolerance):
            cast = source.producer()
            if cast is not None and cast.op_type == "Cast" and source.dtype != weight.dtype:
                widened = input_at(cast, 0)  # SimplifiedLayerNormalization widens by itself
                assert widened is not None
                source = widened
            return source, epsilons[0]
    return None


def _rank_over_last_dimension(mean: ir.Node) -> int | None:
    """The rank (3 if it is not known) of a ReduceMean's input, or None if it reduces anything but
    the last dimension."""
    source, given = mean.inputs[0], constant_array(input_at(mean, 1))
    listed = mean.attributes.get("axes")  # before opset 18
    axes = [] if given is None else given.reshape(-1).tolist()
    axes = axes if listed is None else list(listed.as_ints())
    rank = len(source.shape) if source is not None and source.shape is not None else None
    if axes != [-1] and (rank is None or axes != [rank - 1]):
        return None
    return 3 if rank is None else rank


def _gelu_source(model: ir.Model, result: ir.Value) -> ir.Value | None:
    rng = np.random.default_rng(SEED)
    rows = rng.standard_normal((1, ROWS, 32))
    x = (rows * np.logspace(-6, 5, ROWS)[:, None]).astype(np.float32)
    inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x.astype(np.float64) ** 3)
    expected = 0.5 * x * (1 + np.tanh(inner))
    # The tanh's argument carries four roundings and that of its constants; tanh's slope at t is at
    # most 1 and 4 exp(-2 |t|). Below, 1 + tanh cancels, which leaves an absolute error.
    slope = np.minimum(1, 4 * np.exp(-1.9 * np.abs(inner)))
    tolerance = 0.5 * np.abs(x) * (8 * EPSILON * (1 + slope * np.abs(inner)))
    for source in bottlenecks(result, GELU_NODES):
        # Only the Gelu itself: no earlier nodes, of which its input is a function.
        if source.dtype == ir.DataType.FLOAT and _agrees(
            model, source, result, GELU_OPERATORS, source.dtype, x, expected, tolerance
        ):
            return source
    return None


def _agrees(
    model: ir.Model,
    source: ir.Value,
    result: ir.Value,
    operators: set[str],
    narrowest: ir.DataType | None,
    x: Array,
    expected: Array,
    tolerance: Array,
) -> bool:
    """Whether result = formula(source), with only `operators`, and in no type with fewer numbers
    than the `narrowest`."""
    try:
        part = Part(model, [source], [result])
        made = {source}
        for node in part.nodes:
            if made.isdisjoint(node.inputs):
                continue
            made.update(node.outputs)
            known = not node.domain and node.op_type in operators
            if not known or (node.op_type == "Cast" and narrows(node, narrowest)):
                return False
        (actual,) = part.run({str(source.name): x})
    except NoMatch:
        return False
    return actual.shape == expected.shape and bool(np.all(np.abs(actual - expected) <= tolerance))


def _replace(
    model: ir.Model,
    last: ir.Node,
    op_type: str,
    inputs: list[ir.Value],
    attributes: list[ir.Attr],
    domain: str = "",
) -> None:
    """Replaces `last` with one node; nodes that only `last` needed are left without users."""
    put_in_place(last, ir.Node(domain, op_type, inputs, attributes, name=last.name, num_outputs=1))
    if domain:
        model.graph.opset_imports.setdefault(domain, 1)
