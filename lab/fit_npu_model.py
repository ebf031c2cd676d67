"""Fits the performance model's constants and checks whether costs.py still has them.

    python lab/fit_npu_model.py

Prints each fitted constant beside the committed one, and how far it moves when a calibration cell
is left out. Exits with 1 if a committed constant differs from the fitted one in three digits. In
that case, copy the printed values: those of the papers into ort_aie_ep/npu/vocabulary/costs.py,
those of mlir-air's kernels into ort_aie_ep/npu/speed/mlir_air.py.
"""

from __future__ import annotations

import sys

from ort_aie_ep.npu.speed.fit import COSTS, fit, leave_one_out
from ort_aie_ep.npu.speed.mlir_air import sweep
from ort_aie_ep.npu.vocabulary.costs import Cost


def is_stale(field: str, cost: Cost, value: float, moved: tuple[float, float]) -> bool:
    """Prints a constant beside the committed one; returns whether they differ."""
    low, high = cost.bounds
    fresh = f"{value:.3g}" == f"{cost.value:.3g}"
    print(
        f"{field}: {value:.3g} {cost.unit}, committed {cost.value:.3g}"
        f"{'' if fresh else ' (STALE)'}; sources allow {low:.3g} to {high:.3g}; "
        f"with a cell left out {moved[0]:.3g} to {moved[1]:.3g}"
    )
    return not fresh


def main() -> int:
    """Prints and compares the constants; returns the exit code."""
    fitted = fit()
    without = leave_one_out()
    stale = False
    for field, cost in COSTS.items():
        moved = sorted(getattr(result.constants, field) for result in without)
        stale |= is_stale(field, cost, getattr(fitted, field), (moved[0], moved[-1]))
    for result in without:
        cell = result.cell
        print(
            f"left out {cell.model} {cell.phase} at {cell.context}: {result.predicted:.3g} for "
            f"{cell.value:g}, {result.error:+.1%}"
        )
    swept = sweep()
    for field, cost in swept.constants.items():
        stale |= is_stale(field, cost, getattr(swept.refitted, field), swept.moved[field])
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
