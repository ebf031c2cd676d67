"""Closed forms of norms, rotation and activations of a row, on one core each."""

from __future__ import annotations

from math import ceil

from ort_aie_ep.aie_kernels.cycles import of_call
from ort_aie_ep.aie_kernels.invocation import Costs
from ort_aie_ep.aie_kernels.machine import BF16, SHORT_RUN, TASK, Step, control, stream
from ort_aie_ep.aie_kernels.vector_ops import kernels
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.device import TILES, WORD
from ort_aie_ep.npu.terms.kernel import Kernel

RMS_OBJECT, OBJECT = 128, 256  # elements of the operators' pieces
MAX_STEP = TILES["shim"].max_step * WORD  # bytes between heads that one task reaches


def norm_cycles(elements: int, *, residual: bool) -> float:
    """The RMSNorm of a row, or of its residual sum."""
    row = of_call(kernels.RMS_BEGIN) + of_call(kernels.RMS_SCALE)
    summed = (kernels.RMS_ADD, kernels.RMS_SUM) if residual else (kernels.RMS_LOAD,)
    piece = sum(of_call(kernel) for kernel in (*summed, kernels.RMS_FINISH))
    return row + ceil(elements / RMS_OBJECT) * piece


def _pieces(kernel: Kernel, elements: int, *scalars: int) -> float:
    """An operator of pieces of 256."""
    return ceil(elements / OBJECT) * of_call(kernel, *scalars)


def gated(ffn: int, gelu: bool) -> tuple[Step, ...]:
    """SiLU (or GELU) of the gate times up, on one core that reads both in turn from one channel."""
    kernel = kernels.GELU_MUL if gelu else kernels.SILU_MUL
    return (
        Step(
            shim=2 * BF16 * ffn,
            kernels=_pieces(kernel, ffn, OBJECT),
            read=2 * BF16 * ffn,
            write=BF16 * ffn,
            control=control(tasks=2, words=3),
            idle=1,
        ),
    )


def token_norm(hidden: int, residual: bool) -> tuple[Step, ...]:
    """The RMSNorm of one row, of a residual sum or of x alone, on one core."""
    size = BF16 * hidden
    cycles = norm_cycles(hidden, residual=residual)
    return _of_token(
        cycles, size, piece=BF16 * RMS_OBJECT,
        first=cycles / 2,  # all of the row is there before its first result
        needed=1 + residual, inputs=2 + residual, outputs=1 + residual, words=7,
        read=(2 + residual) * size, write=(1 + residual) * size,
    )  # fmt: skip


def token_rope(heads: int, head_dim: int, norm: bool) -> tuple[Step, ...]:
    """Rotation of the heads of one row, or with `norm` their RMSNorms first."""
    elements = heads * head_dim
    cycles = _pieces(kernels.ROPE, elements, head_dim, head_dim)
    if norm:
        cycles += _pieces(kernels.QK_NORM, elements, head_dim)
    return _rotate_token(elements, cycles, inputs=2 + norm, outputs=1, run=1)


def token_append(kv_heads: int, head_dim: int, capacity: int) -> tuple[Step, ...]:
    """The keys or values of one row into the cache, in runs of 16 bytes.

    All heads are one task, unless they are too far apart for a descriptor, or fewer than the core
    processes at a time: then each is written as often as it takes to fill that.
    """
    elements = kv_heads * head_dim
    together = BF16 * capacity * head_dim <= MAX_STEP and elements % OBJECT == 0
    return _rotate_token(
        elements, _pieces(kernels.ROPE, elements, head_dim, head_dim), inputs=2,
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


SEQUENCES: Costs = {
    "rms_norm": ("vector", lambda p, _: token_norm(p["n"], bool(p["residual"]))),
    "rope": ("vector", lambda p, _: token_rope(p["heads"], p["head_dim"], bool(p["norm"]))),
    "append": (
        "vector", lambda p, _: token_append(p["kv_heads"], p["head_dim"], p["capacity"])
    ),
    "move_heads": ("vector", lambda p, _: token_rope(p["heads"], p["dim"], False)),
    "glu": ("vector", lambda p, _: gated(p["n"], bool(p["kind"]))),
}  # fmt: skip
