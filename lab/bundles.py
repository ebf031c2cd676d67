"""Counts bundles of kernels from the core's issue rules, and shows how good such a count is.

    python lab/bundles.py

The rules are in aie_kernels/issue.py, written down before any comparison. Here they are applied to
kernels whose bundles are published (bundles_published.py). Compiled code takes more or less than a
count, by a factor that depends on the compiler's optimisation level and on nothing else. Each
kernel is predicted by the factor of the others of its level, so that none explains itself. What is
published and was not used for any factor is predicted next. The method cannot count code that needs
more accumulators than there are.

The next table has this project's kernels: their counts, what these become at each level, the
catalog's cycles, also for one that is counted, and products a cycle at -O1. Published attention was
all compiled at -O1, and published projections at -O2, so the two factors could be those of kinds of
kernels instead. The last has other ways to divide FlowKV's work.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, log

from bundles_published import Published, held_out, published

from ort_aie_ep.aie_kernels.build import make_design
from ort_aie_ep.aie_kernels.flow_kv import bundles as flow_kv
from ort_aie_ep.aie_kernels.flow_qkv import bundles as flow_qkv
from ort_aie_ep.aie_kernels.fused_dqp import bundles as fused_dqp
from ort_aie_ep.aie_kernels.gemm import bundles as gemm
from ort_aie_ep.aie_kernels.issue import Body, Carried, trip_and_interval
from ort_aie_ep.npu.terms.device import DEVICES
from ort_aie_ep.npu.terms.kernel import Kernel

HEAD_DIMS = (64, 128, 256)
LEAST_COUNTED, MOST_WRONG = 0.85, 0.25  # what the program finds acceptable


@dataclass(frozen=True)
class Count:
    """A kernel's bundles by the rules: those of its busiest slot, and those of a schedule."""

    kernel: Published
    busiest: int
    scheduled: int

    @property
    def factor(self) -> float:
        """Compiled bundles for one that is counted."""
        return self.kernel.bundles / self.scheduled


def count(kernel: Published) -> Count:
    """The rules, applied to a description."""
    parts = kernel.parts()
    return Count(
        kernel,
        sum(times * body.issued() for times, body in parts),
        sum(times * body.scheduled() for times, body in parts),
    )


def middle(counts: Sequence[Count]) -> float:
    """The geometric mean of factors."""
    return exp(sum(log(c.factor) for c in counts) / len(counts))


@cache
def counted() -> tuple[Count, ...]:
    """Every published kernel that a factor is made from."""
    return tuple(map(count, published()))


def factors() -> dict[int, tuple[float, float]]:
    """For each optimisation level the factor, and the largest error of a kernel left out."""
    counts = counted()
    found = {}
    for level in sorted({c.kernel.level for c in counts}):
        of_level = [c for c in counts if c.kernel.level == level]
        errors = [left_out(c, of_level) / c.kernel.bundles - 1 for c in of_level]
        found[level] = middle(of_level), max(map(abs, errors))
    return found


def left_out(one: Count, of_level: Sequence[Count]) -> float:
    """The bundles of a kernel by the factor of all others."""
    return one.scheduled * middle([other for other in of_level if other is not one])


# --- this project's kernels -----------------------------------------------------------------------
@dataclass(frozen=True)
class Own:
    """A kernel of this project: its count, what its catalog says, and its products."""

    name: str
    counted: float
    catalog: float
    products: int


def catalog() -> dict[str, Kernel]:
    """The kernels of the designs, by name."""
    designs = (
        make_design(name, DEVICES["npu2"]) for name in ("flow_kv", "flow_qkv", "gemm", "fused_dqp")
    )
    return {
        kernel.name: kernel
        for design in designs
        for worker in design.workers.values()
        for kernel in worker.kernels
    }


