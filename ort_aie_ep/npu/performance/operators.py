"""What each design asks of the array, in core cycles and bytes: one small function each.

An operator is a sequence of `Step`s. Within a step the streams, the kernels and the DDR traffic
overlap and the slowest decides; steps follow each other. These are closed forms of the designs in
`aie_kernels/designs/`, independent of the simulator that executes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from ort_aie_ep.npu import costs
from ort_aie_ep.npu.errors import DesignError

Bound = Literal["DDR", "streams", "kernels", "control"]

CORE_ROWS = 4
ALL_COLUMNS = 8
DQP_WORDS = 6  # to a core: its five parameters and its start
PAIRS = 4  # of cores: FlowKV's, and FlowQKV's of one query chunk
Q4NX_BLOCK = 5120  # bytes: 32 outputs x 256 inputs
Q4NX_OUTPUTS, Q4NX_INPUTS = 32, 256
BF16 = 2  # bytes
FLOW_KV_CHUNK = 8192  # bytes of keys, and of values
FLOW_QKV_CHUNK = 4096
FLOW_QKV_QUERY = 8192  # query elements of a pair: rows x head dimension
QUERY_CHUNKS = 4  # of a super-chunk: two columns each
SUPERTILE = 512  # rows, and columns, of C on 8 x 4 cores
GEMM_ROWS, GEMM_COLUMNS, GEMM_DEPTH = 64, 128, 64  # of a core's tile, and of a step of K


@dataclass(frozen=True)
class Step:
    """A stretch of work in which everything overlaps.

    `streams` and `kernels` are cycles of the busiest DMA channel and core, `commands` those of the
    command processor, `read` and `write` bytes of DDR; `control` are cycles before or after, that
    overlap with nothing.
    """

    streams: float = 0
    kernels: float = 0
    commands: float = 0
    read: float = 0
    write: float = 0
    control: float = 0


@dataclass(frozen=True)
class Machine:
    """A device as the model sees it. Bandwidths in bytes a second, the rest in seconds.

    `fused_dqp_columns` is 4 (activations on a channel of their own, FlowKV beside it) or 8;
    `flow_kv_pairs` 4 or 8, each with a shim channel for keys and one for values.
    """

    clock_hz: float = costs.CLOCK.value
    columns: int = 8
    ddr_read: float = costs.DDR_READ.value
    ddr_write: float = costs.DDR_WRITE.value
    dispatch: float = costs.DISPATCH.value
    overlay_switch: float = costs.OVERLAY_SWITCH.value
    fused_dqp_columns: int = 4
    flow_kv_pairs: int = PAIRS

    def seconds(self, steps: tuple[Step, ...]) -> float:
        """How long steps take, one after the other."""
        return sum(self.by_bound(steps).values())

    def by_bound(self, steps: tuple[Step, ...]) -> dict[Bound, float]:
        """Seconds of steps by what decides them."""
        total: dict[Bound, float] = {"DDR": 0.0, "streams": 0.0, "kernels": 0.0, "control": 0.0}
        for step in steps:
            alone: dict[Bound, float] = {
                "DDR": max(step.read / self.ddr_read, step.write / self.ddr_write),
                "streams": step.streams / self.clock_hz,
                "kernels": step.kernels / self.clock_hz,
                "control": step.commands / self.clock_hz,
            }
            slowest = max(alone, key=lambda bound: alone[bound])
            total[slowest] += alone[slowest]
            total["control"] += step.control / self.clock_hz
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

    One of the tasks asks for a token and is waited for; the first data takes its time to come.
    """
    return (
        tasks * TASK
        + words * costs.RTP_WORD.value
        + costs.MASKWRITE.value
        + costs.TCT_WAIT.value
        + costs.GATE_IDLE.value
    )


def _stream(size: float) -> float:
    """Cycles of `size` bytes on one channel."""
    return size / costs.STREAM.value


