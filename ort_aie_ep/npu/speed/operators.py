"""What each design needs of the array, in core cycles and bytes: one small function each.

An operator is a sequence of `Step`s. Within a step, the streams, the kernels and the DDR traffic
overlap and the slowest of them decides; steps follow each other. These are closed forms of the
designs in `aie_kernels/`, independent of the simulator that executes them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, gcd
from typing import Literal

from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.npu.speed.kernels import (
    GEMM_COLUMNS,
    GEMM_DEPTH,
    GEMM_ROWS,
    OBJECT,
    PUBLISHED,
    RMS_OBJECT,
    Kernels,
)
from ort_aie_ep.npu.vocabulary import costs
from ort_aie_ep.npu.vocabulary.device import TILES, WORD
from ort_aie_ep.npu.vocabulary.eras import PAPERS, Era
from ort_aie_ep.npu.vocabulary.errors import DesignError

Bound = Literal["DDR", "streams", "kernels", "control"]

CORE_ROWS = 4
ALL_COLUMNS = 8
DQP_WORDS = 6  # to a core: its five parameters and its start
FLOW_KV_WORDS = 19  # to a pair
FLOW_QKV_WORDS = 16 * 26  # to all pairs
PAIRS = 4  # of cores: FlowKV's, and FlowQKV's of one query chunk
Q4NX_OUTPUTS, Q4NX_INPUTS = 32, 256
BF16 = 2  # bytes
FLOW_KV_CHUNK = 8192  # bytes of keys, and of values
FLOW_QKV_CHUNK = 4096
FLOW_KV_QUERIES = 2048  # query elements of a sweep
STARTED_SWEEPS = 16  # of FlowQKV between two starts
FLOW_QKV_QUERY = 8192  # query elements of a pair: rows x head dimension
QUERY_CHUNKS = 4  # of a super-chunk: two columns each
SUPERTILE = 512  # rows, and columns, of C on 8 x 4 cores
OWN_ROWS = 16  # the rows of a band of 64 that each core processes between products
GEMM_SLAB = 256  # of K in a memory tile: K is padded to it
SHORT_GEMM_COLUMNS = 64  # of C in a core
GEMM_ITERATIONS = 64  # megatiles of a task of A
ROW_OBJECTS = 8  # of 64 x 64 of an operand, in a result of 64 x 512
ROW_WEIGHTS = 4  # objects that hold all weights of a norm
ROW_STRIPS = 16  # of a core's part of a result; two have room in it
ROW_RESULTS = 256  # of a column in a run
MAX_STEP = TILES["shim"].max_step * WORD  # bytes between heads that one task reaches
SHORT_RUN = 64  # bytes: the smallest transfer from or to DDR


@dataclass(frozen=True)
class Step:
    """A stretch of work in which everything overlaps.

    `shim` are bytes of the busiest channel between DDR and the array, `gates` the cycles that it
    waits between tasks. `streams` and `kernels` are cycles of the busiest channel inside of the
    array and of the busiest core, `commands` those of the command processor, `read` and `write`
    bytes of DDR. `control` are cycles before or after that overlap with nothing; `idle` counts the
    waits for the first data of a channel, during which the command processor has `meanwhile` cycles
    of work.
    """

    shim: float = 0
    gates: float = 0
    streams: float = 0
    kernels: float = 0
    commands: float = 0
    read: float = 0
    write: float = 0
    control: float = 0
    idle: float = 0
    meanwhile: float = 0


@dataclass(frozen=True)
class Machine:
    """A device as the model sees it. Bandwidths in bytes a second, the rest in seconds.

    `of` makes the machine of an era; without it, the era is that of the papers.

    `fused_dqp_columns` is 4 (activations have their own channel, and FlowKV is beside it) or 8;
    `flow_kv_pairs` is 4 or 8, each with a shim channel for keys and one for values; `vector_copies`
    is the number of copies of each vector operator that share the rows of a prompt.
    """

    clock_hz: float = costs.CLOCK.value
    columns: int = 8
    ddr_read: float = PAPERS.ddr_read.value
    ddr_write: float = PAPERS.ddr_write.value
    shim_channel: float = PAPERS.shim_channel.value
    gate_idle: float = PAPERS.gate_idle.value / costs.CLOCK.value
    dispatch: float = PAPERS.dispatch.value
    overlay_switch: float = PAPERS.overlay_switch.value
    fused_dqp_columns: int = 4
    flow_kv_pairs: int = PAIRS
    vector_copies: int = 1
    kernels: Kernels = PUBLISHED

    @classmethod
    def of(cls, era: Era, clock_hz: float | None = None, columns: int = 8) -> Machine:
        """The device with an era's constants; `clock_hz` is another clock than the era's."""
        clock_hz = clock_hz or era.clock.value
        return cls(
            clock_hz=clock_hz,
            columns=columns,
            ddr_read=era.ddr_read.value,
            ddr_write=era.ddr_write.value,
            shim_channel=era.shim_channel.value,
            gate_idle=era.gate_idle.value / clock_hz,
            dispatch=era.dispatch.value,
            overlay_switch=era.overlay_switch.value,
        )

    @property
    def one_context(self) -> bool:
        """Whether a change of overlay only loads a PDI."""
        return self.overlay_switch <= costs.PDI_SWITCH.value

    def seconds(self, steps: tuple[Step, ...]) -> float:
        """The time that steps take, one after another."""
        return sum(self.by_bound(steps).values())

    def by_bound(self, steps: tuple[Step, ...]) -> dict[Bound, float]:
        """The seconds of steps, by what limits them."""
        total: dict[Bound, float] = {"DDR": 0.0, "streams": 0.0, "kernels": 0.0, "control": 0.0}
        for step in steps:
            alone: dict[Bound, float] = {
                "DDR": max(step.read / self.ddr_read, step.write / self.ddr_write),
                "streams": max(
                    step.shim / self.shim_channel + step.gates / self.clock_hz,
                    step.streams / self.clock_hz,
                ),
                "kernels": step.kernels / self.clock_hz,
                "control": step.commands / self.clock_hz,
            }
            slowest = max(alone, key=lambda bound: alone[bound])
            total[slowest] += alone[slowest]
            waits = max(step.idle * self.gate_idle, step.meanwhile / self.clock_hz)
            total["control"] += step.control / self.clock_hz + waits
        return total


#: Cycles of one shim task: eight descriptor words, an address patch and a push.
TASK = (
    costs.BLOCKWRITE.value
    + 8 * costs.BLOCKWRITE_WORD.value
    + costs.DDR_PATCH.value
    + costs.WRITE32.value
)


def control(tasks: int, words: int = 0) -> float:
    """Cycles before an operator moves: shim tasks, and words of parameters and start locks.

    One of the tasks requests a token, and the operator waits for it. The time until the first data
    arrives is not included: `Step.idle` counts it.
    """
    return (
        tasks * TASK + words * costs.RTP_WORD.value + costs.MASKWRITE.value + costs.TCT_WAIT.value
    )


def _stream(size: float) -> float:
    """The cycles that one channel needs for `size` bytes."""
    return size / costs.STREAM.value


def fused_dqp(
    outputs: int, inputs: int, columns: int = 4, kernels: Kernels = PUBLISHED,
    form: BlockForm = SHIPPING,
) -> tuple[Step, ...]:  # fmt: skip
    """A projection of one row by weights in a form; a block of 8 bits, for which there is no
    kernel, takes the cycles of one of 4.

    Each of a column's two shim channels feeds two cores with Q4NX blocks, by a task a round. A
    round is 32 outputs of every core. The last round moves back over rows that are already
    computed, so it costs as much as the others. With four columns the activations come by their own
    channel while the first blocks queue (two a core). With eight columns every channel carries
    weights, so the activations go ahead of them.
    """
    cores = CORE_ROWS * columns
    channels = 2 * columns
    depth = ceil(inputs / Q4NX_INPUTS)
    rounds = ceil(ceil(outputs / Q4NX_OUTPUTS) / cores)
    size = form.block_bytes
    block = _stream(size)
    activations = _stream(BF16 * depth * Q4NX_INPUTS)
    early = 4 * block if columns < ALL_COLUMNS else 0
    kernel = kernels.dqp_block_two_bits if form.bits == 2 else kernels.dqp_block
    tasks = channels + 1 + columns  # weights of the first round, activations, outputs
    return (
        Step(
            control=control(tasks, DQP_WORDS * cores) + max(0, activations - early) + kernel,
            idle=1,
            read=BF16 * inputs,
            write=BF16 * outputs,
        ),
        Step(
            shim=rounds * depth * 2 * size,
            gates=rounds * costs.GATE_PIPELINED.value,
            kernels=rounds * depth * kernel,
            commands=(rounds - 1) * channels * TASK,
            read=rounds * cores * depth * size,
        ),
    )


def copies(steps: tuple[Step, ...], count: int) -> tuple[Step, ...]:
    """Steps of a one-core operator, shared by `count` copies with a core and channels each."""
    return tuple(replace(s, shim=s.shim / count, kernels=s.kernels / count) for s in steps)


def padded_head(head_dim: int) -> int:
    """The head dimension as the attention designs pad it. Raises DesignError above 256."""
    for size in (64, 128, 256):
        if head_dim <= size:
            return size
    raise DesignError(f"head dimension {head_dim}: the attention designs hold at most 256")


def flow_kv(
    keys: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    window: int | None,
    pairs: int = PAIRS,
    kernels: Kernels = PUBLISHED,
    shared: bool = True,
) -> tuple[Step, ...]:
    """Attention of one query to `keys` cached keys.

    A sweep is a walk through the keys of a KV head, for at most 2,048 query elements. As many pairs
    share its chunks as it takes to keep all pairs at work, if there are enough chunks; then one
    after the other merges what it has. If not `shared`, each sweep belongs to one pair. Keys and
    values each have a shim channel, in chunks of 8 KB; the queries go ahead on the keys' channel.
    """
    head = padded_head(head_dim)
    group = heads // kv_heads
    parts = ceil(group / (FLOW_KV_QUERIES // head))
    queries = ceil(group / parts)
    sweeps = kv_heads * parts
    per_chunk = FLOW_KV_CHUNK // (BF16 * head)
    first = 0 if window is None else max(0, keys - window)
    chunks = ceil(keys / per_chunk) - first // per_chunk
    sharing = pairs // gcd(pairs, sweeps)
    if chunks < sharing or not shared:
        sharing = 1
    walks = sharing * sweeps  # of single pairs
    at_once = min(walks, pairs)
    rounds = ceil(walks / pairs)
    own = ceil(chunks / sharing)
    chunk = _stream(FLOW_KV_CHUNK)
    kernel = kernels.flow_kv_chunk(queries, head)
    return (
        # Queries, keys, values and outputs of a sweep are tasks; values trail keys by a chunk.
        Step(control=control(4 * at_once, FLOW_KV_WORDS * at_once) + max(kernel, chunk), idle=1),
        Step(
            shim=rounds * (own * FLOW_KV_CHUNK + BF16 * queries * head),
            kernels=rounds * own * kernel,
            commands=4 * (walks - at_once) * TASK,
            read=2 * sweeps * chunks * FLOW_KV_CHUNK,
            control=(sharing - 1) * kernels.flow_kv_merge(queries, head),
        ),
    )


def rms_norm(rows: int, hidden: int, kernels: Kernels = PUBLISHED) -> tuple[Step, ...]:
    """RMSNorm of a residual sum, on one core.

    Residual and weight share a channel, and so do the sum and its norm. Each row needs a task for
    each of them, and the core waits for three of these tasks to start.
    """
    return (
        Step(
            shim=rows * 2 * BF16 * hidden,
            kernels=rows * (kernels.rms_norm(hidden) + 3 * costs.GATE_PIPELINED.value),
            commands=(rows - 1) * 4 * TASK,
            read=rows * 3 * BF16 * hidden,
            write=rows * 2 * BF16 * hidden,
            control=control(tasks=5, words=7),
            idle=1,
        ),
    )


def rope(
    rows: int, heads: int, kv_heads: int, head_dim: int, norm: bool, kernels: Kernels = PUBLISHED
) -> tuple[Step, ...]:
    """Rotation of queries, and of keys into the cache, on one core; with `norm` RMSNorms first.

    Values go the same way, unrotated. The cache is written in runs of 16 bytes, by one task for
    eight tokens, or for a head of a single token.
    """
    queries, keys = heads * head_dim, kv_heads * head_dim

    def step(elements: int, cycles: float, tasks: int, run: float) -> Step:
        return Step(
            shim=rows * BF16 * elements,
            kernels=rows * cycles,
            commands=(tasks - 1) * TASK,
            read=rows * BF16 * (elements + 256),
            write=rows * BF16 * elements * run,
            control=control(tasks=4, words=9),
            idle=1,
        )

    into_cache = kv_heads if rows == 1 else ceil(rows / 8)
    short = SHORT_RUN / 16
    plain = kernels.rope(keys, head_dim)
    norms = kernels.qk_norm(queries, head_dim), kernels.qk_norm(keys, head_dim)
    of_queries, of_keys = norms if norm else (0, 0)
    return (
        step(queries, kernels.rope(queries, head_dim) + of_queries, 1, 1),
        step(keys, plain + of_keys, into_cache, short),
        step(keys, plain, into_cache, short),
    )


def gated(rows: int, ffn: int, gelu: bool, kernels: Kernels = PUBLISHED) -> tuple[Step, ...]:
    """SiLU (or GELU) of the gate times up, on one core that reads both in turn from one channel."""
    return (
        Step(
            shim=rows * 2 * BF16 * ffn,
            kernels=rows * (kernels.gelu if gelu else kernels.silu)(ffn),
            read=rows * 2 * BF16 * ffn,
            write=rows * BF16 * ffn,
            control=control(tasks=2, words=3),
            idle=1,
        ),
    )


def token_norm(hidden: int, residual: bool, kernels: Kernels = PUBLISHED) -> tuple[Step, ...]:
    """`rms_norm` of one row, of a residual sum or of x alone."""
    size = BF16 * hidden
    cycles = kernels.rms_norm(hidden) if residual else kernels.rms_alone(hidden)
    return _of_token(
        cycles, size, piece=BF16 * RMS_OBJECT,
        first=cycles / 2,  # all of the row is there before its first result
        needed=1 + residual, inputs=2 + residual, outputs=1 + residual, words=7,
        read=(2 + residual) * size, write=(1 + residual) * size,
    )  # fmt: skip


def token_rope(
    heads: int, head_dim: int, norm: bool, kernels: Kernels = PUBLISHED
) -> tuple[Step, ...]:
    """Rotation of the heads of one row, or with `norm` their RMSNorms first."""
    elements = heads * head_dim
    cycles = kernels.rope(elements, head_dim)
    if norm:
        cycles += kernels.qk_norm(elements, head_dim)
    return _rotate_token(elements, cycles, inputs=2 + norm, outputs=1, run=1)


def token_append(
    kv_heads: int, head_dim: int, capacity: int, kernels: Kernels = PUBLISHED
) -> tuple[Step, ...]:
    """The keys or values of one row into the cache, in runs of 16 bytes.

    All heads are one task, unless they are too far apart for a descriptor, or fewer than the core
    processes at a time: then each is written as often as it takes to fill that.
    """
    elements = kv_heads * head_dim
    together = BF16 * capacity * head_dim <= MAX_STEP and elements % OBJECT == 0
    return _rotate_token(
        elements, kernels.rope(elements, head_dim), inputs=2,
        outputs=1 if together else kv_heads * ceil(OBJECT / elements), run=SHORT_RUN / 16,
    )  # fmt: skip


def _rotate_token(
    elements: int, cycles: float, *, inputs: int, outputs: int, run: float
) -> tuple[Step, ...]:
    size = BF16 * elements
    odd = elements > OBJECT and elements % OBJECT > 0  # the last piece is a task of its own
    return _of_token(
        cycles, size, piece=BF16 * OBJECT, first=cycles / ceil(elements / OBJECT),
        needed=2 + odd, inputs=inputs + odd, outputs=outputs + odd, words=9,
        read=size + BF16 * OBJECT, write=size * run,
    )  # fmt: skip


def _of_token(
    cycles: float, size: float, *, piece: float, first: float, needed: int, inputs: int,
    outputs: int, words: int, read: float, write: float,
) -> tuple[Step, ...]:  # fmt: skip
    """A row of `size` bytes in pieces of `piece` bytes, on the core of a vector operator.

    The core begins when `needed` of its input tasks have data, and its parameters are written. Its
    first result is ready after `first` cycles, and leaves when the task of that is there as well.
    The first piece in, the gates of outputs and the last piece out overlap with nothing.
    """
    return (
        Step(
            shim=size,
            kernels=cycles + outputs * costs.GATE_PIPELINED.value + 2 * _stream(piece),
            commands=outputs * TASK,
            read=read,
            write=write,
            control=needed * TASK + costs.TCT_WAIT.value,
            idle=1,
            meanwhile=(inputs - needed) * TASK
            + words * costs.RTP_WORD.value
            + max(0, TASK + costs.MASKWRITE.value - first - _stream(piece)),
        ),
    )


def dequant(
    outputs: int, inputs: int, columns: int = ALL_COLUMNS, kernels: Kernels = PUBLISHED,
    form: BlockForm = SHIPPING,
) -> tuple[Step, ...]:  # fmt: skip
    """Q4NX to bf16 in DDR on all cores, four blocks a column at a time.

    A column receives them by one channel, and sends 16,384 bytes for each block by two channels.
    """
    blocks = ceil(outputs / Q4NX_OUTPUTS) * ceil(inputs / Q4NX_INPUTS)
    share = ceil(blocks / CORE_ROWS / columns)  # of a column, in fours
    produced = BF16 * Q4NX_OUTPUTS * Q4NX_INPUTS
    in_all = share * CORE_ROWS * columns
    return (
        Step(
            shim=share * 2 * produced,
            kernels=share * kernels.dequant_block,
            read=in_all * form.block_bytes,
            write=in_all * produced,
            control=control(tasks=3 * columns, words=2 * CORE_ROWS * columns),
            idle=1,
        ),
    )


def gemm(m: int, k: int, n: int, kernels: Kernels = PUBLISHED) -> tuple[Step, ...]:
    """C (m, n) = A (m, k) B (k, n) in bf16, on 8 x 4 cores with megatiles of 512 x 512.

    A core keeps 64 x 128 of C. It receives A and B by a channel each, 64 deep, and sends C into its
    memory tile: half of it during products, half of it before it goes on. From there C goes to DDR
    during the next block's reads. A is read once for each 512 columns of C, B once for each 512
    rows. K is padded to 256. Bands of C that would pass its end are moved back and compute some of
    it twice, so every pass is whole. The first slab of B fills its memory tile before the
    computation begins; the last C, of the same size, leaves its memory tile after the computation
    ends.
    """
    passes_m, passes_n = ceil(m / SUPERTILE), ceil(n / SUPERTILE)
    depth = ceil(k / GEMM_SLAB) * GEMM_SLAB
    megatiles = passes_m * passes_n
    steps = megatiles * depth // GEMM_DEPTH
    tasks_a_and_c = passes_m * 2 * ALL_COLUMNS * ceil(passes_n / GEMM_ITERATIONS)
    return (
        Step(
            streams=steps * _stream(BF16 * GEMM_DEPTH * GEMM_COLUMNS),
            kernels=steps * kernels.gemm_step,
            commands=(tasks_a_and_c + megatiles * CORE_ROWS) * TASK,
            read=megatiles * 2 * SUPERTILE * depth * BF16,
            write=megatiles * SUPERTILE * SUPERTILE * BF16,
        ),
        Step(
            streams=megatiles * _stream(BF16 * GEMM_ROWS * GEMM_COLUMNS // 2),
            control=control(tasks=20, words=3 * 32) + megatiles * kernels.gemm_block,
            idle=1,
        ),
        Step(shim=2 * BF16 * GEMM_SLAB * GEMM_COLUMNS),
    )


def short_gemm(
    m: int, k: int, n: int, columns: int = ALL_COLUMNS, kernels: Kernels = PUBLISHED,
    form: BlockForm = SHIPPING,
) -> tuple[Step, ...]:  # fmt: skip
    """C (m, n) = A (m, k) W in bf16 from Q4NX weights, 64 rows at a time.

    A core has 64 columns of C, and dequantises their weights while it multiplies. All cores receive
    A by one channel, those of a column their weights by another. The first weights fill a memory
    tile before the computation begins, and the last C leaves after it ends.
    """
    depth = ceil(k / GEMM_SLAB)
    column = CORE_ROWS * SHORT_GEMM_COLUMNS
    passes = ceil(m / GEMM_ROWS) * ceil(n / (column * columns))
    share = GEMM_COLUMNS // SHORT_GEMM_COLUMNS  # a core's columns, of those of `gemm`
    weights = column // Q4NX_OUTPUTS * form.block_bytes  # of a column, for a slab
    a = BF16 * GEMM_ROWS * GEMM_SLAB
    c = BF16 * GEMM_ROWS * column
    blocks = SHORT_GEMM_COLUMNS // Q4NX_OUTPUTS
    slab = GEMM_SLAB // GEMM_DEPTH * kernels.gemm_step / share + blocks * kernels.dequant_block
    return (
        Step(
            shim=passes * depth * weights,
            streams=passes * depth * _stream(a),
            kernels=passes * depth * slab,
            commands=(passes - 1) * (1 + 2 * columns) * TASK,
            read=passes * depth * (a + columns * weights),
            write=passes * columns * c,
        ),
        Step(
            streams=passes * _stream(c / CORE_ROWS),
            control=control(tasks=1 + 2 * columns, words=3 * CORE_ROWS * columns)
            + passes * kernels.gemm_block / share,
            idle=1,
        ),
        Step(shim=weights + c),
    )


def row_gate(m: int, n: int, gelu: bool, kernels: Kernels = PUBLISHED) -> tuple[Step, ...]:
    """SiLU (or GELU) of the gate times up, for the rows of a prompt, on the cores of GEMM."""
    cycles = kernels.row_gelu if gelu else kernels.row_silu
    return _of_rows(m, n, kept=ROW_OBJECTS, taken=ROW_OBJECTS, cycles=cycles)


def row_norm(
    m: int, k: int, residual: bool, norm: bool, kernels: Kernels = PUBLISHED
) -> tuple[Step, ...]:
    """A residual sum and its RMSNorm, or one of the two, for the rows of a prompt, likewise.

    A norm receives all weights, then its rows twice: for the sums of squares, then for the results.
    """
    steps: tuple[Step, ...] = ()
    cycles = kernels.rms_norm(OWN_ROWS * GEMM_DEPTH) / 2
    if residual:
        steps += _of_rows(m, k, kept=ROW_OBJECTS, taken=ROW_OBJECTS, cycles=cycles)
    if norm:
        ahead = ceil(k / GEMM_SLAB) * GEMM_SLAB // GEMM_DEPTH
        steps += _of_rows(m, k, taken=ROW_OBJECTS, cycles=cycles, ahead=ahead, weights=ROW_WEIGHTS)
    return steps


def _of_rows(
    m: int, n: int, *, taken: int, cycles: float, kept: int = 0, ahead: int = 0, weights: int = 0
) -> tuple[Step, ...]:
    """Results of 64 x 512 for each column of the array, from objects of 64 x 64.

    All cores of a column receive every object by one channel. For each result they store `kept`
    objects and process `taken`, `cycles` each; `ahead` objects come for each band of rows, and
    `weights` for each run. The first data comes while the parameters are written.

    The channel is at most two objects ahead of its cores. So they wait for all that they store but
    the first, and again while their result leaves: all of it but the two strips that have room.
    The last result leaves its memory tile when nothing else moves.
    """
    bands, tiles = ceil(m / SUPERTILE), ceil(n / SUPERTILE)
    results = bands * tiles
    runs = ceil(bands / max(1, ROW_RESULTS // tiles))
    objects = results * (kept + taken) + bands * ahead + runs * weights
    size = BF16 * GEMM_ROWS * GEMM_DEPTH
    leaving = _stream(BF16 * OWN_ROWS * SUPERTILE) * (1 - 2 / ROW_STRIPS)
    waiting = max(0, kept - 1) * _stream(size)
    last = BF16 * GEMM_ROWS * SUPERTILE
    first_tasks = 2 * ALL_COLUMNS
    tasks = results * (ceil((kept + taken) / ROW_OBJECTS) + 1) + bands * bool(ahead)
    return (
        Step(
            shim=objects * size,
            streams=objects * _stream(size),
            kernels=results * (waiting + taken * cycles + leaving),
            commands=(tasks * ALL_COLUMNS - first_tasks) * TASK,
            read=objects * size * ALL_COLUMNS,
            write=(results - runs) * last * ALL_COLUMNS,
            control=runs * control(first_tasks, words=4 * CORE_ROWS * ALL_COLUMNS),
        ),
        Step(shim=runs * last, write=runs * last * ALL_COLUMNS),
    )


def flow_qkv(
    queries: int,
    past: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    window: int | None,
    causal: bool = True,
    kernels: Kernels = PUBLISHED,
) -> tuple[Step, ...]:
    """Attention of `queries` rows after `past` cached ones.

    A query chunk uses two columns. A super-chunk is four query chunks, all of which receive its
    keys and values by broadcast. A row of cores processes one KV head. A group is divided into
    parts, which the rows of cores treat as separate heads, when it is too large for 8 queries or
    rows of cores would be idle. For every super-chunk and four (parts of) KV heads, a sweep visits
    the keys that any of its queries sees.
    """
    head = padded_head(head_dim)
    group = heads // kv_heads
    most = FLOW_QKV_QUERY // head  # rows of a pair: queries of the heads of a part
    wanted = max(ceil(group / (most // 8)), min(group, PAIRS // kv_heads))
    part = ceil(group / wanted)
    all_heads = kv_heads * ceil(group / part)
    longest = most // part // 8 * 8
    super_chunks = ceil(queries / (QUERY_CHUNKS * longest))
    chunk_rows = 8 * ceil(queries / (super_chunks * QUERY_CHUNKS * 8))
    super_chunk = QUERY_CHUNKS * chunk_rows
    keys = FLOW_QKV_CHUNK // (BF16 * head)
    chunks = 0
    for index in range(super_chunks):
        first = past + index * super_chunk
        end = past + (min(queries, (index + 1) * super_chunk) if causal else queries)
        begin = 0 if window is None else max(0, first - window + 1)
        chunks += ceil(end / keys) - begin // keys
    turns = ceil(all_heads / PAIRS)
    sweeps = turns * super_chunks
    tasks = PAIRS * (2 * QUERY_CHUNKS + 2)  # queries, outputs; keys and values
    rows = part * chunk_rows
    return (
        Step(
            streams=turns * chunks * _stream(FLOW_QKV_CHUNK),
            kernels=turns * chunks * kernels.flow_qkv_chunk(rows, head),
            commands=(sweeps - 1) * tasks * TASK,
            read=2 * all_heads * chunks * FLOW_QKV_CHUNK,
        ),
        # Between sweeps queries enter, two cores a channel, while outputs leave.
        Step(
            streams=sweeps * _stream(2 * BF16 * rows * head),
            read=BF16 * heads * head * queries,
            write=BF16 * heads * head * queries,
            control=sweeps * kernels.flow_qkv_begin(rows, head)
            + ceil(sweeps / STARTED_SWEEPS) * control(tasks, FLOW_QKV_WORDS),
            idle=ceil(sweeps / STARTED_SWEEPS),
        ),
    )
