"""Runs design packages on a real NPU and says what is right, how fast, and what the costs are.

`references` is numpy, `problems` the shapes, `npu` the device through pyxrt, `control` the
measurements behind `npu.vocabulary.costs`, `session` all of it over a folder, `report` its text.
"""

from __future__ import annotations

from ort_aie_ep.npu.validate.session import Report, validate

__all__ = ["Report", "validate"]
