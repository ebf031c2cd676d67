"""Closed forms of norms, rotation and activations of one row, or of a few, on one core each."""

from __future__ import annotations

from math import ceil

from ort_aie_ep.aie_kernels.invocation import Costs, Invocation
from ort_aie_ep.aie_kernels.kernel_cycles import OBJECT, PUBLISHED, RMS_OBJECT, Kernels
from ort_aie_ep.aie_kernels.machine import BF16, SHORT_RUN, TASK, Step, control, stream
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.device import TILES, WORD

MAX_STEP = TILES["shim"].max_step * WORD  # bytes between heads that one task reaches


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
            kernels=cycles + outputs * costs.GATE_PIPELINED.value + 2 * stream(piece),
            commands=outputs * TASK,
            read=read,
            write=write,
            control=needed * TASK + costs.TCT_WAIT.value,
            idle=1,
            meanwhile=(inputs - needed) * TASK
            + words * costs.RTP_WORD.value
            + max(0, TASK + costs.MASKWRITE.value - first - stream(piece)),
        ),
    )


def _norm(invocation: Invocation) -> tuple[Step, ...]:
    p = invocation.parameters
    return token_norm(p["n"], bool(p["residual"]), invocation.kernels)


def _rotation(invocation: Invocation) -> tuple[Step, ...]:
    p = invocation.parameters
    return token_rope(p["heads"], p["head_dim"], bool(p["norm"]), invocation.kernels)


def _append(invocation: Invocation) -> tuple[Step, ...]:
    p = invocation.parameters
    return token_append(p["kv_heads"], p["head_dim"], p["capacity"], invocation.kernels)


def _move(invocation: Invocation) -> tuple[Step, ...]:
    p = invocation.parameters
    return token_rope(p["heads"], p["dim"], False, invocation.kernels)


def _activation(invocation: Invocation) -> tuple[Step, ...]:
    p = invocation.parameters
    return gated(p["rows"], p["n"], bool(p["kind"]), invocation.kernels)


#: Of one row: a plan has no more of them here.
SEQUENCES: Costs = {
    "rms_norm": ("vector", _norm),
    "rope": ("vector", _rotation),
    "append": ("vector", _append),
    "move_heads": ("vector", _move),
    "glu": ("vector", _activation),
}
