"""MatMul: C = A B with all three as ONNX's MatMul has them, row-major; nothing is packed.

The dataflow, the kernels and the numerics are those of `gemm`. B (K, N) is put in the kernel's
order by the DMAs on its way, as a DMA moves 4 bytes at least and two neighbours along n are next to
each other in memory:

| B | order | finest run |
|---|---|---|
| memory | row-major (K, N) | 2 width bytes |
| memory tile | 256 k x width, row-major | |
| on its way to a core | [k-step of 64][width / 8][64 k][8 n] | 16 bytes |
| core | 64 x 32: [8 kb][4 nb][8 k][8 n] | 128 bytes |

`width` is a core's columns of C: 128, or 64 for float32. The kernel's tiles have 8 k x 8 n with n
innermost. A B that is stored as (N, K) has its k next to each other, so no DMA can lay it out:
`gemm` takes it packed.

Rules: K is a multiple of 256 (pad A's columns and B's rows with zeros), at most 65,536; N is even,
at least `width`, and at most 131,072. M can be any number. On two columns, N is at least twice
`width` and at most 8,192, and K at most 16,384; on one, N at least four times `width` and at most
16,384, and K at most 8,192.

This overlay is another than `gemm`'s, which reads the blocks that `dequant` writes whole: layouts
belong to an overlay. It has no row operators.
"""

from __future__ import annotations

from ort_aie_ep.aie_kernels.gemm.design import Blocking, Output, make
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.device import Device


def build(device: Device, output: Output = "bf16") -> Design:
    """MatMul on all columns of `device`.

    One sequence, `matmul(M, K, N)`: a (max(M, 64), K) bf16, b (K, N) bf16, c (max(M, 64), N) bf16
    or float32, all row-major. Raises DesignError for a number of columns over which four rows of
    cores cannot be divided evenly.
    """
    return make(device, Blocking(device, output, row_major=True))
