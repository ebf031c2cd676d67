"""The closed form of the dequantisation engine."""

from __future__ import annotations

from math import ceil

from ort_aie_ep.aie_kernels.cycles import of_call
from ort_aie_ep.aie_kernels.dequant.kernels import Q4NX_DEQUANT
from ort_aie_ep.aie_kernels.invocation import Costs
from ort_aie_ep.aie_kernels.machine import ALL_COLUMNS, CORE_ROWS, Step, control, weights_bytes
from ort_aie_ep.formats.q4nx import BLOCK_COLS, BLOCK_ROWS, SHIPPING, BlockForm

BLOCK = of_call(Q4NX_DEQUANT)  # to bf16 and to bfp16


def dequant(
    outputs: int, inputs: int, form: BlockForm = SHIPPING, *, bfp16: bool = False
) -> tuple[Step, ...]:
    """Q4NX to bf16 or bfp16 in DDR on all cores, four blocks a column at a time.

    A column receives them by one channel, and sends 16,384 or 9,216 bytes for each block by two
    channels.
    """
    blocks = ceil(outputs / BLOCK_ROWS) * ceil(inputs / BLOCK_COLS)
    share = ceil(blocks / CORE_ROWS / ALL_COLUMNS)  # of a column, in fours
    produced = weights_bytes(BLOCK_ROWS * BLOCK_COLS, bfp16=bfp16)
    in_all = share * CORE_ROWS * ALL_COLUMNS
    return (
        Step(
            shim=share * 2 * produced,
            kernels=share * BLOCK,
            read=in_all * form.block_bytes,
            write=in_all * produced,
            control=control(tasks=3 * ALL_COLUMNS, words=2 * CORE_ROWS * ALL_COLUMNS),
            idle=1,
        ),
    )


SEQUENCES: Costs = {
    "dequant": ("dequant", lambda p, form: dequant(p["blocks"] * BLOCK_ROWS, BLOCK_COLS, form))
}
SEQUENCES_BFP16: Costs = {
    "dequant": (
        "dequant",
        lambda p, form: dequant(p["blocks"] * BLOCK_ROWS, BLOCK_COLS, form, bfp16=True),
    )
}
