"""What a region computes: read from the region, then proved by running it.

`read_parameters` reads the choices of an attention from the region: norm weights, rotary layout,
scale, soft cap and window. `prove` then compares it with the formula on random inputs (batches with
padding on the left, on the right and with holes, several lengths of past and of new tokens). If
they differ by more than float rounding, the region is not such an attention, and the reason names
the probe.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ort_aie_ep.graph_passes.attention.exported.formula import (
    Operands,
    Parameters,
    Result,
    Rotary,
    attention,
)
from ort_aie_ep.graph_passes.attention.exported.region import Region
from ort_aie_ep.graph_passes.attention.exported.runnable import (
    FORMS,
    SEED,
    Outcome,
    Probe,
    RunnableRegion,
)
from ort_aie_ep.graph_passes.base import ATTENTION_MASK
from ort_aie_ep.graph_passes.projection.norm import NORMS
from ort_aie_ep.graph_passes.subgraph import EPSILON, MASKED, NoMatch
from ort_aie_ep.graph_passes.walk import (
    Array,
    above,
    attribute,
    constant_array,
    node_label,
    producer,
)

IN_ORDER = "expected all queries, then all keys, then all values"
SIDE_BY_SIDE = (
    f"its projection has query, key and value of each key-value head side by side; {IN_ORDER}"
)
OTHER_ORDER = f"its projection has query, key and value in another order; {IN_ORDER}"
# A fitted scale whose square is this near to 1/n, relatively, is 1/sqrt(n): exporters compute that
# by a few roundings to float32.
SAME_SCALE = 16 * EPSILON


def read_parameters(runnable: RunnableRegion) -> Parameters:
    """The parameters that the region chose.

    Raises:
        NoMatch: it does something that aie.FlowAttention has no parameter for.
    """
    query_norm, key_norm, epsilon = _norms(runnable)
    plain = Parameters(
        heads=runnable.heads,
        kv_heads=runnable.kv_heads,
        size=runnable.size,
        scale=1.0,
        softcap=_softcap(runnable.region),
        window=-1,
        rotary=None,
        query_norm=query_norm,
        key_norm=key_norm,
        epsilon=epsilon,
        mask=next((v for v in runnable.region.inputs if v.name == ATTENTION_MASK), None),
    )
    ran = runnable.run(Probe("scores", 3, 5, np.ones((2, 8), np.int64)))
    choices = [replace(plain, rotary=rotary) for rotary in _layouts(runnable, ran.operands)]
    fits = [_fit(choice, ran) for choice in choices]
    best = min(fits, key=lambda fit: fit.excess)
    if best.excess > 1:
        raise NoMatch(_other_order(runnable, ran) or best.reason)
    return replace(best.parameters, window=runnable.window)


def prove(runnable: RunnableRegion, parameters: Parameters) -> Parameters:
    """Compares the region with the formula; returns the parameters of the region as it stands.

    Raises:
        NoMatch: they differ for some probe.
    """
    for probe in _probes(parameters.window, runnable.longest):
        if parameters.mask is None and not probe.mask.all():
            continue
        ran = runnable.run(probe)
        expected = attention(parameters, ran.operands)
        # A token that sees no key, not even its own, is padding, which no other token sees: what an
        # exporter computes for it does not matter.
        sees: Array = np.asarray(expected.visible.any(-1))
        rows = np.broadcast_to(sees[:, None], ran.output.shape[:3])
        shown = np.broadcast_to(expected.visible[:, None], ran.scores.shape)
        # Only for queries and keys near 1: large negative scores would look like hidden ones.
        if probe.form == "normal" and {probe.query, probe.key} == {1.0}:
            differing = (shown != (ran.scores > MASKED))[rows]
            if differing.any():
                raise NoMatch(
                    f"its mask is not that of an attention with {parameters}: probe {probe} "
                    f"differs in {differing.sum()} of {differing.size} places"
                )
        compared: list[tuple[str, Array, Array, Array | float]] = [
            ("scores are", ran.scores[shown], expected.scores[shown], expected.score_error[shown]),
            ("present key is", ran.present_key, expected.keys, expected.key_error),
            ("present value is", ran.present_value, expected.values, 0.0),
            ("result is", ran.output[rows], expected.output[rows], _bound(expected, rows)),
        ]
        for what, got, made, error in compared:
            if got.shape != made.shape:
                raise NoMatch(f"its {what} {got.shape}, expected {made.shape}")
            difference: Array = np.abs(got - made)
            over: Array = ~(difference <= error)  # true for NaN
            if over.any():
                raise NoMatch(
                    f"its {what} not that of an attention with {parameters}: probe {probe} "
                    f"differs by {difference[over].max():.2g}"
                )
    return replace(parameters, window=runnable.true_window())


def _bound(expected: Result, rows: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    bound: npt.NDArray[np.float64] = np.broadcast_to(expected.output_error, expected.output.shape)[
        rows
    ]
    return bound


def _probes(window: int, longest: int) -> Iterator[Probe]:
    """Of at most `longest` keys."""

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
    # An operator that acts on large, small or unusual numbers alone.
    pairs = np.ones((1, 5), np.int64)
    for factor in (1e5, 1e3, 1e-3, 1e-6):
        yield Probe(f"queries of {factor:g}", 3, 2, pairs, query=factor)
        yield Probe(f"keys of {factor:g}", 3, 2, pairs, key=factor)
        yield Probe(f"values of {factor:g}", 3, 2, pairs, value=factor)
    for form in FORMS:
        yield Probe(f"{form} rows", 3, 2, pairs, form)
        yield Probe(f"large {form} rows", 3, 2, pairs, form, 1e3, 1e3, 1e3)
    if window > 0:
        past = min(window, longest - 3)
        yield Probe("past as long as the window", past, 3, padded(past, 3, (0, 2), (0, 0)))
        yield Probe(
            "prompt beyond the window",
            0,
            min(past, 64) + 3,
            padded(0, min(past, 64) + 3, (1,), (0,)),
        )


@dataclass(frozen=True)
class _Fit:
    """Parameters with the best-fitting scale, and its error as a multiple of the bound."""

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


def _other_order(runnable: RunnableRegion, ran: Outcome) -> str:
    """The order of a packed projection that is not queries, keys, values; else an empty string."""
    given = (ran.operands.query, ran.operands.key, ran.operands.value)
    batch, _, new, size = given[0].shape
    cached = ran.present_value[:, :, -new:]
    if not runnable.region.packed or np.array_equal(cached, given[2]):
        return ""
    packed = np.concatenate([x.swapaxes(1, 2).reshape(batch, new, -1) for x in given], -1)
    groups = packed.reshape(batch, new, runnable.kv_heads, -1, size)
    # As in GPT-NeoX and in Falcon's new architecture.
    last = groups[..., -1, :].swapaxes(1, 2)
    return SIDE_BY_SIDE if np.array_equal(cached, last) else OTHER_ORDER


def _layouts(runnable: RunnableRegion, operands: Operands) -> list[Rotary | None]:
    """The ways in which the tables may rotate a head."""
    cos, sin = operands.cos, operands.sin
    if cos is None or sin is None:
        return [None]
    columns = cos.shape[1]
    both = np.stack([cos, sin])
    half = columns // 2
    tables, layouts = (runnable.tables[0], runnable.tables[1]), list[Rotary]()
    if columns % 2 == 0 and np.array_equal(both[..., :half], both[..., half:]):
        layouts.append(Rotary(*tables, slice(0, half, 1), False, columns))
    if columns % 2 == 0 and np.array_equal(both[..., ::2], both[..., 1::2]):
        layouts.append(Rotary(*tables, slice(0, columns, 2), True, columns))
    if not layouts:
        whole = slice(0, columns, 1)
        layouts += [Rotary(*tables, whole, way, 2 * columns) for way in (False, True)]
    fitting = [layout for layout in layouts if layout.width <= runnable.size]
    if not fitting:
        raise NoMatch(f"tables of {columns} angles rotate more than a head of {runnable.size}")
    return [*fitting]


def _norms(runnable: RunnableRegion) -> tuple[ir.Value | None, ir.Value | None, float]:
    """The weights of query's and key's norm, and their epsilon."""
    region, size = runnable.region, runnable.size
    key_nodes = _inside_above(region.keys.new, region)
    found = [node for node in region.nodes if node.op_type in NORMS and not node.domain]
    keys = [node for node in found if node in key_nodes]
    queries = [node for node in found if node not in key_nodes]
    if len(keys) != len(queries) or len(keys) > 1:
        names = ", ".join(f"'{node_label(node)}'" for node in found)
        raise NoMatch(
            f"it has {len(queries)} norms of the query and {len(keys)} of the key ({names}); "
            "aie.FlowAttention has one of each, or none"
        )
    if not keys:
        return None, None, 0.0
    turning = {table.producer() for table in runnable.tables}
    for node in (*queries, *keys):
        if turning & _inside_above(node.outputs[0], region):
            raise NoMatch(
                f"the norm '{node_label(node)}' comes after the rotation; aie.FlowAttention's come "
                "before it"
            )
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


def _inside_above(value: ir.Value, region: Region) -> set[ir.Node]:
    """The region's nodes that `value` comes from; nodes of earlier layers rotate too."""
    inside = set[ir.Node | None](region.nodes)
    values = above([value], edge=lambda v: v.producer() not in inside)
    return {producer(v) for v in values if v.producer() in inside}
