"""FlowKV: attention of one query position, for decoding (paper 1, section III-B; paper 2, 3.2.2).

README.md has dataflow, layouts and rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ort_aie_ep.aie_kernels.flow_kv.kernels import (
    FLOW_KV_BEGIN,
    FLOW_KV_GIVE_MAXIMA,
    FLOW_KV_LOAD_Q,
    FLOW_KV_MERGE,
    FLOW_KV_OUTPUT,
    FLOW_KV_PASS,
    FLOW_KV_SCORES,
    FLOW_KV_VALUES,
    FLOW_KV_VALUES_BEGIN,
)
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.design import (
    Acquire,
    Body,
    Buffer,
    Core,
    Design,
    Parameters,
    Release,
    Steps,
    call,
)  # fmt: skip
from ort_aie_ep.npu.terms.device import Device
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.npu.terms.kernel import Array, Kernel
from ort_aie_ep.npu.terms.packet_ids import give_packet_ids
from ort_aie_ep.npu.terms.sequence import (
    Expr,
    Sequence,
    Value,
    at_most,
    ceil_div,
    equal,
    expr,
    less,
    maximum,
    minimum,
)  # fmt: skip

HEAD_DIMS = (64, 128, 256)
CHUNK = 4096  # elements of K or V
MAX_Q = 2048  # elements of the queries of a sweep
PIECE = 64  # elements of q and o on their way
FCL_BYTES = 4352  # F, C and l
MAX_HEADS = 32  # queries of a sweep
SCORE_STACK = 8192  # bytes; scores keep 6,912 there, beside what the compiler spills
STACK = 4096


def build(device: Device) -> Design:
    """FlowKV on the first two columns: four pairs, or two on a device of two columns.

    One sequence, `attention`; see `add_sequence`.
    """
    design = Design("flow_kv", device)
    pairs = place(design)
    give_packet_ids(design)
    add_sequence(design, pairs)
    return design


def place(design: Design, column: int = 0) -> int:
    """Put the pairs on columns `column` and `column` + 1, and return their number.

    K and V of pair p take both channels of shim `column` + p. Operators that run at other times can
    share them, as the queries share the channel of K.
    """
    device = design.device
    columns = device.columns - column
    if columns < 2:
        raise DesignError(
            f"flow_kv from column {column} of {device.name}: {columns} columns are left; the cores "
            "of a pair need two"
        )
    pairs = min(device.core_rows, columns)
    values = [design.core(column + 1, p, depth=1) for p in range(pairs)]
    above = [
        design.fifo(f"part{p}", "f32", MAX_Q + 2 * MAX_HEADS, *values[p : p + 2], shared=True)
        for p in range(pairs - 1)
    ]
    for p in range(pairs):
        score, value = design.core(column, p), design.core(column + 1, p)
        k = design.fifo(f"k{p}", "bf16", CHUNK, design.shim(column + p, 0), score)
        q = design.fifo(f"q{p}", "bf16", PIECE, design.shim(column + p, 0), score)
        v = design.fifo(f"v{p}", "bf16", CHUNK, design.shim(column + p, 1), value)
        fcl = design.fifo(f"fcl{p}", "u8", FCL_BYTES, score, value, shared=True)
        m = design.fifo(f"m{p}", "f32", MAX_HEADS, score, value, shared=True)
        o = design.fifo(f"o{p}", "bf16", PIECE, value, design.shim(column + p // 2, p % 2))
        design.worker(
            f"score{p}", score, _score,
            inputs={"q": q, "k": k}, outputs={"fcl": fcl, "m": m},
            buffers=[Buffer("q", Array("bf16", MAX_Q)), Buffer("state", Array("f32", 64))],
            parameters=[
                "sweeps", "pieces", "group", "head_dim", "skip", "first", "full", "keys", "tail",
                "last", "scale", "softcap",
            ],
            kernels=[FLOW_KV_LOAD_Q, FLOW_KV_BEGIN, FLOW_KV_SCORES, FLOW_KV_GIVE_MAXIMA],
            stack=SCORE_STACK,
        )  # fmt: skip
        takes, gives = p > 0, p < pairs - 1
        design.worker(
            f"value{p}", value, _value(takes, gives),
            inputs={"fcl": fcl, "v": v, "m": m} | ({"below": above[p - 1]} if takes else {}),
            outputs={"o": o} | ({"above": above[p]} if gives else {}),
            buffers=[Buffer("y", Array("f32", MAX_Q + MAX_HEADS))],
            parameters=[
                "sweeps", "pieces", "group", "head_dim", "chunks",
                *["taken"] * takes, *["given"] * gives,
            ],
            kernels=[
                FLOW_KV_VALUES_BEGIN, FLOW_KV_VALUES, *[FLOW_KV_MERGE] * takes,
                *[FLOW_KV_PASS] * gives, FLOW_KV_OUTPUT,
            ],
            stack=STACK,
        )  # fmt: skip
    return pairs


def _score(core: Core) -> Steps:
    sweeps, pieces, *sweep = yield Parameters()
    q, state = core.buffer("q"), core.buffer("state")
    for _ in core.loop(sweeps):
        for i in core.loop(pieces):
            piece = yield Acquire("q")
            yield call(FLOW_KV_LOAD_Q, piece, q, i)
            yield Release("q")
        yield from score_sweep(core, *sweep)
        m = yield Acquire("m")
        yield call(FLOW_KV_GIVE_MAXIMA, state, m)
        yield Release("m")


def score_sweep(
    core: Core, group: Any, head_dim: Any, skip: Any, first: Any, full: Any, keys: Any, tail: Any,
    last: Any, scale: Any, softcap: Any,
) -> Steps:  # fmt: skip
    """A sweep of a score core with the queries in its buffer q: a first chunk with the keys `skip`
    to `first`, `full` whole ones, and `tail` (0 or 1) of `last` keys."""
    q, state = core.buffer("q"), core.buffer("state")

    def chunk(begin: Any, end: Any) -> Steps:
        """Scores of the keys begin .. end - 1 of a chunk."""
        fcl = yield Acquire("fcl")
        k = yield Acquire("k")
        yield call(FLOW_KV_SCORES, q, k, fcl, state, group, head_dim, begin, end, scale, softcap)
        yield Release("k")
        yield Release("fcl")

    yield call(FLOW_KV_BEGIN, state)
    yield from chunk(skip, first)
    for _ in core.loop(full):
        yield from chunk(0, keys)
    for _ in core.loop(tail):
        yield from chunk(0, last)


def _value(takes: bool, gives: bool) -> Body:
    """The body of a value core that has another below it, and one above it."""

    def body(core: Core) -> Steps:
        sweeps, pieces, group, head_dim, chunks, *merges = yield Parameters()
        y = core.buffer("y")
        for _ in core.loop(sweeps):
            yield call(FLOW_KV_VALUES_BEGIN, y)
            yield from add_values(core, FLOW_KV_VALUES, chunks, y, group, head_dim)
            m = yield Acquire("m")
            if takes:
                for _ in core.loop(merges[0]):
                    part = yield Acquire("below")
                    yield call(FLOW_KV_MERGE, y, m, part, group, head_dim)
                    yield Release("below")
            if gives:
                for _ in core.loop(merges[-1]):
                    part = yield Acquire("above")
                    yield call(FLOW_KV_PASS, y, m, part)
                    yield Release("above")
            yield Release("m")
            yield from give_output(core, FLOW_KV_OUTPUT, pieces, y, head_dim)

    return body


def add_values(core: Core, kernel: Kernel, chunks: Any, y: Any, *scalars: Any) -> Steps:
    """Take F, C and l and the values of `chunks` chunks, and add the weighted values to `y`."""
    for _ in core.loop(chunks):
        fcl = yield Acquire("fcl")
        v = yield Acquire("v")
        yield call(kernel, fcl, v, y, *scalars)
        yield Release("v")
        yield Release("fcl")


def give_output(core: Core, kernel: Kernel, pieces: Any, y: Any, head_dim: Any) -> Steps:
    """Send the contents of `y` in `pieces` pieces."""
    for i in core.loop(pieces):
        o = yield Acquire("o")
        yield call(kernel, y, o, i, head_dim)
        yield Release("o")


def add_sequence(design: Design, pairs: int) -> Sequence:
    """The sequence `attention` for a design on which `place` has put `pairs` pairs.

    Parameters: `heads` query heads in `kv_heads` groups, `head_dim`; `context` keys, the newest
    being the query's own; `capacity` keys for which a head has room in the cache, a multiple of
    4096 / head_dim; `window`, how many of the newest keys are seen (0: all); the bits of the
    float32 `scale` of the scores and `softcap` (0: none).
    """
    s = design.sequence(
        "attention", "heads", "kv_heads", "head_dim", "context", "capacity", "window",
        "scale_bits", "softcap_bits",
    )  # fmt: skip
    heads, kv_heads, head_dim, context, capacity, window, scale, softcap = s.symbols()
    require_heads(s, heads, kv_heads, head_dim)
    require_cache(s, head_dim, capacity, context)
    s.require(less(0, context), "context={context}: there must be a key")
    s.require(at_most(0, window), "window={window} must be 0 (none) or positive")
    row = 2 * head_dim  # bytes
    q = s.argument("q", "in", heads * row)
    k = s.argument("k", "in", kv_heads * capacity * row)
    v = s.argument("v", "in", kv_heads * capacity * row)
    o = s.argument("o", "out", heads * row)

    group = s.let("group", heads // kv_heads)
    parts = s.let("parts", ceil_div(group, MAX_Q // head_dim))  # of a group
    part = s.let("part", ceil_div(group, parts))  # queries of a sweep
    sweeps = s.let("sweeps", kv_heads * parts)
    pieces = s.let("pieces", part * head_dim // PIECE)
    keys = s.let("keys", CHUNK // head_dim)
    seen = s.let("seen", less(0, window) * maximum(0, context - window))  # the first key seen
    base = s.let("base", seen // keys * keys)
    chunks = s.let("chunks", ceil_div(context - base, keys))

    sharing = _sharing(pairs, sweeps)
    divided = s.let("divided", 1 + at_most(sharing, chunks) * (sharing - 1))  # pairs of a sweep
    at_once = s.let("at_once", pairs // divided)  # sweeps
    rounds = s.let("rounds", ceil_div(sweeps, at_once))

    def transfer(fifo: str, buffer: str, sweep: Expr) -> None:
        """Queries or outputs of a sweep."""
        first = _first_row(sweep, group, parts, part)
        s.transfer(fifo, buffer, offset=first * row, run=part * row)

    def fill(r: Value, p: int) -> None:
        sweep, own = sweep_of(r, p), owned[p]
        transfer(f"q{p}", q, sweep)
        first = sweep // parts * capacity + base + own.first * keys
        for fifo, buffer in ((f"k{p}", k), (f"v{p}", v)):
            s.transfer(fifo, buffer, offset=first * row, run=own.chunks * keys * row)

    def drain(r: Value, p: int) -> None:
        with s.when(owned[p].last):
            transfer(f"o{p}", o, sweep_of(r, p))

    def sweep_of(r: Value, p: int) -> Expr:
        return r * at_once + expr(p) // divided

    owned = [_Keys.of(s, p, divided, chunks) for p in range(pairs)]

    # The first round's data are on their way while the parameters are written.
    for p in range(pairs):
        with s.when(less(sweep_of(0, p), sweeps)):
            fill(0, p)
    for p in range(pairs):
        with s.when(less(sweep_of(0, p), sweeps)):
            own = owned[p]
            walks = (sweeps + (at_once - 1 - expr(p) // divided)) // at_once
            first, last = base + own.first * keys, base + (own.first + own.chunks - 1) * keys
            tail = less(1, own.chunks)
            s.start(
                f"score{p}", walks, pieces, part, head_dim, maximum(0, seen - first),
                minimum(keys, context - first), own.chunks - 1 - tail, keys, tail,
                minimum(keys, context - last), scale, softcap,
            )  # fmt: skip
            s.start(
                f"value{p}", walks, own.last * pieces, part, head_dim, own.chunks,
                *[less(0, own.part)] * (p > 0), *[1 - own.last] * (p < pairs - 1),
            )  # fmt: skip
            drain(0, p)
    with s.loop("round", rounds - 1) as r:
        for p in range(pairs):
            with s.when(less(sweep_of(r + 1, p), sweeps)):
                fill(r + 1, p)
                drain(r + 1, p)
    # A sweep's first chunk comes before anything can begin, and its output leaves at its end.
    arch = design.device.architecture
    ends = int(FLOW_KV_VALUES_BEGIN.cycles(arch, ())) + pieces * int(
        FLOW_KV_OUTPUT.cycles(arch, (0, 64))
    )
    s.work(
        int(2 * CHUNK / costs.STREAM.value)
        + rounds * (ceil_div(chunks, divided) * chunk_cycles(design.device, part, head_dim) + ends)
    )
    s.wait(*(f"o{p}" for p in range(pairs)))
    s.cut()
    return s


@dataclass(frozen=True)
class _Keys:
    """The keys of a pair in each of its sweeps: the part, its first chunk, their number."""

    part: Expr
    first: Expr
    chunks: Expr
    last: Expr  # 1 if the pair has the last part

    @staticmethod
    def of(s: Sequence, p: int, divided: Expr, chunks: Expr) -> _Keys:
        """Those of pair `p`, if `divided` pairs share the `chunks` of a sweep."""
        part = s.let(f"part{p}", expr(p) % divided)
        first = s.let(f"first{p}", part * chunks // divided)
        own = s.let(f"chunks{p}", (part + 1) * chunks // divided - first)
        return _Keys(part, first, own, equal(part, divided - 1))


def _sharing(pairs: int, sweeps: Expr) -> Expr:
    """The fewest pairs to a sweep for which all pairs have the same number of sweeps."""
    fewest = expr(pairs)
    for n in range(pairs - 1, 0, -1):
        if pairs % n == 0:
            fits = equal(sweeps * n % pairs, 0)
            fewest = fits * n + (1 - fits) * fewest
    return fewest


def _first_row(sweep: Expr, group: Expr, parts: Expr, part: Expr) -> Expr:
    """The first query head of a sweep: the last part of a group ends with the group."""
    return sweep // parts * group + minimum(sweep % parts * part, group - part)


def require_heads(s: Sequence, heads: Expr, kv_heads: Expr, head_dim: Expr) -> None:
    """Refuse heads that do not divide into groups, and head dimensions without a layout."""
    s.require(less(0, kv_heads), "kv_heads={kv_heads} must be at least 1")
    s.require(less(0, heads), "heads={heads} must be at least 1")
    s.require(
        equal(heads % maximum(1, kv_heads), 0),
        "heads={heads} must be a multiple of kv_heads={kv_heads}",
    )
    s.require(
        at_most(head_dim, HEAD_DIMS[-1]),
        f"head_dim={{head_dim}} is above {HEAD_DIMS[-1]}: a chunk of {CHUNK} elements must have "
        "the 16 keys that a score core multiplies at a time",
    )
    s.require(
        equal(head_dim, 64) + equal(head_dim, 128) + equal(head_dim, 256),
        "head_dim={head_dim} must be 64, 128 or 256: pad q, k and v with zeros",
    )


def require_cache(s: Sequence, head_dim: Expr, capacity: Expr, context: Expr) -> None:
    """Refuse a cache that has no room for `context` keys or ends within a chunk."""
    s.require(
        equal(capacity * head_dim % CHUNK, 0),
        f"capacity={{capacity}} must be a multiple of {CHUNK} / head_dim keys: round it up",
    )
    s.require(at_most(context, capacity), "capacity={capacity} has no room for all keys")


def chunk_cycles(device: Device, group: Expr, head_dim: Expr) -> Expr:
    """Cycles of the slower core of a pair for a chunk."""
    total = expr(0)
    for d in HEAD_DIMS:
        most = MAX_Q // d
        scores, values = (
            affine(
                [kernel.cycles(device.architecture, (g, d, *rest)) for g in (1, most)],
                (1, most),
                group,
            )
            for kernel, rest in ((FLOW_KV_SCORES, (0, CHUNK // d, 0, 0)), (FLOW_KV_VALUES, ()))
        )
        total = total + equal(head_dim, d) * maximum(scores, values)
    return total


def affine(values: list[float], at: tuple[int, int], x: Expr) -> Expr:
    """The straight line through two points, in integers: cycle models grow with rows this way."""
    slope = (values[1] - values[0]) / (at[1] - at[0])
    return (x * round(16 * slope) + round(16 * (values[0] - slope * at[0]))) // 16