def fused_dqp(outputs: int, inputs: int, columns: int = 4) -> tuple[Step, ...]:
    """A projection of one row by int4 weights.

    A column's two shim channels feed two cores each with Q4NX blocks, by a task a round. A round is
    32 outputs of every core; the last one is moved back over rows that are computed already, so it
    costs as much as the others. With four columns the activations come by a channel of their own
    while the first blocks queue (two a core); with eight every channel carries weights, so the
    activations go ahead of them.
    """
    cores = CORE_ROWS * columns
    channels = 2 * columns
    depth = ceil(inputs / Q4NX_INPUTS)
    rounds = ceil(ceil(outputs / Q4NX_OUTPUTS) / cores)
    block = _stream(Q4NX_BLOCK)
    activations = _stream(BF16 * depth * Q4NX_INPUTS)
    early = 4 * block if columns < ALL_COLUMNS else 0
    kernel = costs.FUSED_DQP_BLOCK.value
    tasks = channels + 1 + columns  # weights of the first round, activations, outputs
    return (
        Step(
            control=control(tasks, DQP_WORDS * cores) + max(0, activations - early) + kernel,
            read=BF16 * inputs,
            write=BF16 * outputs,
        ),
        Step(
            streams=rounds * (depth * 2 * block + costs.MM2S_NEXT.value),
            kernels=rounds * depth * kernel,
            commands=(rounds - 1) * channels * TASK,
            read=rounds * cores * depth * Q4NX_BLOCK,
        ),
    )


def padded_head(head_dim: int) -> int:
    """The head dimension as the attention designs hold it. Raises DesignError above 256."""
    for size in (64, 128, 256):
        if head_dim <= size:
            return size
    raise DesignError(f"head dimension {head_dim}: the attention designs hold at most 256")


