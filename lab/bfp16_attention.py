"""What attention of a token would lose if its matrix products went through bfp16.

    python lab/bfp16_attention.py

Queries, keys and values are standard normal, queries also three times as large, which makes scores
of one query differ more. "exact" rounds the probabilities and the output to bfloat16, as FlowKV
does; "bfp16" rounds all four operands to blocks of 8 that share an exponent, with the coarse
exponential of FlowQKV. Errors are root mean squares over that of the output.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ort_aie_ep.aie_kernels.reference import bf16, bfp16

Doubles = NDArray[np.float64]
HEADS = 8
COARSE = 0.003  # of exp2_coarse


def weights(q: Doubles, k: Doubles) -> Doubles:
    """Probabilities that are not divided by their sum."""
    scores = q @ k.T / q.shape[1] ** 0.5
    return np.exp(scores - scores.max(axis=1, keepdims=True))


def errors(head_dim: int, keys: int, spread: float) -> tuple[float, float]:
    """Of exact products, and of bfp16."""
    rng = np.random.default_rng(0)
    q = bf16(rng.standard_normal((HEADS, head_dim)) * spread)
    k, v = (bf16(rng.standard_normal((keys, head_dim))) for _ in range(2))
    f = weights(q, k)
    true = f @ v / f.sum(axis=1, keepdims=True)
    rounded = bf16(f)
    exact = bf16(rounded @ v / rounded.sum(axis=1, keepdims=True))
    coarse = weights(bfp16(q, 1), bfp16(k, 1))
    coarse = bfp16(bf16(coarse * (1 + COARSE * rng.uniform(-1, 1, coarse.shape))), 1)
    blocks = bf16(coarse @ bfp16(v, 0) / coarse.sum(axis=1, keepdims=True))
    size = np.sqrt((true**2).mean())
    off = [float(np.sqrt(((output - true) ** 2).mean()) / size) for output in (exact, blocks)]
    return off[0], off[1]


def main() -> None:
    """Prints the table."""
    print(f"{'head dim':>8} {'keys':>6} {'spread':>6} {'exact':>7} {'bfp16':>7}")
    for head_dim in (64, 128, 256):
        for keys in (1024, 8192):
            for spread in (1.0, 3.0):
                exact, blocks = errors(head_dim, keys, spread)
                print(f"{head_dim:8} {keys:6} {spread:6g} {exact:7.2%} {blocks:7.2%}")


if __name__ == "__main__":
    main()
