"""Graph passes: ONNX to ONNX, in `pipeline.py`'s order. Each reports what it left alone and why.

`attention/`, `projection/` and `weights/` make aie operators. This folder has the code they share
(`base.py`, `walk.py`, `subgraph.py`) and passes over a whole model. Not here: files, sessions,
tools.
"""

from ort_aie_ep.graph_passes.base import DOMAIN, FORMAT, NodeOutcome, Report
from ort_aie_ep.graph_passes.pipeline import run_passes
from ort_aie_ep.graph_passes.planning import plan
from ort_aie_ep.graph_passes.plans import Divider, Plans, PlanSteps, find_plans
from ort_aie_ep.graph_passes.walk import node_label
from ort_aie_ep.graph_passes.weights.float_weights import LayerError, Quantising, WeightForm

__all__ = [
    "DOMAIN",
    "FORMAT",
    "Divider",
    "LayerError",
    "NodeOutcome",
    "PlanSteps",
    "Plans",
    "Quantising",
    "Report",
    "WeightForm",
    "find_plans",
    "node_label",
    "plan",
    "run_passes",
]
