"""GEMM on weights in bfp16: `gemm` with a B of nine bytes for eight values, on AIE2P.

The matrix unit of AIE2P multiplies blocks of bfp16, and `gemm_tile` rounds both operands to them in
the core, B as often as there are tiles of A. Here B is rounded before, by `dequant_bfp16` or
`pack_b_bfp16`, once. The sums have the same bits as those of `gemm` on the same weights in
bfloat16, because rounding does not depend on where it is done. What the docstring of `gemm` says
holds, but for B:

| | memory | memory tile | core |
|---|---|---|---|
| B | `pack_b_bfp16`'s order | 256 k x 128, as in memory | 64 x 32: [2][8 kb][2 nb][8 n][9 B] |

A DMA moves four bytes at a time, so none can reorder the 72 of a tile of 8 x 8. The two tiles that
a kernel multiplies at a time are next to each other, so it reads one stream, which begins at a
multiple of 64 bytes.

L1: 61,192 bytes. B takes 4,608 and not 8,192, so a whole part of C has room, and no core waits for
one to leave.

Bottleneck, per k-step: a core does 2^19 multiplications, 2,626 cycles if it is as fast as AMD's
kernel for the same operands. B needs 2,304 cycles of its channel and A 2,048. Memory must deliver
8 KB for each column and 9 KB for each row, 100 KB on eight columns: 4,199 cycles at 43.9 GB/s and
1.8 GHz, 2,831 at 65.1. So memory decides on every machine that is modelled; `gemm` takes 1.3 times
as many cycles at 43.9 GB/s, and 1.45 times at 65.1, where its kernel decides.
"""

from __future__ import annotations

from ort_aie_ep.aie_kernels.gemm.design import Blocking, Output, make
from ort_aie_ep.npu.vocabulary.design import Design
from ort_aie_ep.npu.vocabulary.device import Device
from ort_aie_ep.npu.vocabulary.errors import DesignError


def build(device: Device, output: Output = "bf16") -> Design:
    """GEMM with B in bfp16 on all columns of `device`.

    The sequences of `gemm`, with b (9 N K / 8) uint8 as `pack_b_bfp16` gives it. Raises DesignError
    as `gemm` does, and for aie2, which has no bfp16.
    """
    if device.architecture != "aie2p":
        raise DesignError(f"gemm_bfp16 on {device.name}: {device.architecture} has no bfp16")
    return make(device, Blocking(device, output, weights="bfp16"))
