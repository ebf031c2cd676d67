"""Q4NX -> bfp16, in the order that `gemm_bfp16` reads: `dequant` with nine bytes for eight weights.

The README.md of `dequant` has its layout and what bounds it.
"""

from __future__ import annotations

from ort_aie_ep.aie_kernels.dequant.design import make
from ort_aie_ep.aie_kernels.dequant.kernels import q4nx_dequant_bfp16
from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.device import Device
from ort_aie_ep.npu.terms.errors import DesignError


def build(device: Device, form: BlockForm = SHIPPING) -> Design:
    """Dequantisation to bfp16 on all columns of `device`.

    One sequence, `dequant(blocks)`: w Q4NX (blocks, block bytes of `form`) uint8 in, b (blocks,
    9216) uint8 out. The sequence refuses fewer than 4 blocks. Raises DesignError for aie2, which
    has no bfp16.
    """
    if device.architecture != "aie2p":
        raise DesignError(f"dequant_bfp16 on {device.name}: {device.architecture} has no bfp16")
    return make(Design("dequant_bfp16", device, form), q4nx_dequant_bfp16(form))
