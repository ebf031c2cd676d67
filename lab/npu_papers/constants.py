"""Whether the constants that are kept are still those of the fits."""

from __future__ import annotations

from npu_papers import mlir_air, power
from npu_papers.fit import COSTS, fit, leave_one_out
from npu_papers.kernels import beside
from ort_aie_ep.npu.terms.costs import Cost
from ort_aie_ep.prediction.power import IDLE, LAYER
from ort_aie_ep.prediction.unconfirmed import UNCONFIRMED


def check() -> bool:
    """Prints each fitted constant beside the kept one; returns whether all are the same.

    With how far each moves when a calibration cell is left out. Where one differs in three digits,
    copy the printed value: those of the papers into ort_aie_ep/npu/terms/costs.py, those of
    mlir-air's kernels into mlir_air.py, those of power into ort_aie_ep/prediction/power.py.
    """
    fitted, without = fit(), leave_one_out()
    fresh = True
    for field, cost in COSTS.items():
        moved = sorted(getattr(result.constants, field) for result in without)
        fresh &= _is_fresh(field, cost, getattr(fitted, field), (moved[0], moved[-1]))
    for result in without:
        cell = result.cell
        print(
            f"left out {cell.model} {cell.phase} at {cell.context}: {result.predicted:.3g} for "
            f"{cell.value:g}, {result.error:+.1%}"
        )
    swept = mlir_air.sweep()
    for field, cost in swept.constants.items():
        fresh &= _is_fresh(field, cost, getattr(swept.refitted, field), swept.moved[field])
    of_power = power.fitted()
    for name, cost, value in (("idle", IDLE, of_power.idle), ("layer", LAYER, of_power.layer)):
        fresh &= _is_same(f"power, {name}", cost, value)
        print()
    doubtful = frozenset(beside().unconfirmed)
    same = doubtful == UNCONFIRMED
    print(f"unconfirmed: {', '.join(sorted(doubtful))}{'' if same else ' (STALE)'}")
    return fresh and same


def _is_same(name: str, cost: Cost, value: float) -> bool:
    fresh = f"{value:.3g}" == f"{cost.value:.3g}"
    stale = "" if fresh else " (STALE)"
    print(f"{name}: {value:.3g} {cost.unit}, committed {cost.value:.3g}{stale}", end="")
    return fresh


def _is_fresh(field: str, cost: Cost, value: float, moved: tuple[float, float]) -> bool:
    low, high = cost.bounds
    fresh = _is_same(field, cost, value)
    print(
        f"; sources allow {low:.3g} to {high:.3g}; "
        f"with a cell left out {moved[0]:.3g} to {moved[1]:.3g}"
    )
    return fresh
