"""This project's goals relative to the peers, and whether a run meets them.

A goal is met if the bound on its bad side meets it: the lower bound of a speed, the upper bound of
a cost. A value that was measured once, such as memory, is its own bound.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ort_aie_ep.tools.bench.peers.batches import SHAPES
from ort_aie_ep.tools.bench.peers.comparisons import Bandwidth, Ratio, StartRatio, sides
from ort_aie_ep.tools.bench.peers.engines import CPU_EP, OURS
from ort_aie_ep.tools.bench.peers.growth import Fit
from ort_aie_ep.tools.bench.peers.plan import DECODE, DECODE_LENGTHS, PREFILL, PREFILL_LENGTHS
from ort_aie_ep.tools.bench.peers.results import Results
from ort_aie_ep.tools.bench.peers.starts import COLD, STATES, STAYED
from ort_aie_ep.tools.bench.peers.statistics import Interval, median

DECODE_FACTOR, LONG_FACTOR, LONG = 1.4, 2.0, 4096
"""Least ort_aie_ep / best peer for decoding: at all contexts, and at the long one, where the better
engine of ort_aie_ep counts, because peers also have 8-bit keys and values."""
PREFILL_FACTOR, AMX_FACTOR = 1.3, 2.0
"""Least ort_aie_ep / best peer for prompts, without AMX and with it."""
BATCH, BATCH_FACTOR = 4, 1.3
"""Rows in a call, and its highest cost relative to a call with one row."""
DEMONSTRATION_FACTOR = 2.0
"""Least ort_aie_ep / ONNX Runtime for a token of the demonstration model."""
BANDWIDTH_SHARE = 0.9
"""Least share of the memory's read bandwidth, at the shortest decoded context."""
LOAD_FACTOR = 0.25
"""Limit for ort_aie_ep's time to load / ONNX Runtime's; the ratio must be below it."""
MEMORY_FACTOR, MEMORY_BYTES = 1.1, 200_000_000
"""Peak memory is at most the factor times the weights' files, plus the KV cache and these bytes."""
GROWTH_FACTOR = 1.2
"""Highest cost of a token of context / reading its keys and values once."""


@dataclass(frozen=True)
class Goal:
    """One goal.

    Attributes:
        what: what is compared with what, and the limit.
        measured: the measured value; None if this run did not measure it.
        limit: the limit for the bound on the bad side.
        unit: unit of both: "" for a ratio, "MB", "%".
        detail: what the number consists of.
        met: whether it is met; None if this run did not measure it.
    """

    what: str
    measured: Interval | None
    limit: float
    unit: str
    detail: str
    met: bool | None


def goals(
    results: Results,
    ratios: Sequence[Ratio],
    start_ratios: Sequence[StartRatio],
    bandwidth: Mapping[str, Bandwidth],
    fit: Fit | None,
) -> tuple[Goal, ...]:
    """All goals, including those that this run did not measure."""
    return (
        *_speeds(results, ratios),
        *_batches(results),
        _demonstration(results),
        _bandwidth(results, bandwidth.get(OURS)),
        *_starts(results, start_ratios),
        _memory(results),
        _growth(results, fit),
    )


Comparison = Callable[[float, float], bool]


def _goal(
    what: str,
    measured: Interval | None,
    wanted: Comparison,
    limit: float,
    detail: str = "",
    unit: str = "",
) -> Goal:
    if measured is None:
        return Goal(what, None, limit, unit, detail, None)
    worst = measured.low if wanted in (operator.gt, operator.ge) else measured.high
    return Goal(what, measured, limit, unit, detail, wanted(worst, limit))


def _speeds(results: Results, ratios: Sequence[Ratio]) -> list[Goal]:
    found = {(r.phase, r.length): r for r in ratios if r.engine == OURS}
    worst = min(found.values(), key=lambda r: r.ratio.low, default=None)
    detail = f"× {worst.peer}, {worst.phase} at {worst.length}, the lowest" if worst else ""
    least = worst.ratio if worst else None
    made = [_goal("ahead of the best peer in every column", least, operator.gt, 1, detail)]
    wanted = {(DECODE, n) for n in DECODE_LENGTHS} | {(PREFILL, n) for n in PREFILL_LENGTHS}
    for phase, length in sorted(found.keys() | wanted):
        amx = phase == PREFILL and results.amx
        factor = DECODE_FACTOR if phase == DECODE else AMX_FACTOR if amx else PREFILL_FACTOR
        what = f"{phase} at {length}: at least {factor:g} × the best peer"
        r = found.get((phase, length))
        interval, detail = (r.ratio, f"× {r.peer}") if r else (None, "")
        made.append(_goal(what + " (AMX)" * amx, interval, operator.ge, factor, detail))
    far = [r for r in ratios if (r.phase, r.length) == (DECODE, LONG)]
    best = max(far, key=lambda r: r.ratio.value, default=None)
    interval, detail = (best.ratio, f"× {best.peer}, {best.engine}") if best else (None, "")
    what = f"{DECODE} at {LONG}, KV of any type: at least {LONG_FACTOR:g} × the best peer"
    return [*made, _goal(what, interval, operator.ge, LONG_FACTOR, detail)]


