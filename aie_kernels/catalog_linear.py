"""Kernels of projections: FusedDQP (decoding), the dequantisation engine and GEMM (prefill).

Cycles come from models and were never measured. They count what the code issues on the busiest unit
of a core, which starts a multiply-accumulate, a vector operation, two loads and a store each cycle
(AM020, AM027, mlir-aie's kernel notes). Vectors have 512 bits; loads and stores 256 on AIE2, 512 on
AIE2P. Next to each model is the nearest published cycle count (mlir-aie's kernel tables), as a
check of the model's size. Where a published kernel does the same with the same blocks, the count is
multiplied by what that kernel takes for each issue counted here: unpacking fills neither all units
nor the pipeline. `ort-aie predict --kernels` shows all of these side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.npu.vocabulary.kernel import Array, Kernel

# Call, return, the first loads, draining the pipeline (mlir-aie: loads take 5 to 7 cycles, macs 5
# to 6, a taken branch 5).
CALL = 30
# A loop that does not pipeline into its neighbours fills and drains its own pipeline.
LOOP = 15

_LOAD_BYTES = {"aie2": 32, "aie2p": 64}

GEMM_STRIP = 512  # elements of C that leave a core at once: 64 rows of 8 columns


def _fixed(cycles: float) -> Callable[[str, tuple[int, ...]], float]:
    return lambda arch, scalars: cycles


def form_scalars(form: BlockForm) -> tuple[int, int]:
    """A form of Q4NX as kernels take it, in their last scalars: scales of a block, minima."""
    return form.scales, int(form.minima)


def _zero_cycles(arch: str, scalars: tuple[int, ...]) -> float:
    return CALL + scalars[-1] * 4 / _LOAD_BYTES[arch]


def _strip_cycles(written_bytes: int) -> Callable[[str, tuple[int, ...]], float]:
    """A strip of sums through a register: two loads, one store a cycle."""

    def cycles(arch: str, _: tuple[int, ...]) -> float:
        return CALL + GEMM_STRIP / _LOAD_BYTES[arch] * max(4 / 2, written_bytes)

    return cycles


# Per sub-block of 16 x 8: two unpacks to 8 bits, four to 16, four ors. Both halves of the rows
# share what spreads the activations: 8 broadcasts, and 6 moves that join them on AIE2P. On AIE2 8
# moves bring upper halves of registers down. The macs, 4 of 64 lanes or 16 of 16 per pair of
# sub-blocks, run beside. Per group of 32 in-features 12 to fold and 12 for the limbs.
def _dqp_block_issues(arch: str) -> float:
    sub_block_pairs, groups = 32, 8
    pair = 2 * (2 + 4 + 4) + 8 + (6 if arch == "aie2p" else 8)
    return CALL + sub_block_pairs * pair + groups * (12 + 12 + LOOP)


# mlir-air's projection of the same block on AIE2P: a body of 140 bundles, 16 times. At this pace 16
# cores take 65.8 GB/s, and a block is done before the next one arrives, after 2,560 cycles.
DQP_BLOCK_PUBLISHED = 16 * 140
_DQP_CYCLES_PER_ISSUE = DQP_BLOCK_PUBLISHED / _dqp_block_issues("aie2p")


def _dqp_block_cycles(arch: str, _: tuple[int, ...]) -> float:
    return _DQP_CYCLES_PER_ISSUE * _dqp_block_issues(arch)


# Per sub-block: ten operations as above, two to part the tiles, two macs and two adds of 64 lanes
# (four times as many on AIE2), two narrowings and stores.
def _dequant_issues(arch: str, groups: int) -> float:
    sub_block = 10 + 2 + (16 if arch == "aie2" else 4) + 4
    return CALL + groups * (8 * sub_block + 2 * LOOP)


# mlir-aie's dequantisation of the same block, to bfp16, on AIE2P.
DEQUANT_PUBLISHED = 2115
_DEQUANT_CYCLES_PER_ISSUE = DEQUANT_PUBLISHED / _dequant_issues("aie2p", 8)


def _dequant_cycles(groups: int) -> Callable[[str, tuple[int, ...]], float]:
    return lambda arch, _: _DEQUANT_CYCLES_PER_ISSUE * _dequant_issues(arch, groups)


# A step multiplies 8 x 8 x 8, on AIE2 by four native macs; on AIE2P four operands of four steps are
# widened to fp32 (two operations) and converted to bfp16 (two). So both issue four operations a
# step, and load and store the sums of each block of 2 x 2. Published, with all that surrounds the
# steps: AIE2 7.35 cycles (mlir-aie's kernel table: 64 x 32 x 64, exact, in 1,881); AIE2P 4 (128
# MAC/cycle in practice, amd/IRON issue 55; the best array, with 14.71 TFLOP/s, does as much, arXiv
# 2512.13282). With B converted before, AIE2P takes 2.6 (64^3 in 1,313).
_GEMM_STEP = {"aie2": 1881 / 256, "aie2p": 4.0}


def _gemm_cycles(arch: str, scalars: tuple[int, ...]) -> float:
    m_blocks, k_blocks, n_blocks, _ = scalars
    return m_blocks * k_blocks * n_blocks * _GEMM_STEP[arch]


DQP_LOAD_X = Kernel(
    "dqp_load_x",
    "fused_dqp.cc",
    (Array("bf16", 256), Array("bf16", 16384), Array("bf16", 1024), int),
    # Per group: a load and a store, three operations to add its halves. Then seven times two
    # shuffles and an addition, in four steps that wait for each other, and the limbs.
    _fixed(CALL + 8 * 5 + 8 * 3 + 4 * 10 + 20),
    limits=lambda scalars: 0 <= scalars[0] < 64,
)
DQP_LOAD_BIAS = Kernel(
    "dqp_load_bias",
    "fused_dqp.cc",
    (Array("bf16", 256), Array("bf16", 2560), int, int, int),
    # The quotient is counted up and eight places are looked at, six cycles each.
    lambda arch, scalars: CALL + 10 + 6 * (8 * scalars[0] // scalars[2] + 8),
    # The kernel drops rounds for which it has no room and counts them in 32 bits.
    limits=lambda scalars: 0 <= 8 * scalars[0] < 1 << 31 and scalars[2] > 0,
)
DQP_ZERO = Kernel("dqp_zero", "fused_dqp.cc", (Array("f32", 32),), _fixed(CALL))


@cache
def dqp_block(form: BlockForm, most: int = 16384) -> Kernel:
    """The product with a block of a form, for a core that keeps `most` activations.

    The cycles do not depend on the form: codes have as many bits, and 32 in-features are processed
    together in every form.
    """
    return Kernel(
        "dqp_block",
        "fused_dqp.cc",
        (
            Array("u8", form.block_bytes), Array("bf16", most), Array("bf16", most // 16),
            Array("f32", 32), int, int, int,
        ),
        _dqp_block_cycles,
        limits=lambda scalars: (
            0 <= scalars[0] < most // 256 and scalars[1:] == form_scalars(form)
        ),
    )  # fmt: skip


DQP_BLOCK = dqp_block(SHIPPING)


# An activation is some 17 fp32 products of 32 lanes, one after another: nine macs each (twice as
# many on AIE2) and about 30 cycles to part the operands into limbs. mlir-aie's silu of 1,024 bf16,
# by other means: 211 on AIE2P, 1,434 on AIE2.
def _dqp_finish_cycles(arch: str, scalars: tuple[int, ...]) -> float:
    activation = scalars[1] >> 1
    product = 30 + 9 * (2 if arch == "aie2" else 1)
    return CALL + 20 + (0, 17, 21)[activation] * product


def _dqp_finish_limits(scalars: tuple[int, ...]) -> bool:
    """Without a bias the kernel ignores the round."""
    round_, epilogue = scalars
    return 0 <= epilogue < 6 and (not epilogue & 1 or 0 <= round_ < 80)


def _gemm_limits(scalars: tuple[int, ...]) -> bool:
    m, k, n, part = scalars
    even = m % 2 == n % 2 == 0 and min(m, k, n) > 0 <= part
    fits = m * k <= 4096 // 64 and k * n <= 2048 // 64
    return even and fits and (part + 1) * m * n <= 8192 // 64


DQP_LOAD_X_TWO_BITS = Kernel(
    "dqp_load_x_two_bits",
    "fused_dqp_two_bits.cc",
    (Array("bf16", 256), Array("bf16", 16384), Array("bf16", 1024), Array("f32", 512), int),
    _fixed(CALL + 8 * 8 + 2 * (8 * 3 + 4 * 10) + 20),  # as above, with two sums a group
    limits=lambda scalars: 0 <= scalars[0] < 64,
)


# Per 32 x 8 weights: two unpacks to 8 bits, four to 16, four ors, sixteen ands; eight broadcasts
# (and on AIE2 sixteen moves that bring upper halves of registers down). Per group 14 (22) to begin
# with the offset, add the chains and join the planes, and 12 for the limbs. Nobody has published
# such a kernel; the pace is that of the one for four bits, whose unpacking has the same steps. A
# block arrives every 1,536.
def _dqp_block_two_bits_cycles(arch: str, _: tuple[int, ...]) -> float:
    eights, groups = 32, 8
    eight = 2 + 4 + 4 + 16 + 8 + (0 if arch == "aie2p" else 16)
    join = 14 if arch == "aie2p" else 22
    return _DQP_CYCLES_PER_ISSUE * (CALL + eights * eight + groups * (join + 12 + LOOP))


DQP_BLOCK_TWO_BITS = Kernel(
    "dqp_block_two_bits",
    "fused_dqp_two_bits.cc",
    (
        Array("u8", 3072), Array("bf16", 16384), Array("bf16", 1024), Array("f32", 512),
        Array("f32", 32), int,
    ),
    _dqp_block_two_bits_cycles,
    limits=lambda scalars: 0 <= scalars[0] < 64,
)  # fmt: skip
DQP_FINISH = Kernel(
    "dqp_finish",
    "fused_dqp.cc",
    (Array("f32", 32), Array("bf16", 2560), Array("bf16", 32), int, int),
    _dqp_finish_cycles,
    limits=_dqp_finish_limits,
)


@cache
def q4nx_dequant(form: BlockForm) -> Kernel:
    """The dequantisation of a block of a form."""
    return Kernel(
        "q4nx_dequant",
        "dequant.cc",
        (Array("u8", form.block_bytes), Array("bf16", 8192), int, int),
        _dequant_cycles(8),
        limits=lambda scalars: scalars == form_scalars(form),
    )


@cache
def q4nx_dequant_step(form: BlockForm) -> Kernel:
    """The dequantisation of 64 in-features of one of two blocks of a form."""
    return Kernel(
        "q4nx_dequant_step",
        "dequant.cc",
        (Array("u8", 2 * form.block_bytes), Array("bf16", 2048), int, int, int, int),
        _dequant_cycles(2),
        limits=lambda scalars: (
            0 <= scalars[0] < 2 and 0 <= scalars[1] < 4 and scalars[2:] == form_scalars(form)
        ),
    )


Q4NX_DEQUANT, Q4NX_DEQUANT_STEP = q4nx_dequant(SHIPPING), q4nx_dequant_step(SHIPPING)
GEMM_ZERO = Kernel(
    "gemm_zero",
    "gemm.cc",
    (Array("f32", 8192), int),
    _zero_cycles,
    limits=lambda scalars: 0 < scalars[0] <= 8192 and scalars[0] % 32 == 0,
)
GEMM_TILE = Kernel(
    "gemm_tile",
    "gemm.cc",
    (Array("bf16", 4096), Array("bf16", 2048), Array("f32", 8192), int, int, int, int),
    _gemm_cycles,
    limits=_gemm_limits,
)
GEMM_STORE_BF16 = Kernel(
    "gemm_store_bf16",
    "gemm.cc",
    (Array("f32", 8192), Array("bf16", GEMM_STRIP), int),
    _strip_cycles(2),
    limits=lambda scalars: 0 <= scalars[0] < 8192 // GEMM_STRIP,
)
GEMM_STORE_F32 = Kernel(
    "gemm_store_f32",
    "gemm.cc",
    (Array("f32", 8192), Array("f32", GEMM_STRIP), int),
    _strip_cycles(4),
    limits=lambda scalars: 0 <= scalars[0] < 8192 // GEMM_STRIP,
)
