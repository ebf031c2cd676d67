"""The error of 4 bits: `compile --quantize q4nx`, rounding to nearest, ONNX Runtime's quantiser.

    python lab/compare_quantizers.py

Prints the root mean square error of weights over their root mean square, for groups of 32.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from onnxruntime.capi._pybind_state import quantize_matmul_4bits
from rich.console import Console
from rich.table import Table

from ort_aie_ep import _native
from ort_aie_ep.formats import q4nx

Floats = npt.NDArray[np.float32]
N, K, GROUP = 1024, 2048, 32


def onnxruntime_rtn(weights: Floats, symmetric: bool) -> npt.NDArray[np.float64]:
    """The (N, K) weights that MatMulNBitsQuantizer's round to nearest stores, with blocks of 32."""
    n, k = weights.shape
    groups = k // GROUP
    codes = np.zeros((n, groups, GROUP // 2), np.uint8)
    scales = np.zeros((n, groups), np.float32)
    points = np.full((n, -(-groups // 2)), 0x88, np.uint8)
    source = np.ascontiguousarray(weights.T)
    quantize_matmul_4bits(codes, source, scales, points, GROUP, n, k, symmetric)
    nibbles = np.stack([codes & 15, codes >> 4], axis=-1).reshape(n, groups, GROUP)
    zero = np.stack([points & 15, points >> 4], axis=-1).reshape(n, -1)[:, :groups, None]
    return ((nibbles.astype(np.float64) - zero) * scales[:, :, None]).reshape(n, k)


def main() -> None:
    """Prints the table."""
    rng = np.random.default_rng(0)
    outliers = rng.standard_normal((N, K)) * np.where(rng.random((N, K)) < 0.001, 20, 1)
    matrices = {
        "normal": rng.standard_normal((N, K)),
        "Laplace": rng.laplace(size=(N, K)),
        "Student's t, 3 degrees of freedom": rng.standard_t(3, (N, K)),
        "normal, one in a thousand 20 times as large": outliers,
        "uniform": rng.uniform(-1, 1, (N, K)),
    }
    table = Table("weights", "ONNX Runtime, symmetric", "asymmetric", "Q4NX, nearest", "searched")
    for name, values in matrices.items():
        weights = values.astype(np.float32)
        stored = [
            onnxruntime_rtn(weights, True),
            onnxruntime_rtn(weights, False),
            q4nx.dequantize(q4nx.quantize(weights), N, K),
            q4nx.dequantize(_native.quantize(weights)[0], N, K),
        ]
        errors = [np.linalg.norm(x - weights) / np.linalg.norm(weights) for x in stored]
        table.add_row(name, *(f"{error:.2%}" for error in errors))
    Console().print(table)


if __name__ == "__main__":
    main()
