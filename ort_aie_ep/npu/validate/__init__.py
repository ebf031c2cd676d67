"""Runs design packages on a real NPU and reports their correctness, their speed and the real costs.

`references` computes results in numpy, `problems` makes the shapes, `npu` uses the device through
pyxrt, `control` measures the constants of `npu.vocabulary.costs`, `session` runs all of it over a
folder, and `report` makes the text.
"""

from __future__ import annotations

from ort_aie_ep.npu.validate.session import Report, validate

__all__ = ["Report", "validate"]
