"""How far the numbers in a mask's computation reach: how long a past must be to show any window.

A window of w keys has no effect while there are fewer keys. A run finds the window; the graph says
how long that run must be: offsets add up along Add, Sub, Slice and comparisons, and multiply along
other operators. A constant table contains its window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ort_aie_ep.graph_passes.subgraph import NoMatch, Part, magnitude
from ort_aie_ep.graph_passes.walk import (
    OF_LENGTHS,
    Array,
    constant,
    constant_array,
    given_inputs,
    nodes_above,
    value_inputs,
)

# Longer runs take gigabytes. Small numbers replace larger ones: the graph is otherwise the same.
LONGEST_WINDOW, SMALL_WINDOW = 8192, 21
SHIFT = 7  # of a stand-in, to see whether a window is that number
# Constants of more elements are tables.
MOST_NUMBERS = 16
# Operators whose result depends only on the first input, those for which the farthest input counts,
# and those along which offsets add up.
PASSING = {
    "Cast", "CumSum", "Expand", "Flatten", "Identity", "Neg", "Not", "ReduceMax", "ReduceMin",
    "ReduceSum", "Reshape", "Squeeze", "Tile", "Transpose", "Unsqueeze",
}  # fmt: skip
FARTHEST = {"And", "Concat", "Max", "Min", "Or", "Where", "Xor"}
ADDING = {
    "Add", "Equal", "EyeLike", "Gather", "GatherND", "Greater", "GreaterOrEqual", "Less",
    "LessOrEqual", "Mod", "Pad", "Range", "Slice", "Sub", "Sum", "Trilu",
}  # fmt: skip
OFFSETS = ("k", "starts", "ends", "pads")  # attributes that some of them have


@dataclass(frozen=True)
class _Far:
    """How many keys away a value acts, and how many keys one step of it stands for: 64 after a
    division by 64. A constant takes the step of the value it meets."""

    keys: int
    step: int = 1
    fixed: bool = False


@dataclass(frozen=True)
class Reach:
    """Facts about the computation of a mask.

    Attributes:
        keys: a window has at most this many keys.
        stand_ins: constants that are too large, and the numbers that replace them in a run.
        limit: no more keys fit into its tables.
    """

    keys: int
    stand_ins: dict[int, int]
    limit: int | None

    def show(self, least: int, run: Callable[[int], int]) -> tuple[int, int]:
        """(keys that a token sees, keys in the run); the run has enough keys for any window.

        `run` takes the number of keys, and counts those that are seen. It raises NoMatch for more
        keys than the tables of the graph have room for; only these may keep a run below `least`.
        """
        keys = max(least, self.keys + 2)
        try:
            return run(keys), keys
        except NoMatch:
            if self.limit is None or self.limit >= keys:
                raise
        return run(self.limit), self.limit

    def true_window(self, seen: int, again: Callable[[dict[int, int]], int]) -> int:
        """The window of the model, where a run with `stand_ins` has the window `seen`.

        `again` counts with other stand-ins.

        Raises:
            NoMatch: it is computed from large numbers.
        """
        if not self.stand_ins:
            return seen
        shifts = {n: SHIFT * (i + 1) for i, n in enumerate(self.stand_ins)}
        other = again({n: small + shifts[n] for n, small in self.stand_ins.items()})
        if other == seen:
            return seen
        for number, small in self.stand_ins.items():
            if (seen, other) == (small, small + shifts[number]):
                return number
        raise NoMatch(f"its window is computed from {', '.join(map(str, self.stand_ins))}")


def reach_of(model: ir.Model, values: Iterable[ir.Value]) -> Reach:
    """The reach of masks.

    Raises:
        NoMatch: it is beyond LONGEST_WINDOW, or a table is neither causal order nor a window.
    """
    targets = list(values)
    nodes = nodes_above(targets, edge=lambda v: constant(v) is not None, inputs=value_inputs)
    constants = _constants(nodes, targets)
    large = {magnitude(array) for array in constants.values() if array.size == 1}
    large = {number for number in large if number > LONGEST_WINDOW}
    stand_ins = {number: SMALL_WINDOW + i for i, number in enumerate(sorted(large))}
    limits: list[int] = []
    far: dict[ir.Value, _Far] = {}
    for value, array in (*constants.items(), *_computed(model, nodes, constants).items()):
        number = magnitude(array) if array.size <= MOST_NUMBERS else _table(value, array, limits)
        if array.size == 1 and value in constants:
            number = stand_ins.get(number, number)
        far[value] = _Far(number, fixed=True)
    for node in nodes:
        if not far.keys() >= set(node.outputs):
            far.update(dict.fromkeys(node.outputs, _combined(node, far)))
    keys = max((far[value].keys for value in targets if value in far), default=0)
    if keys > LONGEST_WINDOW:
        raise NoMatch(f"its mask is made with numbers that reach {keys} keys away")
    return Reach(keys, stand_ins, min(limits, default=None))


def _constants(nodes: list[ir.Node], targets: list[ir.Value]) -> dict[ir.Value, Array]:
    values = [value for node in nodes for value in value_inputs(node)]
    arrays = {value: constant_array(value) for value in (*values, *targets)}
    return {value: array for value, array in arrays.items() if array is not None}


def _computed(
    model: ir.Model, nodes: list[ir.Node], constants: dict[ir.Value, Array]
) -> dict[ir.Value, Array]:
    """The values that nodes compute from constants only."""
    found: list[ir.Value] = []
    known = set(constants)
    for node in nodes:
        if node.op_type not in OF_LENGTHS and known.issuperset(given_inputs(node)):
            known.update(node.outputs)
            found += [value for value in node.outputs if value.uses()]
    return dict(zip(found, Part(model, [], found).run({}), strict=True)) if found else {}


def _combined(node: ir.Node, far: dict[ir.Value, _Far]) -> _Far:
    """The result of a node, given its inputs."""
    inputs = [far.get(value, _Far(0)) for value in node.inputs if value is not None]
    if node.op_type == "ConstantOfShape":
        fill = node.attributes.get("value")
        return _Far(0 if fill is None else magnitude(fill.as_tensor().numpy()), fixed=True)
    if node.op_type in OF_LENGTHS or not inputs:
        return _Far(0)
    if node.op_type in PASSING:
        return inputs[0]
    step = max(value.step for value in inputs)
    keys = [value.keys * (step if value.fixed else 1) for value in inputs]
    fixed = all(value.fixed for value in inputs)
    if node.op_type in FARTHEST:
        return _Far(max(keys), step, fixed)
    if node.op_type in ADDING:
        given = (node.attributes[name] for name in OFFSETS if name in node.attributes)
        more = sum(magnitude(np.asarray(attr.value)) for attr in given)
        return _Far(sum(keys) + step * more + (step - 1), step, fixed)
    # A factor or a divisor, in any form.
    factor = math.prod(max(1, value.keys) for value in inputs if value.fixed)
    varying = [value.keys for value in inputs if not value.fixed]
    return _Far(factor * math.prod(max(1, n) for n in varying), step * factor, fixed)


def _table(value: ir.Value, array: Array, limits: list[int]) -> int:
    """The window that a table holds (0: none); notes how many keys fit into it."""
    limits.append(max(array.shape))
    flat = array.reshape(-1)
    if (flat == flat[0]).all():
        return magnitude(flat[:1])
    if array.dtype.kind in "iuf" and flat.size == array.shape[-1] and (np.diff(flat) == 1).all():
        return magnitude(flat[:1])  # positions
    window = _window(array)
    if window is None:
        raise NoMatch(
            f"its mask reads the table '{value.name}' {array.shape}, which is neither causal order "
            "nor a window (an ALiBi table is neither)"
        )
    return window


def _window(table: Array) -> int | None:
    """The most keys that a table (…, T, T) lets a query see, 0 for all of them, or None if the
    table encodes something else."""
    *rest, rows, columns = 1, *table.shape
    if rows != columns or set(rest) != {1}:
        return None
    distance = np.arange(rows)[:, None] - np.arange(rows)
    for shown in (table.reshape(rows, rows) != 0, table.reshape(rows, rows) == 0):
        seen = int(shown[-1].sum())
        if np.array_equal(shown, (distance >= 0) & (distance < seen)):
            return seen if seen < rows else 0
    return None
