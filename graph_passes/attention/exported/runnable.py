"""A region in its own session, fed with seeded random inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ort_aie_ep.graph_passes.attention.exported.formula import Operands
from ort_aie_ep.graph_passes.attention.exported.operators import check_values
from ort_aie_ep.graph_passes.attention.exported.region import Region
from ort_aie_ep.graph_passes.attention.mask_reach import reach_of
from ort_aie_ep.graph_passes.base import ATTENTION_MASK, INPUT_IDS, POSITION_IDS
from ort_aie_ep.graph_passes.projection.width import projected_width
from ort_aie_ep.graph_passes.subgraph import MASKED, NoMatch, Part
from ort_aie_ep.graph_passes.walk import Array, before, given_inputs

SEED = 11
# A window is found by running one token after at least this many keys.
SHORTEST_KEYS = 258
POSITIONS = 40
# Operators whose inputs after the first are shapes and axes.
SHAPING = {"Expand", "Flatten", "Reshape", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"}


@dataclass(frozen=True)
class Probe:
    """Shapes, mask and data of one run: mask (batch, past + new), 0 hides.

    Rows of queries, keys and values are of a `form` (see `_rows`), times the factor of each.
    """

    name: str
    past: int
    new: int
    mask: npt.NDArray[np.int64]
    form: str = "normal"
    query: float = 1.0
    key: float = 1.0
    value: float = 1.0

    def __str__(self) -> str:
        return f"'{self.name}' (batch {len(self.mask)}, past {self.past}, new tokens {self.new})"


@dataclass(frozen=True)
class Outcome:
    """A region's inputs and results: output (batch, heads, new, size), presents (batch, kv heads,
    past + new, size), and the scores that the Softmax gets (batch, heads, new, keys)."""

    operands: Operands
    output: Array
    present_key: Array
    present_value: Array
    scores: Array


def _sparse(rows: Array) -> Array:
    return np.where(np.arange(rows.size).reshape(rows.shape) % 7 == 3, rows, 0)


# By form: normal random rows (n, head size) -> the rows that a probe feeds.
FORMS: dict[str, Callable[[Array], Array]] = {
    "normal": lambda rows: rows,
    "constant": lambda rows: np.broadcast_to(rows[:, :1], rows.shape),
    "one-hot": lambda rows: np.where(np.abs(rows) == np.abs(rows).max(1, keepdims=True), rows, 0),
    "sparse": _sparse,
    "ramp": lambda rows: rows[:, :1] * np.linspace(-1, 1, rows.shape[1]),
}


class RunnableRegion:
    """A region that can be run."""

    def __init__(self, model: ir.Model, region: Region) -> None:
        """Raises NoMatch if the region's shapes are not those of an attention."""
        self.region = region
        past, other = region.keys.past.shape, region.values.past.shape
        assert past is not None
        if past != other or not isinstance(past[1], int) or not isinstance(past[3], int):
            raise NoMatch(
                f"past key {past} and past value {other} must be alike, with fixed heads and head "
                "size"
            )
        self.kv_heads, self.size = past[1], past[3]
        width = projected_width(region.query) or 0
        self.heads, rest = divmod(width, self.size)
        self.heads -= 2 * self.kv_heads if region.packed else 0
        if rest or self.heads <= 0 or self.heads % self.kv_heads:
            raise NoMatch(
                f"a projection to {width} does not hold heads of {self.size} that "
                f"{self.kv_heads} key-value heads divide"
            )
        self.tables, factors = self._tables(model)
        check_values(region, self.tables)
        self.reach = reach_of(model, [*factors, *_beside_scores(region)])
        scores = region.softmax.inputs[0]
        assert scores is not None
        presents = region.keys.present, region.values.present
        self._model = model
        self._outputs = [region.output, *presents, scores, *self.tables]
        self._part = Part(model, region.inputs, self._outputs, self.reach.stand_ins)
        seen, self.longest = self.reach.show(
            SHORTEST_KEYS, lambda keys: self._seen(self._part, keys)
        )
        # The most keys that a token sees in the region as it is run, or -1 for all.
        self.window = -1 if seen == self.longest else seen
        self._check_biases(model, factors)

    def run(self, probe: Probe) -> Outcome:
        """The region's results on seeded inputs."""
        feeds = self._feeds(probe)
        output, present_key, present_value, scores, *tables = self._part.run(feeds)
        batch, new, keys = len(probe.mask), probe.new, probe.past + probe.new
        wide = (batch, self.heads, new, keys)
        flat = (batch, new, self.heads * self.size)
        if scores.size != np.prod(wide) or output.shape != flat:
            raise NoMatch(
                f"scores {scores.shape} and result {output.shape}, expected {wide} and {flat}"
            )
        operands = Operands(*self._split(feeds), *self._cos_sin(tables, probe), probe.mask)
        heads = output.reshape(batch, new, self.heads, self.size).swapaxes(1, 2)
        return Outcome(operands, heads, present_key, present_value, scores.reshape(wide))

    def true_window(self) -> int:
        """The window of the region as it stands.

        Raises:
            NoMatch: it is computed from large numbers.
        """

        def again(stand_ins: dict[int, int]) -> int:
            part = Part(self._model, self.region.inputs, self._outputs, stand_ins)
            return self._seen(part, self.longest)

        return self.window if self.window < 0 else self.reach.true_window(self.window, again)

    def _seen(self, part: Part, keys: int) -> int:
        """How many of `keys` the last token sees."""
        probe = Probe("window", keys - 1, 1, np.ones((1, keys), np.int64))
        found = part.run(self._feeds(probe))[3]
        if found.size != self.heads * keys:
            raise NoMatch(f"of {keys} keys, its scores are {found.shape}")
        return int((found.reshape(-1, keys)[0] > MASKED).sum())

    def _feeds(self, probe: Probe, positions: int = POSITIONS) -> dict[str, Array]:
        region, rng = self.region, np.random.default_rng(SEED)
        batch = len(probe.mask)
        feeds: dict[str, Array] = {}
        for value in region.inputs:
            array: Array
            if value in (region.keys.past, region.values.past):
                factor = probe.key if value is region.keys.past else probe.value
                shape = (batch, self.kv_heads, probe.past, self.size)
                array = self._rows(rng, probe, shape) * np.float32(factor)
            elif value in (region.query, region.key, region.value):
                width = projected_width(value) or 0
                array = self._rows(rng, probe, (batch, probe.new, width)) * self._factors(
                    value, probe
                )
            elif value.name == ATTENTION_MASK:
                array = probe.mask
            elif value.name == POSITION_IDS:
                # Unrelated to the mask, so that a mask computed from positions is noticed.
                array = rng.integers(0, positions, (batch, probe.new))
            elif value.name == INPUT_IDS:
                array = np.zeros((batch, probe.new), np.int64)
            elif value.is_graph_input():  # another layer's cache, of which the length is taken
                array = np.zeros((batch, self.kv_heads, probe.past, self.size), np.float32)
            else:  # hidden states, of which batch and length are taken
                array = np.zeros((batch, probe.new, self.size), np.float32)
            feeds[str(value.name)] = (
                array.astype(np.int32) if value.dtype == ir.DataType.INT32 else array
            )
        return feeds

    def _rows(self, rng: np.random.Generator, probe: Probe, shape: tuple[int, ...]) -> Array:
        """(…, heads · size): a row of the probe's form for each head."""
        rows = rng.standard_normal(shape, "f4").reshape(-1, self.size)
        return FORMS[probe.form](rows).astype(np.float32).reshape(shape)

    def _factors(self, projected: ir.Value, probe: Probe) -> Array:
        """The factor that a projection's results are multiplied by."""
        if self.region.packed:
            counts = np.array([self.heads, self.kv_heads, self.kv_heads]) * self.size
            factors = np.array([probe.query, probe.key, probe.value], np.float32)
            return np.repeat(factors, counts)
        of = {self.region.query: probe.query, self.region.key: probe.key}
        return np.array(of.get(projected, probe.value), np.float32)

    def _split(self, feeds: dict[str, Array]) -> tuple[Array, Array, Array, Array, Array]:
        region = self.region
        query, key, value, past_key, past_value = (
            feeds[str(v.name)]
            for v in (
                region.query,
                region.key,
                region.value,
                region.keys.past,
                region.values.past,
            )
        )
        if region.packed:
            at = [self.heads * self.size, (self.heads + self.kv_heads) * self.size]
            query, key, value = np.split(query, at, -1)
        q, k, v = (
            x.reshape(*x.shape[:2], -1, self.size).swapaxes(1, 2) for x in (query, key, value)
        )
        return q, k, v, past_key, past_value

    def _cos_sin(self, tables: list[Array], probe: Probe) -> tuple[Array | None, Array | None]:
        if not tables:
            return None, None
        cos, sin = (table.reshape(-1, table.shape[-1]) for table in tables)
        if cos.shape != sin.shape or len(cos) not in (probe.new, probe.new * len(probe.mask)):
            raise NoMatch(
                f"its rotation takes tables {tables[0].shape} and {tables[1].shape}, expected a "
                "row for each token or each position"
            )
        return cos, sin

    def _tables(self, model: ir.Model) -> tuple[tuple[ir.Value, ...], list[ir.Value]]:
        """The tables of cosines and of sines, or None if no element is rotated; and single numbers,
        which are factors of the scores."""
        tables = _computed_floats(self.region, cached=False)
        if not tables:
            return (), []
        part = Part(model, self.region.inputs, tables)
        several = Probe("several positions", 0, 3, np.ones((2, 3), np.int64))
        sizes = [array.size for array in part.run(self._feeds(several))]
        factors = [table for table, size in zip(tables, sizes, strict=True) if size == 1]
        # At position 0 the sine is zero and the cosine is not.
        first = Probe("first position", 0, 1, np.ones((1, 1), np.int64))
        at_zero = part.run(self._feeds(first, positions=1))
        found = [
            (table, not array.any())
            for table, array, size in zip(tables, at_zero, sizes, strict=True)
            if size > 1
        ]
        if not found:
            return (), factors
        if len(found) != 2 or found[0][1] == found[1][1]:
            names = ", ".join(f"'{table.name}'" for table, _ in found)
            raise NoMatch(f"query and key are combined with {names}, expected cosines and sines")
        return tuple(table for table, _ in sorted(found, key=lambda item: item[1])), factors

    def _check_biases(self, model: ir.Model, factors: list[ir.Value]) -> None:
        """Raises NoMatch if the scores meet any computed value except masks: a factor or bias that
        is 1 or 0 for the lengths of the probes might differ for other lengths."""
        biases = _computed_floats(self.region, cached=True)
        values = list(dict.fromkeys([*biases, *factors]))
        if not values:
            return
        part = Part(model, self.region.inputs, values, self.reach.stand_ins)

        def ran(name: str, past: int, mask: Array) -> list[Array]:
            return part.run(self._feeds(Probe(name, past, mask.shape[1] - past, mask)))

        padded = np.ones((2, 7), np.int64)
        padded[0, :2] = 0
        short, long = (
            ran("numbers", keys - 1, np.ones((1, keys), np.int64)) for keys in (1, self.longest)
        )
        numbers = set(factors)
        for arrays in (ran("biases", 3, padded), long):
            for value, array in zip(values, arrays, strict=True):
                if array.size == 1:
                    numbers.add(value)
                elif value in biases and not np.all((array == 0) | (array <= MASKED)):
                    raise NoMatch(
                        f"its scores are combined with '{value.name}', which is not a mask"
                    )
        # A factor of the scores may grow with the logarithm of the length.
        for value, first, last in zip(values, short, long, strict=True):
            if value in numbers and not np.array_equal(first, last):
                raise NoMatch(
                    f"its scores are combined with '{value.name}', which depends on the length"
                )


