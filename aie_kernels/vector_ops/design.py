"""The vector operators of a layer, a core each (paper 1, section IV-A; paper 2, 3.2.3).

README.md has dataflow and rules.
"""

from __future__ import annotations

from dataclasses import replace

from ort_aie_ep.aie_kernels.vector_ops.kernels import (
    GELU_MUL,
    QK_NORM,
    RMS_ADD,
    RMS_BEGIN,
    RMS_FINISH,
    RMS_LOAD,
    RMS_SCALE,
    RMS_SUM,
    ROPE,
    ROW,
    SILU_MUL,
)
from ort_aie_ep.aie_kernels.vector_ops.sequences import OBJECT, RMS_OBJECT, add_sequences
from ort_aie_ep.npu.terms.design import (
    Acquire,
    Buffer,
    Core,
    Design,
    End,
    Fifo,
    Parameters,
    Release,
    Steps,
    call,
)  # fmt: skip
from ort_aie_ep.npu.terms.device import Device
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.npu.terms.kernel import Array
from ort_aie_ep.npu.terms.packet_ids import give_packet_ids

STACK = 4096  # bytes


def build(device: Device) -> Design:
    """The vector operators on the first two columns."""
    design = Design("vector_ops", device)
    if device.columns < 2:
        raise DesignError(
            f"vector_ops on {device.name}: one column; the three outputs take the shims of two"
        )
    place(design, 0, a=design.shim(0, 0), b=design.shim(0, 1))
    give_packet_ids(design)
    add_sequences(design)
    return design


def place(design: Design, column: int, *, a: End, b: End) -> None:
    """Put the cores on two rows of column `column` and one of the next.

    Three inputs enter at the shim end `a`, two at `b`; the outputs leave through both shims below
    the cores.
    """
    rms, rope = design.core(column, 0), design.core(column, 1)
    glu = design.core(column + 1, 0)

    def fifo(name: str, count: int, producer: End, consumer: End) -> Fifo:
        return design.fifo(name, "bf16", count, producer, consumer)

    row = Array("bf16", OBJECT)
    design.worker(
        "rms", rms, _rms,
        inputs={
            "x": fifo("rms_x", RMS_OBJECT, a, rms),
            "r": fifo("rms_r", RMS_OBJECT, b, rms),
        },
        outputs={"y": fifo("rms_y", RMS_OBJECT, rms, design.shim(column, 0))},
        buffers=[Buffer("row", ROW), Buffer("state", Array("f32", 16))],
        parameters=["rows", "pieces", "plain", "added", "n", "eps"],
        kernels=[RMS_BEGIN, RMS_LOAD, RMS_ADD, RMS_SUM, RMS_SCALE, RMS_FINISH], stack=STACK,
    )  # fmt: skip
    design.worker(
        "rope", rope, _rope,
        inputs={
            "x": fifo("rope_x", OBJECT, a, rope),
            "t": fifo("rope_t", OBJECT, b, rope),
        },
        outputs={"y": fifo("rope_y", OBJECT, rope, design.shim(column, 1))},
        buffers=[Buffer("weight", row), Buffer("normed", row)],
        parameters=[
            "tokens", "norm", "normed", "plain", "head_dim", "rotary_dim", "interleaved", "eps",
        ],
        kernels=[QK_NORM, ROPE], stack=STACK,
    )  # fmt: skip
    design.worker(
        "glu", glu, _glu,
        # A pair comes while the one before it is computed.
        inputs={"x": fifo("glu_x", OBJECT, a, replace(glu, depth=4))},
        outputs={"y": fifo("glu_y", OBJECT, glu, design.shim(column + 1, 0))},
        parameters=["silu", "gelu"],
        kernels=[SILU_MUL, GELU_MUL], stack=STACK,
    )  # fmt: skip


# --- bodies ---------------------------------------------------------------------------------------
def _rms(core: Core) -> Steps:
    rows, pieces, plain, added, n, eps = yield Parameters()
    row, state = core.buffer("row"), core.buffer("state")
    for _ in core.loop(rows):
        yield call(RMS_BEGIN, state)
        for i in core.loop(plain):
            x = yield Acquire("x")
            yield call(RMS_LOAD, x, row, state, i)
            yield Release("x")
        for i in core.loop(added):
            x = yield Acquire("x")
            r = yield Acquire("r")
            yield call(RMS_ADD, x, r, row, state, i)
            yield Release("x")
            yield Release("r")
        for i in core.loop(added):
            y = yield Acquire("y")
            yield call(RMS_SUM, row, y, i)
            yield Release("y")
        yield call(RMS_SCALE, state, n, eps)
        for i in core.loop(pieces):
            weight = yield Acquire("r")
            y = yield Acquire("y")
            yield call(RMS_FINISH, row, weight, y, state, i)
            yield Release("r")
            yield Release("y")


def _rope(core: Core) -> Steps:
    tokens, norm, normed, plain, head_dim, rotary_dim, interleaved, eps = yield Parameters()
    weight, between = core.buffer("weight"), core.buffer("normed")
    for _ in core.loop(norm):
        # A copy, because the fifo has to advance: nothing is rotated.
        piece = yield Acquire("t")
        yield call(ROPE, piece, piece, weight, head_dim, 0, 0)
        yield Release("t")
    for _ in core.loop(tokens):
        table = yield Acquire("t")
        for _ in core.loop(normed):
            x = yield Acquire("x")
            y = yield Acquire("y")
            yield call(QK_NORM, x, weight, between, head_dim, eps)
            yield call(ROPE, between, table, y, head_dim, rotary_dim, interleaved)
            yield Release("x")
            yield Release("y")
        for _ in core.loop(plain):
            x = yield Acquire("x")
            y = yield Acquire("y")
            yield call(ROPE, x, table, y, head_dim, rotary_dim, interleaved)
            yield Release("x")
            yield Release("y")
        yield Release("t")


def _glu(core: Core) -> Steps:
    silu, gelu = yield Parameters()
    for count, kernel in ((silu, SILU_MUL), (gelu, GELU_MUL)):
        for _ in core.loop(count):
            gate, up = yield Acquire("x", 2)
            y = yield Acquire("y")
            yield call(kernel, gate, up, y, OBJECT)
            yield Release("x", 2)
            yield Release("y")
