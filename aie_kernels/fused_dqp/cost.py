"""The closed form of FusedDQP."""

from __future__ import annotations

from math import ceil

from ort_aie_ep.aie_kernels.invocation import Costs
from ort_aie_ep.aie_kernels.machine import BF16, CORE_ROWS, TASK, Step, control, stream
from ort_aie_ep.formats.q4nx import BLOCK_COLS, BLOCK_ROWS, SHIPPING, BlockForm
from ort_aie_ep.npu.terms import costs

COLUMNS = 4
DQP_WORDS = 6  # to a core: its five parameters and its start
# Cycles of a core for 32 x 256 weights: sixteen cores of mlir-air's decoder take 65.1 GB/s of
# blocks of 5,120 bytes (`costs.DDR_READ`), at 1.66 GHz.
BLOCK = 5120 * 16 / 65.1e9 * 1.66e9


def fused_dqp(outputs: int, inputs: int, form: BlockForm = SHIPPING) -> tuple[Step, ...]:
    """A projection of one row by weights in a form.

    Each of a column's two shim channels feeds two cores with Q4NX blocks, by a task a round. A
    round is 32 outputs of every core. The last round moves back over rows that are already
    computed, so it costs as much as the others. The activations come by their own channel while
    the first blocks queue, two a core.
    """
    cores, channels = CORE_ROWS * COLUMNS, 2 * COLUMNS
    depth = ceil(inputs / BLOCK_COLS)
    rounds = ceil(ceil(outputs / BLOCK_ROWS) / cores)
    size = form.block_bytes
    block = stream(size)
    activations = stream(BF16 * depth * BLOCK_COLS)
    tasks = channels + 1 + COLUMNS  # weights of the first round, activations, outputs
    return (
        Step(
            control=control(tasks, DQP_WORDS * cores) + max(0, activations - 4 * block) + BLOCK,
            idle=1,
            read=BF16 * inputs,
            write=BF16 * outputs,
        ),
        Step(
            shim=rounds * depth * 2 * size,
            gates=rounds * costs.GATE_PIPELINED.value,
            kernels=rounds * depth * BLOCK,
            commands=(rounds - 1) * channels * TASK,
            read=rounds * cores * depth * size,
        ),
    )


SEQUENCES: Costs = dict.fromkeys(
    ("matvec", "matvec_part"), ("projections", lambda p, form: fused_dqp(p["N"], p["K"], form))
)
