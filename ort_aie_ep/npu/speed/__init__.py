"""Speed of whole models on the NPU, from the costs of their operators' designs.

`simulate(model, device)` predicts tokens per second and the time to the first token for each
context. `simulate_plans` does the same for a compiled model's plans; tests compare their runs with
the counters of sessions. `judge()` models the papers' programs from the same operators and compares
them with every cell of the papers' tables. Three constants are fitted (`fit`), none per model.
`sweep()` does the same for AMD's open decoder of 2026, with three constants of its own.
docs/npu-model.md describes the results.
"""

from __future__ import annotations

from ort_aie_ep.npu.speed.beside import Comparison, beside
from ort_aie_ep.npu.speed.fit import fit, leave_one_out
from ort_aie_ep.npu.speed.judgement import Judgement, judge
from ort_aie_ep.npu.speed.mlir_air import Sweep, sweep
from ort_aie_ep.npu.speed.models import MODELS
from ort_aie_ep.npu.speed.simulation import (
    PlanSimulation,
    Simulation,
    machine,
    points_of,
    simulate,
    simulate_plans,
)

__all__ = [
    "MODELS", "Comparison", "Judgement", "PlanSimulation", "Simulation", "Sweep", "beside",
    "fit", "judge", "leave_one_out", "machine", "points_of", "simulate", "simulate_plans", "sweep",
]  # fmt: skip
