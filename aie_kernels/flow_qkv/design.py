"""FlowQKV: attention of a prompt (paper 2, section 3.1.3) over the cache, which the prompt extends.

README.md has dataflow, layouts and rules.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ort_aie_ep.aie_kernels.flow_kv.design import (
    HEAD_DIMS,
    add_values,
    affine,
    give_output,
    require_cache,
    require_heads,
)
from ort_aie_ep.aie_kernels.flow_qkv.kernels import (
    FLOW_QKV_BEGIN,
    FLOW_QKV_LOAD_Q,
    FLOW_QKV_OUTPUT,
    FLOW_QKV_SCHEDULE,
    FLOW_QKV_SCORES,
    FLOW_QKV_VALUES,
    FLOW_QKV_VALUES_BEGIN,
    QKV_SCRATCH,
)
from ort_aie_ep.npu.terms.design import (
    Acquire,
    Body,
    Buffer,
    Core,
    Design,
    End,
    Parameters,
    Read,
    Release,
    Steps,
    call,
)  # fmt: skip
from ort_aie_ep.npu.terms.device import Device
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.npu.terms.kernel import Array
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

CHUNK = 2048  # elements of K or V
MAX_Q = 8192  # elements of the queries of a core
PIECE = 512  # elements of q and o on their way
FCL_BYTES = 9216  # F, C and l
STACK = 4096
STARTED_SWEEPS = 16  # of a row of cores between two starts: below 0.5 s at any context length


def build(device: Device) -> Design:
    """FlowQKV on all pairs of columns of `device` (2, 4 or 8 columns).

    One sequence, `attention`; see `add_sequence`.
    """
    design = Design("flow_qkv", device)
    place(design)
    give_packet_ids(design)
    add_sequence(design)
    return design


def _grid(device: Device) -> tuple[int, int]:
    """Rows of cores, each with a KV head, and pairs of columns, each with a query chunk."""
    return min(device.core_rows, device.columns), device.columns // 2


def place(design: Design) -> None:
    """Put the fifos and workers on all columns of `design`."""
    device = design.device
    if device.columns not in (2, 4, 8):
        raise DesignError(
            f"flow_qkv on {device.name}: {device.columns} columns; a score core and its value "
            "core need two, so it runs on 2, 4 or 8"
        )
    rows, chunks = _grid(device)
    scores = [[design.core(2 * j, p) for j in range(chunks)] for p in range(rows)]
    values = [[design.core(2 * j + 1, p) for j in range(chunks)] for p in range(rows)]
    for p in range(rows):
        k_end, v_end, q_ends = _entries(design, p)
        k = design.fifo(f"k{p}", "bf16", CHUNK, k_end, scores[p])
        v = design.fifo(f"v{p}", "bf16", CHUNK, v_end, values[p])
        for j in range(chunks):
            score, value = scores[p][j], values[p][j]
            # One buffer: copying a piece takes a fraction of the time of its transfer.
            q_end = replace(score, depth=1)
            q = design.fifo(f"q{j}_{p}", "bf16", PIECE, q_ends[j], q_end)
            fcl = design.fifo(f"fcl{j}_{p}", "u8", FCL_BYTES, score, value, shared=True)
            o = design.fifo(f"o{j}_{p}", "bf16", PIECE, value, design.shim(2 * j + p // 2, p % 2))
            schedule = ["chunk_rows", "past", "total", "window", "causal", "keys"]
            design.worker(
                f"score{j}_{p}", score, _score(j, chunks),
                inputs={"q": q, "k": k}, outputs={"fcl": fcl},
                buffers=[
                    Buffer("scratch", Array("bf16", QKV_SCRATCH)),
                    Buffer("qt", Array("bf16", MAX_Q)),
                    Buffer("state", Array("f32", 256)),
                    Buffer("plan", Array("i32", 16)),
                ],
                parameters=[
                    "heads", "sweeps", "pieces", "head_dim", "rows", *schedule, "scale", "softcap",
                ],
                kernels=[FLOW_QKV_SCHEDULE, FLOW_QKV_LOAD_Q, FLOW_QKV_BEGIN, FLOW_QKV_SCORES],
                stack=STACK,
            )  # fmt: skip
            design.worker(
                f"value{j}_{p}", value, _value(j, chunks),
                inputs={"fcl": fcl, "v": v}, outputs={"o": o},
                buffers=[
                    Buffer("y", Array("f32", MAX_Q + 128)), Buffer("plan", Array("i32", 16)),
                ],
                parameters=["heads", "sweeps", "pieces", "head_dim", "rows", *schedule],
                kernels=[
                    FLOW_QKV_SCHEDULE, FLOW_QKV_VALUES_BEGIN, FLOW_QKV_VALUES, FLOW_QKV_OUTPUT,
                ],
                stack=STACK,
            )  # fmt: skip


def _entries(design: Design, p: int) -> tuple[End, End, list[End]]:
    """Where K, V and the queries of every query chunk enter for row `p` of cores."""
    if design.device.columns == 8:
        return (
            design.shim(2 * p, 0),
            design.shim(2 * p + 1, 0),
            [design.shim(2 * j + p // 2, 1) for j in range(4)],
        )
    k = design.shim(p, 0)
    return k, design.shim(p, 1), [k] * (design.device.columns // 2)


def _score(chunk: int, chunks: int) -> Body:
    def body(core: Core) -> Steps:
        (
            heads, sweeps, pieces, head_dim, rows, chunk_rows, past, total, window, causal, keys,
            scale, softcap,
        ) = yield Parameters()  # fmt: skip
        scratch, qt = core.buffer("scratch"), core.buffer("qt")
        state, plan = core.buffer("state"), core.buffer("plan")
        for _ in core.loop(heads):
            for sweep in core.loop(sweeps):
                yield call(
                    FLOW_QKV_SCHEDULE, plan, sweep, chunk, chunks, chunk_rows, past, total, window,
                    causal, keys,
                )  # fmt: skip
                steps = yield Read("plan", 0)
                for i in core.loop(pieces):
                    piece = yield Acquire("q")
                    yield call(FLOW_QKV_LOAD_Q, piece, scratch, qt, i, head_dim, rows)
                    yield Release("q")
                yield call(FLOW_QKV_BEGIN, state)
                for i in core.loop(steps):
                    fcl = yield Acquire("fcl")
                    k = yield Acquire("k")
                    yield call(
                        FLOW_QKV_SCORES, scratch, qt, k, fcl, state, plan, head_dim, rows,
                        chunk_rows, i, total, window, causal, scale, softcap,
                    )  # fmt: skip
                    yield Release("k")
                    yield Release("fcl")

    return body


def _value(chunk: int, chunks: int) -> Body:
    def body(core: Core) -> Steps:
        (
            heads, sweeps, pieces, head_dim, rows, chunk_rows, past, total, window, causal, keys,
        ) = yield Parameters()  # fmt: skip
        y, plan = core.buffer("y"), core.buffer("plan")
        for _ in core.loop(heads):
            for sweep in core.loop(sweeps):
                yield call(
                    FLOW_QKV_SCHEDULE, plan, sweep, chunk, chunks, chunk_rows, past, total, window,
                    causal, keys,
                )  # fmt: skip
                steps = yield Read("plan", 0)
                yield call(FLOW_QKV_VALUES_BEGIN, y)
                yield from add_values(core, FLOW_QKV_VALUES, steps, y, head_dim, rows)
                yield from give_output(core, FLOW_QKV_OUTPUT, pieces, y, head_dim)

    return body


@dataclass(frozen=True)
class Division:
    """How a group and a prompt are divided among the cores.

    A core takes `part` query heads, one of the `parts` of a group; a prompt is `sweeps`
    super-chunks of `chunk_rows` tokens a query chunk.
    """

    group: Expr
    part: Expr
    parts: Expr
    sweeps: Expr
    chunk_rows: Expr
    super_chunk: Expr


def divide(
    device: Device, heads: Value, kv_heads: Value, head_dim: Value, prompt: Value
) -> Division:
    """The division for a shape, as expressions."""
    rows, chunks = _grid(device)
    most = expr(MAX_Q) // maximum(64, head_dim)  # rows of a core
    group = expr(heads) // maximum(1, kv_heads)
    # Parts for which 8 queries fit, and no row of cores without a head.
    wanted = maximum(ceil_div(group, most // 8), minimum(group, rows // maximum(1, kv_heads)))
    part = ceil_div(group, maximum(1, wanted))
    parts = ceil_div(group, maximum(1, part))
    longest = most // maximum(1, part) // 8  # queries of a chunk, in eights
    sweeps = ceil_div(prompt, maximum(1, longest) * 8 * chunks)
    eights = ceil_div(prompt, maximum(1, sweeps) * 8 * chunks)
    return Division(group, part, parts, sweeps, eights * 8, eights * 8 * chunks)


def add_sequence(design: Design) -> Sequence:
    """The sequence `attention` for a design that `place` has set up.

    Parameters: `heads` query heads in `kv_heads` groups, `head_dim`; `prompt` queries, which follow
    `past` keys; `capacity` keys for which a head has room in the cache, a multiple of
    4096 / head_dim; `window`, how many of the newest keys a query sees (0: all); `causal`, 1 if a
    query does not see later keys; the bits of the float32 `scale` of the scores and of `softcap`
    (0: no cap).
    """
    s = design.sequence(
        "attention", "heads", "kv_heads", "head_dim", "prompt", "past", "capacity", "window",
        "causal", "scale_bits", "softcap_bits",
    )  # fmt: skip
    (
        heads, kv_heads, head_dim, prompt, past, capacity, window, causal, scale, softcap,
    ) = s.symbols()  # fmt: skip
    rows, chunks = _grid(design.device)
    row = 2 * head_dim  # bytes
    division = divide(design.device, heads, kv_heads, head_dim, prompt)
    padded = division.sweeps * division.super_chunk
    q = s.argument("q", "in", padded * heads * row)
    k = s.argument("k", "in", kv_heads * capacity * row)
    v = s.argument("v", "in", kv_heads * capacity * row)
    o = s.argument("o", "out", padded * heads * row)
    require_heads(s, heads, kv_heads, head_dim)
    s.require(less(0, prompt), "prompt={prompt}: there must be a query")
    s.require(at_most(0, past), "past={past} must not be negative")
    s.require(equal(causal, 0) + equal(causal, 1), "causal={causal} must be 0 or 1")
    s.require(at_most(0, window), "window={window} must be 0 (none) or positive")
    total = s.let("total", past + prompt)
    require_cache(s, head_dim, capacity, total)

    group = s.let("group", division.group)
    part = s.let("part", division.part)
    parts = s.let("parts", division.parts)
    sweeps = s.let("sweeps", division.sweeps)
    chunk_rows = s.let("chunk_rows", division.chunk_rows)
    super_chunk = s.let("super_chunk", chunk_rows * chunks)
    keys = s.let("keys", CHUNK // head_dim)
    all_heads = s.let("all_heads", kv_heads * parts)  # as the rows of cores see them
    rounds = s.let("rounds", ceil_div(all_heads, rows))
    core_rows = part * chunk_rows
    sweeps_a_start = s.let("sweeps_a_start", minimum(sweeps, STARTED_SWEEPS))
    rounds_a_start = s.let(
        "rounds_a_start", minimum(rounds, maximum(1, STARTED_SWEEPS // sweeps_a_start))
    )

    with (
        s.loop("round_batch", ceil_div(rounds, rounds_a_start)) as round_batch,
        s.loop("sweep_batch", ceil_div(sweeps, sweeps_a_start)) as sweep_batch,
    ):
        first_round = s.let("first_round", round_batch * rounds_a_start)
        first_sweep = s.let("first_sweep", sweep_batch * sweeps_a_start)
        batch_rounds = s.let("batch_rounds", minimum(rounds_a_start, rounds - first_round))
        batch_sweeps = s.let("batch_sweeps", minimum(sweeps_a_start, sweeps - first_sweep))

        def unit(n: Value, name: str) -> _Unit:
            """The n-th sweep of the batch, all rows of cores together."""
            r = s.let(f"{name}_round", first_round + expr(n) // batch_sweeps)
            sweep = s.let(f"{name}_sweep", first_sweep + expr(n) % batch_sweeps)
            query = past + sweep * super_chunk
            first = s.let(
                f"{name}_first", less(0, window) * (maximum(0, query - window + 1) // keys * keys)
            )
            end = causal * minimum(total, query + super_chunk) + (1 - causal) * total
            steps = s.let(f"{name}_steps", ceil_div(end - first, keys))
            return _Unit(r * rows, sweep * super_chunk, first, steps)

        def rows_of(u: _Unit, p: int, j: int) -> tuple[Expr, list[tuple[Value, Value]]]:
            """Offset and outer dimensions of a core's rows in q and o: head by head."""
            head = u.head + p
            query_head = head // parts * group + minimum(head % parts * part, group - part)
            token = u.token + chunk_rows * j
            return ((token * heads + query_head) * row, [(part, row), (chunk_rows, heads * row)])

        def fill(u: _Unit) -> None:
            for p in range(rows):
                with s.when(less(u.head + p, all_heads)):
                    for j in range(chunks):
                        offset, outer = rows_of(u, p, j)
                        s.transfer(f"q{j}_{p}", q, offset=offset, run=row, outer=outer)
                    offset = ((u.head + p) // parts * capacity + u.first) * row
                    for fifo, buffer in ((f"k{p}", k), (f"v{p}", v)):
                        s.transfer(fifo, buffer, offset=offset, run=u.steps * keys * row)
            s.work(u.steps * _chunk_cycles(design.device, core_rows, head_dim))

        def drain(u: _Unit) -> None:
            for p in range(rows):
                with s.when(less(u.head + p, all_heads)):
                    for j in range(chunks):
                        offset, outer = rows_of(u, p, j)
                        s.transfer(f"o{j}_{p}", o, offset=offset, run=row, outer=outer)

        # The first sweep's data are on their way while the parameters are written.
        u = unit(0, "opening")
        fill(u)
        schedule = (
            chunk_rows, past + first_sweep * super_chunk, total, window, causal, keys,
        )  # fmt: skip
        for p in range(rows):
            own = minimum(batch_rounds, (all_heads - u.head + (rows - 1 - p)) // rows)
            common = (
                own, batch_sweeps, core_rows * head_dim // PIECE, head_dim, core_rows, *schedule,
            )  # fmt: skip
            with s.when(less(0, own)):
                for j in range(chunks):
                    s.start(f"score{j}_{p}", *common, scale, softcap)
                    s.start(f"value{j}_{p}", *common)
        drain(u)
        with s.loop("unit", batch_rounds * batch_sweeps - 1) as n:
            u = unit(n + 1, "next")
            fill(u)
            drain(u)
        s.wait(*(f"o{j}_{p}" for p in range(rows) for j in range(chunks)))
        s.cut()
    return s


@dataclass(frozen=True)
class _Unit:
    """One sweep of all rows of cores: the first row's head, first token, first key, chunks."""

    head: Expr
    token: Expr
    first: Expr
    steps: Expr


def _chunk_cycles(device: Device, rows: Expr, head_dim: Expr) -> Expr:
    """Cycles of the slower core of a pair for a chunk."""
    total = expr(0)
    for d in HEAD_DIMS:
        at = (8, MAX_Q // d)
        scores, values = (
            affine([kernel.cycles(device.architecture, (d, n, *rest)) for n in at], at, rows)
            for kernel, rest in ((FLOW_QKV_SCORES, (8, 0, 0, 0, 0, 0, 0)), (FLOW_QKV_VALUES, ()))
        )
        total = total + equal(head_dim, d) * maximum(scores, values)
    return total
