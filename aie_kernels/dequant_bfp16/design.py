"""Q4NX -> bfp16, in the order that `gemm_bfp16` reads: `dequant` with nine bytes for eight weights.

Each weight is rounded to bf16 as `dequant` does, and eight in-features of those to bfp16
(`formats.bfp16`): the bytes are `pack_b_bfp16` of the weights that `dequant` writes. A weight is
off by at most 2/255 of the largest of its eight, as it would be in the matrix unit.

| | bytes | layout |
|---|---|---|
| out | 9,216 a block | bfp16 [N/32][K/256][4 k-steps of 64][2 pairs][8 kb][2 nb][8 n][9 B] |

Dataflow and rules are those of `dequant`. A column writes 36,864 bytes for 20,480 read; its two
channels need 4,608 cycles for that, and the kernel 2,115, if it is as fast as AMD's. A weight moves
1.75 bytes of memory, and 2.6 with `dequant`.
"""

from __future__ import annotations

from ort_aie_ep.aie_kernels.dequant.design import make
from ort_aie_ep.aie_kernels.dequant.kernels import q4nx_dequant_bfp16
from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.npu.vocabulary.design import Design
from ort_aie_ep.npu.vocabulary.device import Device
from ort_aie_ep.npu.vocabulary.errors import DesignError


def build(device: Device, form: BlockForm = SHIPPING) -> Design:
    """Dequantisation to bfp16 on all columns of `device`.

    One sequence, `dequant(blocks)`: w Q4NX (blocks, block bytes of `form`) uint8 in, b (blocks,
    9216) uint8 out. The sequence refuses fewer than 4 blocks. Raises DesignError for aie2, which
    has no bfp16.
    """
    if device.architecture != "aie2p":
        raise DesignError(f"dequant_bfp16 on {device.name}: {device.architecture} has no bfp16")
    return make(Design("dequant_bfp16", device, form), q4nx_dequant_bfp16(form))
