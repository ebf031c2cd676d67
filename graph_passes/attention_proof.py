"""What a region computes: read from it, then proved by running it.

`read_parameters` takes from the region what an attention may choose: norm weights, rotary layout,
scale, soft cap and window. `prove` then runs it on random inputs (batches with padding on the left,
on the right and with holes, several lengths of past and of new tokens) against the formula. What
differs by more than float rounding is no such attention, and the reason names the probe.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ort_aie_ep.graph_passes.attention_formula import (
    Operands,
    Parameters,
    Result,
    Rotary,
    attention,
)
from ort_aie_ep.graph_passes.attention_region import (
    ATTENTION_MASK,
    INPUT_IDS,
    POSITION_IDS,
    Region,
    projected_width,
)
from ort_aie_ep.graph_passes.base import attribute
from ort_aie_ep.graph_passes.subgraph import EPSILON, Array, NoMatch, Part, constant_array

SEED = 11
# A score below is masked: -inf, or the most negative number of a type, float16's -65504 among them.
MASKED = -1e4
# A window is found by running one token on a past that is longer than all numbers in the mask's
# computation. Numbers beyond LONGEST_WINDOW, for which that takes gigabytes, are exchanged for
# small ones, and the graph that is proved is the same with another number.
SHORTEST_PAST, LONGEST_WINDOW, SMALL_WINDOW = 256, 8192, 21
ENDLESS = np.iinfo(np.int32).max  # and above: ends of slices
# A fitted factor whose square is so near to 1/n is that: it is a product of a few float32.
SAME_SCALE = 16 * EPSILON
POSITIONS = 40


@dataclass(frozen=True)
class Probe:
    """Shapes and mask of one run: mask (batch, past + new), 0 hides."""

    name: str
    past: int
    new: int
    mask: npt.NDArray[np.int64]

    def __str__(self) -> str:
        return f"'{self.name}' (batch {len(self.mask)}, past {self.past}, new tokens {self.new})"


@dataclass(frozen=True)
class Outcome:
    """What a region was given and made: output (batch, heads, new, size), presents (batch, kv
    heads, past + new, size), and scores as the Softmax gets them (batch, heads, new, keys)."""

    operands: Operands
    output: Array
    present_key: Array
    present_value: Array
    scores: Array


class Laboratory:
    """A region that can be run."""

    def __init__(self, model: ir.Model, region: Region) -> None:
        """Raises NoMatch for a region whose shapes are not those of an attention."""
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
                f"a projection to {width} is no number of heads of {self.size} that "
                f"{self.kv_heads} key-value heads divide"
            )
        self.numbers = _mask_numbers(region)
        large = [n for n in self.numbers if n > LONGEST_WINDOW]
        self.stand_ins = {n: SMALL_WINDOW + i for i, n in enumerate(sorted(large))}
        self.tables = self._tables(model)
        scores = region.softmax.inputs[0]
        assert scores is not None
        outputs = [region.output, region.keys.present, region.values.present, scores]
        self._part = Part(model, region.inputs, [*outputs, *self.tables], self.stand_ins)
        self._scores = Part(model, region.inputs, [scores], self.stand_ins)

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

    def visible(self, past: int) -> int:
        """How many keys a token sees after `past` others."""
        probe = Probe("window", past, 1, np.ones((1, past + 1), np.int64))
        (scores,) = self._scores.run(self._feeds(probe))
        return int((scores.reshape(-1, past + 1)[0] > MASKED).sum())

    def _feeds(self, probe: Probe, positions: int = POSITIONS) -> dict[str, Array]:
        region, rng = self.region, np.random.default_rng(SEED)
        batch = len(probe.mask)
        feeds: dict[str, Array] = {}
        for value in region.inputs:
            if value in (region.keys.past, region.values.past):
                array = rng.standard_normal((batch, self.kv_heads, probe.past, self.size), "f4")
            elif value in (region.query, region.key, region.value):
                array = rng.standard_normal((batch, probe.new, projected_width(value) or 0), "f4")
            elif value.name == ATTENTION_MASK:
                array = probe.mask
            elif value.name == POSITION_IDS:
                # Of no relation to the mask, so that a mask made of positions shows.
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
                f"its rotation takes tables {tables[0].shape} and {tables[1].shape}, expected a row "
                "for each token or each position"
            )
        return cos, sin

    def _tables(self, model: ir.Model) -> tuple[ir.Value, ...]:
        """The tables of cosines and of sines, or nothing where no element is rotated."""
        tables = _rotary_tables(self.region)
        if not tables:
            return ()
        # At position 0 the sine is zero and the cosine is not; single numbers are factors.
        first = Probe("first position", 0, 1, np.ones((1, 1), np.int64))
        at_zero = Part(model, self.region.inputs, tables).run(self._feeds(first, positions=1))
        many = [(t, not array.any()) for t, array in zip(tables, at_zero, strict=True) if array.size > 1]
        if not many:
            return ()
        if len(many) != 2 or many[0][1] == many[1][1]:
            names = ", ".join(f"'{table.name}'" for table, _ in many)
            raise NoMatch(f"query and key are combined with {names}, expected cosines and sines")
        return tuple(table for table, _ in sorted(many, key=lambda item: item[1]))


def read_parameters(lab: Laboratory) -> Parameters:
    """What the region chose.

    Raises:
        NoMatch: it does something that aie.FlowAttention has no parameter for.
    """
    query_norm, key_norm, epsilon = _norms(lab.region, lab.size)
    plain = Parameters(
        heads=lab.heads,
        kv_heads=lab.kv_heads,
        size=lab.size,
        scale=1.0,
        softcap=_softcap(lab.region),
        window=-1,
        rotary=None,
        query_norm=query_norm,
        key_norm=key_norm,
        epsilon=epsilon,
        mask=next((v for v in lab.region.inputs if v.name == ATTENTION_MASK), None),
    )
    ran = lab.run(Probe("scores", 3, 5, np.ones((2, 8), np.int64)))
    choices = [replace(plain, rotary=rotary) for rotary in _layouts(lab, ran.operands)]
    fits = [_fit(choice, ran) for choice in choices]
    best = min(fits, key=lambda fit: fit.excess)
    if best.excess > 1:
        raise NoMatch(best.reason)
    return replace(best.parameters, window=_window(lab))


def prove(lab: Laboratory, parameters: Parameters) -> Parameters:
    """Compares the region with the formula; returns the parameters of the region as it stands.

    Raises:
        NoMatch: they differ for some probe.
    """
    for probe in _probes(parameters.window):
        if parameters.mask is None and not probe.mask.all():
            continue
        ran = lab.run(probe)
        expected = attention(parameters, ran.operands)
        # A token that sees no key, its own included, is one that no other token sees: what an
        # exporter makes of it is of no account.
        rows = np.broadcast_to(expected.visible.any(-1)[:, None], ran.output.shape[:3])
        for what, got, made, error in (
            ("present key", ran.present_key, expected.keys, expected.key_error),
            ("present value", ran.present_value, expected.values, 0.0),
            ("result", ran.output[rows], expected.output[rows], _bound(expected, rows)),
        ):
            if got.shape != made.shape:
                raise NoMatch(f"its {what} is {got.shape}, expected {made.shape}")
            over = ~(np.abs(got - made) <= error)  # true for NaN
            if over.any():
                raise NoMatch(
                    f"its {what} is not that of an attention with {parameters}: probe {probe} "
                    f"differs by {np.abs(got - made)[over].max():.2g}"
                )
    windows = {small: large for large, small in lab.stand_ins.items()}
    return replace(parameters, window=windows.get(parameters.window, parameters.window))


def _bound(expected: Result, rows: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    bound: npt.NDArray[np.float64] = np.broadcast_to(
        expected.output_error, expected.output.shape
    )[rows]
    return bound


def _probes(window: int) -> Iterator[Probe]:
    def padded(past: int, new: int, left: tuple[int, ...], right: tuple[int, ...]) -> Array:
        position = np.arange(past + new)
        first, end = np.array(left)[:, None], past + new - np.array(right)[:, None]
        return ((position >= first) & (position < end)).astype(np.int64)

    yield Probe("prompt", 0, 5, padded(0, 5, (0,), (0,)))
    yield Probe("left-padded prompts", 0, 6, padded(0, 6, (0, 2, 5), (0, 0, 0)))
    yield Probe("right-padded prompts", 0, 6, padded(0, 6, (0, 0), (0, 3)))
    yield Probe("next token", 9, 1, padded(9, 1, (0,), (0,)))
    yield Probe("next tokens of left-padded prompts", 7, 1, padded(7, 1, (0, 3, 6), (0, 0, 0)))
    yield Probe("second turn", 5, 4, padded(5, 4, (1, 0), (0, 0)))
    holes = np.random.default_rng(SEED).integers(0, 2, (3, 11))
    yield Probe("mask with holes", 4, 7, holes)
    if window > 0:
        yield Probe("past as long as the window", window, 3, padded(window, 3, (0, 2), (0, 0)))
        yield Probe("prompt beyond the window", 0, min(window, 64) + 3, padded(0, min(window, 64) + 3, (1,), (0,)))


@dataclass(frozen=True)
class _Fit:
    """Parameters with the scale that fits best, and by how many times the bound it misses."""

    parameters: Parameters
    excess: float
    reason: str


def _fit(parameters: Parameters, ran: Outcome) -> _Fit:
    """Finds the scale for which scores = softcap(scale · query · key)."""
    made = attention(parameters, ran.operands)
    seen = (ran.scores > MASKED) & made.visible[:, None]
    scores, dots = ran.scores.astype(np.float64), made.dots
    cap, linear = parameters.softcap, scores
    if cap:
        seen = seen & (np.abs(scores) < 0.9 * cap)  # beyond, the inverse multiplies errors
        linear = cap * np.arctanh(np.clip(scores / cap, -0.9, 0.9))
    if not seen.any():
        raise NoMatch("its scores show no key to the tokens that follow it")
    scale = float((linear * dots)[seen].sum() / np.square(dots[seen]).sum())
    n = 1 / scale**2 if scale else 0.0
    if n and abs(n - round(n)) <= 2 * SAME_SCALE * n:
        scale = float(np.copysign(round(n) ** -0.5, scale))
    expected = scale * dots
    if cap:
        expected = cap * np.tanh(expected / cap)
    # Scores of a unit's size are rounded some times more; a soft cap's slope is at most 1.
    bound = abs(scale) * made.dot_error + 8 * EPSILON * (np.abs(expected) + cap)
    off = np.where(seen, np.abs(np.where(seen, scores, 0) - expected), 0)
    ratio = off / np.where(seen, bound, 1)
    head = int(ratio.max((0, 2, 3)).argmax())
    reason = (
        f"its scores are not {scale:.6g} · query · key of {parameters.heads} heads: head {head} is "
        f"off by {off[:, head].max():.2g}"
    )
    return _Fit(replace(parameters, scale=scale), float(ratio.max()), reason)


def _layouts(lab: Laboratory, operands: Operands) -> list[Rotary | None]:
    """The ways in which the tables may turn a head."""
    cos, sin = operands.cos, operands.sin
    if cos is None or sin is None:
        return [None]
    columns = cos.shape[1]
    both = np.stack([cos, sin])
    half = columns // 2
    layouts: list[Rotary | None] = []
    if columns % 2 == 0 and np.array_equal(both[..., :half], both[..., half:]):
        layouts.append(Rotary(*lab.tables, slice(0, half, 1), False, columns))
    if columns % 2 == 0 and np.array_equal(both[..., ::2], both[..., 1::2]):
        layouts.append(Rotary(*lab.tables, slice(0, columns, 2), True, columns))
    if not layouts:
        whole = slice(0, columns, 1)
        layouts += [Rotary(*lab.tables, whole, way, 2 * columns) for way in (False, True)]
    fitting = [layout for layout in layouts if layout and layout.width <= lab.size]
    if not fitting:
        raise NoMatch(f"tables of {columns} angles rotate more than a head of {lab.size}")
    return [*fitting]


def _window(lab: Laboratory) -> int:
    """The number of keys that a token of the region as it is run sees at most, or -1 for all."""
    longest = max([SHORTEST_PAST, *lab.stand_ins.values(), *(lab.numbers - lab.stand_ins.keys())])
    seen = lab.visible(longest + 1)
    return -1 if seen == longest + 2 else seen


def _mask_numbers(region: Region) -> set[int]:
    """The integers in the computation of what is made of no projection and no cache."""
    made = region.origins()
    arrays = [
        constant_array(value)
        for node in region.nodes
        if not any(made.get(v) for v in node.inputs if v is not None)
        for value in node.inputs
    ]
    numbers = (abs(float(a.reshape(-1)[0])) for a in arrays if a is not None and a.size == 1)
    return {int(number) for number in numbers if number < ENDLESS}


def _norms(region: Region, size: int) -> tuple[ir.Value | None, ir.Value | None, float]:
    """The weights of query's and key's norm, and their epsilon."""
    key_nodes = _ancestors(region.keys.new)
    found = [n for n in region.nodes if n.op_type == "SimplifiedLayerNormalization"]
    keys = [node for node in found if node in key_nodes]
    queries = [node for node in found if node not in key_nodes]
    if len(keys) != len(queries) or len(keys) > 1:
        raise NoMatch(f"{len(queries)} norms of the query and {len(keys)} of the key")
    if not keys:
        return None, None, 0.0
    weights = [node.inputs[1] for node in (*queries, *keys)]
    for weight in weights:
        array = constant_array(weight)
        if array is None or array.shape != (size,):
            name = "none" if weight is None else f"'{weight.name}' {weight.shape}"
            raise NoMatch(f"the norm of query or key has the weight {name}, expected ({size})")
    epsilons = {attribute(node, "epsilon", 1e-5) for node in (*queries, *keys)}
    if len(epsilons) > 1:
        raise NoMatch(f"the norms of query and key add different epsilons: {sorted(epsilons)}")
    return weights[0], weights[1], epsilons.pop()


def _softcap(region: Region) -> float:
    """c of c · tanh(x / c) on the scores, or 0."""
    made = region.origins()
    for node in region.nodes:
        if node.op_type == "Tanh" and made[node.outputs[0]]:
            for user in node.outputs[0].consumers():
                factors = [constant_array(value) for value in user.inputs]
                scalars = [f for f in factors if f is not None and f.size == 1]
                if user.op_type == "Mul" and scalars:
                    return float(scalars[0].reshape(-1)[0])
    return 0.0


def _rotary_tables(region: Region) -> tuple[ir.Value, ...]:
    """The computed floats, made of no cache and no projection, that meet the query or the key."""
    made = region.origins()
    pasts = {region.keys.past, region.values.past}
    varying = set(region.inputs)
    tables: dict[ir.Value, None] = {}
    for node in region.nodes:
        inputs = [value for value in node.inputs if value is not None]
        if varying.intersection(inputs):
            varying.update(node.outputs)
        of = frozenset[ir.Value]().union(*(made.get(value, frozenset()) for value in inputs))
        if node.op_type == "Shape" or not of or of & pasts:
            continue
        for value in inputs:
            is_float = value.dtype is not None and value.dtype.is_floating_point()
            if is_float and value in varying and not made.get(value):
                tables[_unsqueezed(value)] = None
    return tuple(tables)


def _unsqueezed(value: ir.Value) -> ir.Value:
    node = value.producer()
    while node is not None and node.op_type == "Unsqueeze" and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return value


def _ancestors(value: ir.Value) -> set[ir.Node]:
    nodes: set[ir.Node] = set()
    stack = [value]
    while stack:
        node = stack.pop().producer()
        if node is not None and node not in nodes:
            nodes.add(node)
            stack += [source for source in node.inputs if source is not None]
    return nodes
