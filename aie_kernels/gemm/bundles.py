"""What the kernels of GEMM ask of the core (gemm.cc)."""

from __future__ import annotations

from ort_aie_ep.aie_kernels import issue_api as api
from ort_aie_ep.aie_kernels.issue import Body, Carried, carrying, once


def _step(body: Body, sums: Carried) -> Carried:
    """Two tiles of A with two of B."""
    left = [api.tile_operand(body, api.load(body, 2)) for _ in range(2)]
    right = [api.tile_operand_transposed(body, api.load(body, 2)) for _ in range(2)]
    pairs = [(a, b) for a in left for b in right]
    return [
        api.multiply_tiles(body, a, b, total) for (a, b), total in zip(pairs, sums, strict=True)
    ]


def _sums(body: Body) -> None:
    for _ in range(4):
        api.store(body, api.load_sums(body))


def tile(m_blocks: int, k_blocks: int, n_blocks: int) -> float:
    """A call of gemm_tile."""
    return m_blocks * n_blocks / 4 * (carrying(k_blocks, 4, _step) + once(_sums))
