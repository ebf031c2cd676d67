"""FusedDQP's kernels as designs and the simulator see them.

Cycles come from models (`cycles`) and were never measured. Next to each model is the nearest
published cycle count (mlir-aie's kernel tables), as a check of the model's size. Where a published
kernel does the same with the same blocks, the count is multiplied by what that kernel takes for
each issue counted here: unpacking fills neither all units nor the pipeline.
"""

from __future__ import annotations

from functools import cache

from ort_aie_ep.aie_kernels import limits
from ort_aie_ep.aie_kernels.cycles import CALL, SHORT_LOOP, fixed, form_scalars
from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.kernel import Array, Kernel

# What a core keeps: activations, two limbs of the sum of each group, and its part of a bias.
X = Array("bf16", limits.MATVEC_K)
SUMS = Array("bf16", limits.MATVEC_K // 16)
BIAS = Array("bf16", limits.BIAS_ROUNDS * 32)


# Per sub-block of 16 x 8: two unpacks to 8 bits, four to 16, four ors. Both halves of the rows
# share what spreads the activations: 8 broadcasts, and 6 moves that join them on AIE2P. On AIE2 8
# moves bring upper halves of registers down. The macs, 4 of 64 lanes or 16 of 16 per pair of
# sub-blocks, run beside. Per group of 32 in-features 12 to fold and 12 for the limbs.
def _dqp_block_issues(arch: str) -> float:
    sub_block_pairs, groups = 32, 8
    pair = 2 * (2 + 4 + 4) + 8 + (6 if arch == "aie2p" else 8)
    return CALL + sub_block_pairs * pair + groups * (12 + 12 + SHORT_LOOP)


# A block on AIE2P: sixteen cores of mlir-air's decoder take 65.1 GB/s of blocks of 5,120 bytes
# (`costs.DDR_READ`). Its body is 140 bundles, 16 times: 65.8 GB/s at 1.8 GHz.
DQP_BLOCK_PUBLISHED = 16 * 5120 / costs.DDR_READ.value * costs.CLOCK.value
DQP_CYCLES_PER_ISSUE = DQP_BLOCK_PUBLISHED / _dqp_block_issues("aie2p")


def _dqp_block_cycles(arch: str, _: tuple[int, ...]) -> float:
    return DQP_CYCLES_PER_ISSUE * _dqp_block_issues(arch)


DQP_LOAD_X = Kernel(
    "dqp_load_x",
    "fused_dqp/fused_dqp.cc",
    (Array("bf16", 256), X, SUMS, int),
    # Per group: a load and a store, three operations to add its halves. Then seven times two
    # shuffles and an addition, in four steps that wait for each other, and the limbs.
    fixed(CALL + 8 * 5 + 8 * 3 + 4 * 10 + 20),
    limits=lambda scalars: 0 <= scalars[0] < limits.MATVEC_K // 256,
)

DQP_LOAD_BIAS = Kernel(
    "dqp_load_bias",
    "fused_dqp/fused_dqp.cc",
    (Array("bf16", 256), BIAS, int, int, int),
    # The quotient is counted up and eight places are looked at, six cycles each.
    lambda arch, scalars: CALL + 10 + 6 * (8 * scalars[0] // scalars[2] + 8),
    # The kernel drops rounds for which it has no room and counts them in 32 bits.
    limits=lambda scalars: 0 <= 8 * scalars[0] < 1 << 31 and scalars[2] > 0,
)

DQP_ZERO = Kernel("dqp_zero", "fused_dqp/fused_dqp.cc", (Array("f32", 32),), fixed(CALL))


@cache
def dqp_block(form: BlockForm, most: int = limits.MATVEC_K) -> Kernel:
    """The product with a block of a form, for a core that keeps `most` activations.

    The cycles do not depend on the form: codes have as many bits, and 32 in-features are processed
    together in every form.
    """
    return Kernel(
        "dqp_block",
        "fused_dqp/fused_dqp.cc",
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


def _dqp_finish_limits(scalars: tuple[int, ...]) -> bool:
    """Without a bias the kernel ignores the round."""
    round_, biased = scalars
    return biased == 0 or (biased == 1 and 0 <= round_ < limits.BIAS_ROUNDS)


DQP_FINISH = Kernel(
    "dqp_finish", "fused_dqp/fused_dqp.cc", (Array("f32", 32), BIAS, Array("bf16", 32), int, int),
    fixed(CALL + 20), limits=_dqp_finish_limits,
)  # fmt: skip
