"""Graph passes: ONNX to ONNX, one a file, each saying what it left alone and why."""

from ort_aie_ep.graph_passes.base import DOMAIN, FORMAT, NodeOutcome, Report
from ort_aie_ep.graph_passes.pipeline import run_passes

__all__ = ["DOMAIN", "FORMAT", "NodeOutcome", "Report", "run_passes"]
