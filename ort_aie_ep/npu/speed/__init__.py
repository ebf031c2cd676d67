"""Speed of whole models on the NPU, from the costs of their operators' designs.

`simulate(model, device)` predicts a token and a prompt of the plan of a model that is known by
name, at each context; `simulate_plans` does the same for a compiled model's plans.
docs/npu-model.md describes the results.
"""

from __future__ import annotations

from ort_aie_ep.npu.speed.models import MODELS
from ort_aie_ep.npu.speed.simulation import (
    PlanSimulation,
    machine,
    simulate,
    simulate_plans,
)

__all__ = ["MODELS", "PlanSimulation", "machine", "simulate", "simulate_plans"]