def own() -> Iterator[Own]:
    """Those whose inner loops are described (bundles.py in the operators' folders)."""
    kernels = catalog()

    def cycles(name: str, *scalars: int) -> float:
        return kernels[name].cycles("aie2p", scalars)

    for head_dim in HEAD_DIMS:
        for group in (1, 2, 4, 8):
            products = group * flow_kv.CHUNK
            scores = Own(
                f"flow_kv_scores, {group} queries of {head_dim}",
                flow_kv.scores(group, head_dim),
                cycles("flow_kv_scores", group, head_dim, 0, 1, 0, 0),
                products,
            )
            values = Own(
                f"flow_kv_values, {group} queries of {head_dim}",
                flow_kv.values(group, head_dim),
                cycles("flow_kv_values", group, head_dim),
                products,
            )
            yield from (scores, values)
            yield Own(
                f"both in turn, {group} queries of {head_dim}",
                scores.counted + values.counted,
                scores.catalog + values.catalog,
                2 * products,
            )
        rows = 8192 // head_dim
        yield Own(
            f"flow_qkv_scores, {rows} rows of {head_dim}",
            flow_qkv.scores(head_dim, rows),
            cycles("flow_qkv_scores", head_dim, rows, *(0,) * 7),
            rows * flow_qkv.CHUNK,
        )
        yield Own(
            f"flow_qkv_values, {rows} rows of {head_dim}",
            flow_qkv.values(head_dim, rows),
            cycles("flow_qkv_values", head_dim, rows),
            rows * flow_qkv.CHUNK,
        )
    yield Own(
        "gemm_tile, 64 x 64 x 32",
        gemm.tile(8, 8, 4),
        cycles("gemm_tile", 8, 8, 4, 0),
        64 * 64 * 32,
    )
    yield Own("dqp_block", fused_dqp.block(), cycles("dqp_block", 0, 256, 1), 32 * 256)


def print_own(of_levels: dict[int, tuple[float, float]]) -> None:
    """Counts, as compiled at each level, the catalog's cycles for one counted, MAC a cycle."""
    print(
        f"\n{'this project':38} {'counted':>8} {'-O2':>8} {'-O1':>8} {'catalog':>8} {'':5} "
        f"{'MAC/cycle':>9}"
    )
    for kernel in own():
        slow = kernel.counted * of_levels[1][0]
        print(
            f"{kernel.name:38} {kernel.counted:8,.0f} {kernel.counted * of_levels[2][0]:8,.0f} "
            f"{slow:8,.0f} {kernel.catalog:8,.0f} {kernel.catalog / kernel.counted:5.2f} "
            f"{kernel.products / slow:9.1f}"
        )


# --- other ways to divide FlowKV's work -----------------------------------------------------------
def _products_and_exponential(body: Body, sums: Carried) -> Carried:
    flow_kv.end_exponential(body)
    return flow_kv.rows(body, sums)


def _exponential(body: Body, _: Carried) -> Carried:
    flow_kv.end_exponential(body)
    return ()


def print_divisions() -> None:
    """What it would take if the value core had the exponentials, or a loop both kinds of work."""
    print(
        f"\n{'a chunk, 4 queries: score, value core':38} {'as it is':>15} {'F by the latter':>15}"
    )
    for head_dim in HEAD_DIMS:
        scores, values = flow_kv.scores(4, head_dim), flow_kv.values(4, head_dim)
        moved = flow_kv.exponentials(4, head_dim)
        print(
            f"{f'heads of {head_dim}':38} {scores:7,.0f} {values:7,.0f} "
            f"{scores - moved:7,.0f} {values + moved:7,.0f}"
        )
    print("bundles between trips")
    for name, values, trip in (
        ("8 rows of products for two heads", 4, flow_kv.rows),
        ("the end of 32 exponentials", 0, _exponential),
        ("both in one loop", 4, _products_and_exponential),
    ):
        print(f"{name:38} {trip_and_interval(values, trip)[1]:15,.0f}")


def main() -> int:
    """Prints the tables; returns 1 if the method does not hold."""
    counts = counted()
    print(f"{'kernel':38} {'-O':>2} {'busiest':>8} {'counted':>8} {'published':>9} {'left out':>9}")
    worst = 0.0
    for one in counts:
        predicted = left_out(one, [c for c in counts if c.kernel.level == one.kernel.level])
        error = predicted / one.kernel.bundles - 1
        worst = max(worst, abs(error))
        print(
            f"{one.kernel.name:38} {one.kernel.level:2} {one.busiest:8,} {one.scheduled:8,} "
            f"{one.kernel.bundles:9,} {predicted:9,.0f} {error:+6.0%}"
        )
    of_levels = factors()
    for level, (factor, most) in of_levels.items():
        print(f"-O{level}: {factor:.2f} bundles for one counted; left out, within {most:.0%}")
    print("\nnot used for a factor")
    for one in map(count, held_out()):
        predicted = one.scheduled * of_levels[one.kernel.level][0]
        print(
            f"{one.kernel.name:38} {one.kernel.level:2} {one.busiest:8,} {one.scheduled:8,} "
            f"{one.kernel.bundles:9,} {predicted:9,.0f} {predicted / one.kernel.bundles - 1:+6.0%}"
        )
    print_own(of_levels)
    print_divisions()
    low = min(c.factor for c in counts)
    print(f"\nfewest bundles for one counted: {low:.2f}; largest error left out: {worst:.0%}")
    return int(low < LEAST_COUNTED or worst > MOST_WRONG)


if __name__ == "__main__":
    sys.exit(main())
