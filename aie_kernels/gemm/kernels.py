"""GEMM's kernels as designs and the simulator see them. Cycles as in `fused_dqp.kernels`."""

from __future__ import annotations

from ort_aie_ep.aie_kernels.cycles import CALL, LOAD_BYTES
from ort_aie_ep.npu.terms.kernel import Array, Kernel

GEMM_STRIP = 512  # elements of C that leave a core at once: 64 rows of 8 columns


def _zero_cycles(arch: str, scalars: tuple[int, ...]) -> float:
    return CALL + scalars[-1] * 4 / LOAD_BYTES[arch]


def _strip_cycles(arch: str, _: tuple[int, ...]) -> float:
    """A strip of sums through a register: two loads, one store a cycle."""
    return CALL + GEMM_STRIP / LOAD_BYTES[arch] * 2


# A step multiplies 8 x 8 x 8, on AIE2 by four native macs; on AIE2P four operands of four steps are
# widened to fp32 (two operations) and converted to bfp16 (two). So both issue four operations a
# step, and load and store the sums of each block of 2 x 2. Published, with all that surrounds the
# steps: AIE2 7.35 cycles (mlir-aie's kernel table: 64 x 32 x 64, exact, in 1,881); AIE2P 107.5
# products a cycle (a core's in the line through 34 published products of mlir-air, 194 a
# nanosecond, at 1.8 GHz; the best arrays make 128: amd/IRON issue 55, arXiv 2512.13282). With B in
# bfp16 AIE2P takes 2.6 cycles: mlir-aie's kernel of the same operands multiplies 64^3 in 1,313.
_GEMM_STEP = {"aie2": 1881 / 256, "aie2p": 8**3 / 107.5}
GEMM_BFP16_PUBLISHED = 1313


def _gemm_cycles(arch: str, scalars: tuple[int, ...]) -> float:
    m_blocks, k_blocks, n_blocks, _ = scalars
    return m_blocks * k_blocks * n_blocks * _GEMM_STEP[arch]


def _gemm_bfp16_cycles(arch: str, scalars: tuple[int, ...]) -> float:
    m_blocks, k_blocks, n_blocks, _ = scalars
    return m_blocks * k_blocks * n_blocks * GEMM_BFP16_PUBLISHED / 8**3


def _gemm_limits(scalars: tuple[int, ...]) -> bool:
    m, k, n, part = scalars
    even = m % 2 == n % 2 == 0 and min(m, k, n) > 0 <= part
    fits = m * k <= 4096 // 64 and k * n <= 2048 // 64
    return even and fits and (part + 1) * m * n <= 8192 // 64


GEMM_ZERO = Kernel(
    "gemm_zero", "gemm/gemm.cc", (Array("f32", 8192), int), _zero_cycles,
    limits=lambda scalars: 0 < scalars[0] <= 8192 and scalars[0] % 32 == 0,
)  # fmt: skip

GEMM_TILE = Kernel(
    "gemm_tile", "gemm/gemm.cc",
    (Array("bf16", 4096), Array("bf16", 2048), Array("f32", 8192), int, int, int, int),
    _gemm_cycles, limits=_gemm_limits,
)  # fmt: skip

GEMM_TILE_BFP16 = Kernel(
    "gemm_tile_bfp16", "gemm/gemm_bfp16.cc",
    (Array("bf16", 4096), Array("u8", 2304), Array("f32", 8192), int, int, int, int),
    _gemm_bfp16_cycles, architectures=("aie2p",),
    limits=lambda scalars: _gemm_limits(scalars) and scalars[1] % 4 == 0,
)  # fmt: skip

GEMM_STORE_BF16 = Kernel(
    "gemm_store_bf16", "gemm/gemm.cc", (Array("f32", 8192), Array("bf16", GEMM_STRIP), int),
    _strip_cycles, limits=lambda scalars: 0 <= scalars[0] < 8192 // GEMM_STRIP,
)  # fmt: skip
