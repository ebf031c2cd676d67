"""GEMM on weights in bfp16: `gemm` with a B of nine bytes for eight values, on AIE2P.

The README.md of `gemm` has its layouts and what bounds it.
"""

from __future__ import annotations

from ort_aie_ep.aie_kernels.gemm.design import make
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.device import Device
from ort_aie_ep.npu.terms.errors import DesignError


def build(device: Device) -> Design:
    """GEMM with B in bfp16 on all columns of `device`.

    The sequences of `gemm`, with b (9 N K / 8) uint8 as `pack_b_bfp16` gives it. Raises DesignError
    as `gemm` does, and for aie2, which has no bfp16.
    """
    if device.architecture != "aie2p":
        raise DesignError(f"gemm_bfp16 on {device.name}: {device.architecture} has no bfp16")
    return make("gemm_bfp16", device, "bfp16")
