"""Graph passes: ONNX to ONNX, one a file, each saying what it left alone and why."""

from ort_aie_ep.graph_passes.base import DOMAIN, FORMAT, NodeOutcome, Report
from ort_aie_ep.graph_passes.pipeline import run_passes
from ort_aie_ep.graph_passes.walk import node_label
from ort_aie_ep.graph_passes.weights.float_weights import LayerError, WeightForm

__all__ = [
    "DOMAIN",
    "FORMAT",
    "LayerError",
    "NodeOutcome",
    "Report",
    "WeightForm",
    "node_label",
    "run_passes",
]
