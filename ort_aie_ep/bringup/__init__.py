"""Tries everything that this library does on a real NPU: correctness, speed, and the real costs.

`steps` has the order in which things are tried and `report` what is written about them. `device`
uses the NPU through pyxrt, `cases` compares the sequences of a design with numpy (`problems`),
`constants` measures the constants of `npu.terms.costs`, and `first_token` runs a model.
"""

from __future__ import annotations

from ort_aie_ep.bringup.steps import Report, validate

__all__ = ["Report", "validate"]
