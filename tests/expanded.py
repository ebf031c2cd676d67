"""Compiled models in the form that tests examine: a node for each step."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from ort_aie_ep.graph_passes.planning import expand_plans


def expanded(folder: Path, name: str = "model.onnx") -> ir.Model:
    """The model of a compiled folder, each aie.Plan replaced by its steps."""
    model = ir.load(folder / name)
    expand_plans(model)
    return model
