"""FusedDQP's kernels for codes of two bits. Cycles as in `fused_dqp.kernels`."""

from __future__ import annotations

from ort_aie_ep.aie_kernels.cycles import (
    CALL,
    SHORT_LOOP,
    fixed,
)
from ort_aie_ep.aie_kernels.fused_dqp.kernels import DQP_CYCLES_PER_ISSUE
from ort_aie_ep.npu.terms.kernel import Array, Kernel

DQP_LOAD_X_TWO_BITS = Kernel(
    "dqp_load_x_two_bits",
    "fused_dqp_two_bits.cc",
    (Array("bf16", 256), Array("bf16", 16384), Array("bf16", 1024), Array("f32", 512), int),
    fixed(CALL + 8 * 8 + 2 * (8 * 3 + 4 * 10) + 20),  # as for four bits, with two sums a group
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
    return DQP_CYCLES_PER_ISSUE * (CALL + eights * eight + groups * (join + 12 + SHORT_LOOP))


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
