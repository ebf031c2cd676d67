"""The closed form of GEMM from quantised weights."""

from __future__ import annotations

from math import ceil

from ort_aie_ep.aie_kernels.dequant import cost as dequant
from ort_aie_ep.aie_kernels.gemm import cost as gemm
from ort_aie_ep.aie_kernels.gemm.cost import GEMM_COLUMNS, GEMM_DEPTH, GEMM_ROWS, GEMM_SLAB
from ort_aie_ep.aie_kernels.invocation import Costs
from ort_aie_ep.aie_kernels.machine import ALL_COLUMNS, BF16, CORE_ROWS, TASK, Step, control, stream
from ort_aie_ep.formats.q4nx import BLOCK_ROWS, SHIPPING, BlockForm

SHORT_GEMM_COLUMNS = 64  # of C in a core


def short_gemm(m: int, k: int, n: int, form: BlockForm = SHIPPING) -> tuple[Step, ...]:
    """C (m, n) = A (m, k) W in bf16 from Q4NX weights, 64 rows at a time.

    A core has 64 columns of C, and dequantises their weights while it multiplies. All cores receive
    A by one channel, those of a column their weights by another. The first weights fill a memory
    tile before the computation begins, and the last C leaves after it ends.
    """
    depth, columns = ceil(k / GEMM_SLAB), ALL_COLUMNS
    column = CORE_ROWS * SHORT_GEMM_COLUMNS
    passes = ceil(m / GEMM_ROWS) * ceil(n / (column * columns))
    share = GEMM_COLUMNS // SHORT_GEMM_COLUMNS  # a core's columns, of those of `gemm`
    weights = column // BLOCK_ROWS * form.block_bytes  # of a column, for a slab
    a = BF16 * GEMM_ROWS * GEMM_SLAB
    c = BF16 * GEMM_ROWS * column
    blocks = SHORT_GEMM_COLUMNS // BLOCK_ROWS
    slab = GEMM_SLAB // GEMM_DEPTH * gemm.STEP / share + blocks * dequant.BLOCK
    return (
        Step(
            shim=passes * depth * weights,
            streams=passes * depth * stream(a),
            kernels=passes * depth * slab,
            commands=(passes - 1) * (1 + 2 * columns) * TASK,
            read=passes * depth * (a + columns * weights),
            write=passes * columns * c,
        ),
        Step(
            streams=passes * stream(c / CORE_ROWS),
            control=control(tasks=1 + 2 * columns, words=3 * CORE_ROWS * columns)
            + passes * gemm.BLOCK / share,
            idle=1,
        ),
        Step(shim=weights + c),
    )


SEQUENCES: Costs = {"project": ("gemm", lambda p, form: short_gemm(p["M"], p["K"], p["N"], form))}
