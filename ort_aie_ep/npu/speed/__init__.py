"""Speed of whole models on the NPU, from the costs of their operators' designs.

`simulate(model, device)` predicts tokens per second and the time to the first token against
context; `judge()` holds the same predictions against every cell of the papers' tables. Three
constants are fitted (`fit`), none per model; docs/npu-model.md says what comes of it.
"""

from __future__ import annotations

from ort_aie_ep.npu.speed.fit import fit, leave_one_out
from ort_aie_ep.npu.speed.judgement import Judgement, judge
from ort_aie_ep.npu.speed.models import MODELS
from ort_aie_ep.npu.speed.simulation import Simulation, simulate

__all__ = ["MODELS", "Judgement", "Simulation", "fit", "judge", "leave_one_out", "simulate"]
