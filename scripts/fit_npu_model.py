"""Fits the performance model's constants and checks whether costs.py still has them.

    python scripts/fit_npu_model.py

Prints each fitted constant beside the committed one, and how far it moves when a calibration cell
is left out. Exits with 1 if a committed constant differs from the fitted one in three digits. In
that case, copy the printed values into ort_aie_ep/npu/vocabulary/costs.py.
"""

from __future__ import annotations

import sys

from ort_aie_ep.npu.speed.fit import COSTS, fit, leave_one_out


def main() -> int:
    """Prints and compares the constants; returns the exit code."""
    fitted = fit()
    without = leave_one_out()
    stale = False
    for field, cost in COSTS.items():
        value = getattr(fitted, field)
        low, high = cost.interval or (cost.value, cost.value)
        moved = sorted(getattr(result.constants, field) for result in without)
        fresh = f"{value:.3g}" == f"{cost.value:.3g}"
        stale |= not fresh
        print(
            f"{field}: {value:.3g} {cost.unit}, committed {cost.value:.3g}"
            f"{'' if fresh else ' (STALE)'}; sources allow {low:.3g} to {high:.3g}; "
            f"with a cell left out {moved[0]:.3g} to {moved[-1]:.3g}"
        )
    for result in without:
        cell = result.cell
        print(
            f"left out {cell.model} {cell.phase} at {cell.context}: {result.predicted:.3g} for "
            f"{cell.value:g}, {result.error:+.1%}"
        )
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