def flow_kv(
    keys: int, heads: int, kv_heads: int, head_dim: int, window: int | None, pairs: int = PAIRS
) -> tuple[Step, ...]:
    """Attention of one query to `keys` cached keys.

    KV head h belongs to pair h % pairs; a pair takes its heads in turn, keys and values by a shim
    channel each, in chunks of 8 KB.
    """
    head = padded_head(head_dim)
    seen = keys if window is None else min(keys, window)
    chunks = ceil(seen / (FLOW_KV_CHUNK // (BF16 * head)))
    in_turn = ceil(kv_heads / pairs)
    macs = heads / kv_heads * FLOW_KV_CHUNK / BF16
    kernel = macs / costs.FLOW_KV_RATE.value
    chunk = _stream(FLOW_KV_CHUNK)
    return (
        # Values trail keys by a chunk.
        Step(control=control(tasks=4 * kv_heads, words=8 * pairs) + max(kernel, chunk)),
        Step(
            streams=in_turn * chunks * chunk,
            kernels=in_turn * chunks * kernel,
            read=2 * kv_heads * chunks * FLOW_KV_CHUNK,
        ),
    )


def _vector(rows: int, inputs: int, outputs: int, channel: int, cycles: float) -> tuple[Step, ...]:
    """A vector operator on one core: elements in and out of a row, those of the busiest channel."""
    return (
        Step(
            streams=rows * _stream(BF16 * channel),
            kernels=rows * cycles,
            read=rows * BF16 * inputs,
            write=rows * BF16 * outputs,
            control=control(tasks=4, words=2),
        ),
    )


def rms_norm(rows: int, hidden: int) -> tuple[Step, ...]:
    """RMSNorm of a residual sum: value and residual by a channel each, norm and sum likewise."""
    cycles = hidden * (costs.RMS_NORM.value + costs.ADD.value)
    return _vector(rows, 2 * hidden, 2 * hidden, hidden, cycles)


def rope(rows: int, heads: int, kv_heads: int, head_dim: int, norm: bool) -> tuple[Step, ...]:
    """Rotation of queries and keys, values passed on into the cache; with `norm` RMSNorms first."""
    rotated = (heads + kv_heads) * head_dim
    everything = rotated + kv_heads * head_dim
    cycles = rotated * (costs.ROPE.value + (costs.RMS_NORM.value if norm else 0))
    return _vector(rows, everything + head_dim, everything, everything, cycles)


def gated(rows: int, ffn: int, gelu: bool) -> tuple[Step, ...]:
    """SiLU (or GELU) of the gate times up, a channel each."""
    cycles = ffn * ((costs.GELU if gelu else costs.SILU).value + costs.MUL.value)
    return _vector(rows, 2 * ffn, ffn, ffn, cycles)


def dequant(outputs: int, inputs: int, columns: int = 8) -> tuple[Step, ...]:
    """Q4NX to bf16 in DDR on all cores: 5,120 B in, 16,384 B out by two channels a column."""
    blocks = ceil(outputs / Q4NX_OUTPUTS) * ceil(inputs / Q4NX_INPUTS)
    produced = BF16 * Q4NX_OUTPUTS * Q4NX_INPUTS
    return (
        Step(
            streams=ceil(blocks / (2 * columns)) * _stream(produced),
            kernels=ceil(blocks / (CORE_ROWS * columns)) * costs.DEQUANT_BLOCK.value,
            read=blocks * Q4NX_BLOCK,
            write=blocks * produced,
            control=control(tasks=4 * columns, words=CORE_ROWS * columns),
        ),
    )


def _extent(size: int, tile: int) -> tuple[int, int]:
    """(passes, extent computed) of a dimension of C in supertiles of 512.

    Nothing is padded beyond a core's tile: the last pass is moved back and computes again what
    overlaps, which costs as much as a whole pass.
    """
    if size < SUPERTILE:
        return 1, ceil(size / tile) * tile
    passes = ceil(size / SUPERTILE)
    return passes, passes * SUPERTILE


def gemm(m: int, k: int, n: int) -> tuple[Step, ...]:
    """C (m, n) = A (m, k) B (k, n) in bf16, on 8 x 4 cores with a supertile of 512 x 512.

    A core keeps 64 x 128 of C, takes A and B by a channel each, 64 deep, and sends C into its
    memory tile before it begins the next; from there C goes to DDR beside the next one's reads. A
    is read once for each 512 columns of C, B once for each 512 rows.
    """
    passes_m, rows = _extent(m, GEMM_ROWS)
    passes_n, columns = _extent(n, GEMM_COLUMNS)
    supertiles = passes_m * passes_n
    steps = supertiles * ceil(k / GEMM_DEPTH)
    depth = ceil(k / GEMM_DEPTH) * GEMM_DEPTH
    drain = supertiles * _stream(BF16 * GEMM_ROWS * GEMM_COLUMNS)
    macs = GEMM_ROWS * GEMM_COLUMNS * GEMM_DEPTH
    return (
        Step(
            streams=steps * _stream(BF16 * GEMM_DEPTH * GEMM_COLUMNS),
            kernels=steps * macs / costs.GEMM_RATE.value,
            read=BF16 * depth * (rows * passes_n + columns * passes_m),
            write=BF16 * rows * columns,
        ),
        Step(
            streams=drain,
            control=control(tasks=8 * 2 + 8, words=32 * 2),
        ),
    )


def flow_qkv(
    queries: int,
    past: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    window: int | None,
    causal: bool = True,
) -> tuple[Step, ...]:
    """Attention of `queries` rows after `past` cached ones.

    Two columns a query chunk, four chunks a super-chunk, whose keys and values are broadcast to
    all; KV head h is pair h % 4's. For every super-chunk and four KV heads, a sweep over the keys
    that any of its queries sees. Each pair holds at most 8,192 query elements and exchanges them
    between sweeps.
    """
    head = padded_head(head_dim)
    group = ceil(heads / kv_heads)
    rows = max(1, FLOW_QKV_QUERY // head // group)  # query positions of a chunk
    super_chunk = QUERY_CHUNKS * rows
    keys = FLOW_QKV_CHUNK // (BF16 * head)
    chunks = 0
    super_chunks = ceil(queries / super_chunk)
    for index in range(super_chunks):
        first = past + index * super_chunk
        end = past + min(queries, (index + 1) * super_chunk) if causal else past + queries
        begin = 0 if window is None else max(0, first - window + 1)
        chunks += ceil(end / keys) - begin // keys
    turns = ceil(kv_heads / PAIRS)
    macs = rows * group * keys * head
    exchange = _stream(BF16 * FLOW_QKV_QUERY)
    return (
        Step(
            streams=turns * chunks * _stream(FLOW_QKV_CHUNK),
            kernels=turns * chunks * macs / costs.FLOW_QKV_RATE.value,
            read=2 * kv_heads * chunks * FLOW_QKV_CHUNK,
        ),
        # Queries in and outputs out, between sweeps.
        Step(
            streams=turns * super_chunks * 2 * exchange,
            read=BF16 * heads * head * queries,
            write=BF16 * heads * head * queries,
            control=control(tasks=turns * 16, words=32 * 4),
        ),
    )
