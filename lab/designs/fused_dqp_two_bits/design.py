"""FusedDQP for weights of two bits: y = W x with W in Q2NX, three fifths of the bytes of Q4NX.

The dataflow, the rules and the sequences are those of `fused_dqp`, and so are the kernels around a
block. A block has bit planes (docs/two-bits.md) and 3,072 bytes, as a compiled model has them. By
its model, the kernel of a block takes as many cycles as that for four bits (2,265 and 2,240 on
AIE2P): it has half as much to unpack, and then picks each bit out with an `and`. So the gain is in
bytes, where memory or a channel is the limit, and not where the cores are.
"""

from __future__ import annotations

from designs.fused_dqp_two_bits.kernels import DQP_BLOCK_TWO_BITS, DQP_LOAD_X_TWO_BITS
from ort_aie_ep.aie_kernels import limits
from ort_aie_ep.aie_kernels.fused_dqp import design as fused_dqp
from ort_aie_ep.formats.q4nx import BlockForm
from ort_aie_ep.npu.terms.design import Buffer, Design
from ort_aie_ep.npu.terms.device import Device
from ort_aie_ep.npu.terms.kernel import Array

CODES = fused_dqp.Codes(
    DQP_LOAD_X_TWO_BITS,
    DQP_BLOCK_TWO_BITS,
    (fused_dqp.X, fused_dqp.SUMS, Buffer("offsets", Array("f32", limits.MATVEC_K // 32))),
    suffix="_two_bits",
)


def build(device: Device, columns: int | None = None) -> Design:
    """FusedDQP on the first `columns` columns (default: 4, or all of a narrower device).

    `matvec_two_bits(N, K, bias, activation)` and `matvec_part_two_bits(N, K, row_K, bias,
    activation)` are `matvec` and `matvec_part` of `fused_dqp`, with w Q2NX (N/32, K/256, 3072).
    """
    return fused_dqp.build(device, columns, BlockForm(bits=2), CODES)
