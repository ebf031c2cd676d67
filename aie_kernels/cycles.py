"""What cycle models of kernels share: costs of a call, a loop, a latency, and of common headers.

Cycles come from models and were never measured. The models count what a core issues for the code as
written, loop by loop. In a loop that pipelines, an iteration costs as much as its busiest unit. A
core starts a multiply-accumulate, a vector operation, two loads and a store each cycle (AM020,
AM027, mlir-aie's kernel notes). On AIE2P these are two 512-bit loads, a 512-bit store, a shuffle,
and a vector multiplication, addition or conversion: 64 lanes of bfloat16 macs or fp32 sums, 512
bits of anything else. AIE2 has vectors of 512 bits too, but loads and stores of 256. A loop costs
`LOOP` extra cycles to fill, drain and set up; a call costs `CALL`. Chains that do not overlap count
their latency, `LATENCY` cycles an operation (AM020: 5 to 7 for loads and float macs).

Compiled code takes longer than such a count. Three published attention kernels, whose sources were
counted by the same rules, take 1.7, 2.0 and 2.2 times their counts on silicon. So the models of
attention multiply their counts by 2, `COMPILED`, which is within 30 % of each of the three. They
are other kernels, less exact and by other compilers' versions: what these here take is unconfirmed.

Where whole programs of 2026 imply that a kernel of some purpose takes longer, or less, its model
has that number, and its source.
"""

from __future__ import annotations

from collections.abc import Callable

from ort_aie_ep.formats.q4nx import BlockForm

# Call, return, the first loads, draining the pipeline (mlir-aie: loads take 5 to 7 cycles, macs 5
# to 6, a taken branch 5).
CALL = 30
LOOP = 20
# In projections, a loop that does not pipeline into its neighbours fills and drains its own
# pipeline.
SHORT_LOOP = 15
LATENCY = 5

# Cycles of compiled code for one that is counted: see above.
COMPILED = 2.0

# Issues of the multiplier's pipeline for one 8x8x8 product with both operands converted to bfp16:
# 512 multiplications at the 280 per cycle that mlir-aie's bfp16 matmul reaches.
TILE_PRODUCT = 512 / 280

# Vector issues for 32 values: the fine exponential 40, the inverse 15, sigmoid or tanh around
# them 20.
SIGMOID = 75
SILU_ISSUES = SIGMOID + 15  # with what is around it, per 32 values
GELU_ISSUES = SIGMOID + 25

# A reduction of 16 sums, five emulated products of fp32, three scalar inverses and roots.
INVERSE_ROOT = 5 * 20 + 12 * LATENCY + 3 * LATENCY

LOAD_BYTES = {"aie2": 32, "aie2p": 64}  # of a load or store

Scalars = tuple[int, ...]


def fixed(cycles: float) -> Callable[[str, Scalars], float]:
    """The cycles of a kernel that always takes as long."""
    return lambda arch, scalars: cycles


def form_scalars(form: BlockForm) -> tuple[int, int]:
    """A form of Q4NX as kernels take it, in their last scalars: scales of a block, minima."""
    return form.scales, int(form.minima)


def compiled(counted: Callable[[Scalars], float]) -> Callable[[str, Scalars], float]:
    """The cycles of a kernel whose issues `counted` gives."""
    return lambda arch, scalars: COMPILED * counted(scalars)


def copy_cycles(count: int) -> float:
    """Cycles to copy, or fill, `count` bfloat16: a 512-bit store each 32."""
    return CALL + LOOP + count / 32


def map_scores(vectors: int, softcap: int) -> float:
    """Products to scores, `vectors` of 32: two limbs and three macs.

    Under a cap the exponential, the inverse and four more products of limbs.
    """
    if softcap:
        return LOOP + 60 * LATENCY + 90 * vectors
    return LOOP + 8 * LATENCY + 6 * vectors