def _beside_scores(region: Region) -> Iterator[ir.Value]:
    """The other operands of nodes that read cached keys, scores or cached values, such as factors,
    masks and the beginnings of slices. Those of nodes that read the result hide no key."""
    made = region.origins()
    for node in region.nodes:
        inputs = given_inputs(node)
        of = frozenset[ir.Value]().union(*(made.get(value, frozenset()) for value in inputs))
        cached = region.keys.past in of or region.values.past in of
        result = region.values.past in of and region.query in of
        if node.op_type == "Shape" or node.op_type in SHAPING or not cached or result:
            continue
        yield from (value for value in inputs if not made.get(value))


def _computed_floats(region: Region, *, cached: bool) -> tuple[ir.Value, ...]:
    """The computed floats, independent of caches and projections, that meet the query or the key
    before (or, if `cached`, after) the key joins its cache."""
    made, varying = region.origins(), region.varying()
    pasts = {region.keys.past, region.values.past}
    floats: dict[ir.Value, None] = {}
    for node in region.nodes:
        inputs = given_inputs(node)
        of = frozenset[ir.Value]().union(*(made.get(value, frozenset()) for value in inputs))
        if node.op_type == "Shape" or not of or bool(of & pasts) != cached:
            continue
        for value in inputs:
            is_float = value.dtype is not None and value.dtype.is_floating_point()
            if is_float and value in varying and not made.get(value):
                floats[before(value, "Unsqueeze")] = None
    return tuple(floats)
