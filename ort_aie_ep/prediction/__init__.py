"""Speed of whole models on the NPU: the scheduler of src/targets/npu, and the time of its streams.

`simulate(model)` predicts a token and a prompt of the plan of a model that is known by
name, at each context; `simulate_plans` does the same for a compiled model's plans. The results are
described in docs/npu-model.md.
"""

from __future__ import annotations

from ort_aie_ep.prediction.shapes import MODELS
from ort_aie_ep.prediction.simulation import PlanSimulation, simulate, simulate_plans

__all__ = ["MODELS", "PlanSimulation", "simulate", "simulate_plans"]