def _batches(results: Results) -> list[Goal]:
    made = []
    for shape in SHAPES:
        cost = results.batches.cost(OURS, shape, BATCH) if results.batches else None
        what = f"{BATCH} {shape} in a call: at most {BATCH_FACTOR} × a call with one"
        made.append(_goal(what, cost, operator.le, BATCH_FACTOR))
    return made


def _demonstration(results: Results) -> Goal:
    what = f"a token of the demonstration model: at least {DEMONSTRATION_FACTOR:g} × {CPU_EP}'s"
    c = results.demonstration
    if c is None:
        return _goal(what, None, operator.ge, DEMONSTRATION_FACTOR)
    ratio = Interval(c.ratio.median, c.ratio.least, c.ratio.most)
    detail = "the least and the most of all runs in brackets"
    return _goal(what, ratio, operator.ge, DEMONSTRATION_FACTOR, detail)


def _bandwidth(results: Results, reached: Bandwidth | None) -> Goal:
    share = None
    if reached is not None:
        values = (reached.share.value, reached.share.low, reached.share.high)
        share = Interval(*(value * 100 for value in values))
    return _goal(
        f"decode at the shortest context: at least {BANDWIDTH_SHARE:.0%} of the read bandwidth",
        share,
        operator.ge,
        BANDWIDTH_SHARE * 100,
        f"of {_usual(results.probes)} GB/s, counting only the Q4NX bytes of a token",
        "%",
    )


def _starts(results: Results, ratios: Sequence[StartRatio]) -> list[Goal]:
    found = {r.state: r for r in ratios}
    kept = max((m.starts.kept for m in results.measured if m.starts), default=0.0)
    made = []
    for state in STATES:
        r, to_load, to_first = found.get(state), "", ""
        if state == COLD and kept > STAYED:
            r, to_load = None, f"not cold: up to {kept:.0%} of a model stayed in memory"
            to_first = to_load
        elif r:
            to_load, to_first = f"× {CPU_EP}", f"× {r.peer}"
        load, first = (r.load, r.first_token) if r else (None, None)
        what = f"session load, {state}: under {LOAD_FACTOR} × ONNX Runtime's"
        made.append(_goal(what, load, operator.lt, LOAD_FACTOR, to_load))
        what = f"process start to first token, {state}: ahead of every peer"
        made.append(_goal(what, first, operator.lt, 1, to_first))
    return made


def _memory(results: Results) -> Goal:
    what = f"peak memory: at most {MEMORY_FACTOR} × weights + KV cache + {MEMORY_BYTES // 10**6} MB"
    ours, _ = sides(results)
    if ours is None or not ours.memory["peak"]:
        return _goal(what, None, operator.le, 0)
    megabytes = {name: size / 1e6 for name, size in ours.memory.items()}
    weights, cache = ours.file_bytes / 1e6, results.cache_bytes / 1e6
    bound = MEMORY_FACTOR * weights + cache + MEMORY_BYTES / 1e6
    peak = megabytes["peak"]
    detail = (
        f"VmHWM; at the end {megabytes['anonymous']:.0f} anonymous, {megabytes['files']:.0f} of "
        f"files. Limit {bound:.0f}: weights {weights:.0f}, KV cache of {results.capacity} tokens "
        f"{cache:.0f}"
    )
    return _goal(what, Interval(peak, peak, peak), operator.le, bound, detail, "MB")


def _usual(probes: Sequence[float]) -> str:
    """GB/s in the median round."""
    return f"{median(probes).value / 1e9:.1f}" if probes else "0"


def _growth(results: Results, fit: Fit | None) -> Goal:
    what = f"cost of context: at most {GROWTH_FACTOR} × KV bytes / read bandwidth"
    if fit is None or results.growth is None:
        return _goal(what, None, operator.le, GROWTH_FACTOR)
    lengths = results.growth.seconds
    detail = (
        f"{fit.slope * 1e9:.0f} ns a token of context, fitted from {min(lengths)} to "
        f"{max(lengths)}; {results.growth.cache_bytes} bytes at "
        f"{_usual(results.growth.read_bytes_per_second)} GB/s"
    )
    return _goal(what, fit.ratio, operator.le, GROWTH_FACTOR, detail)
