"""The array of one hardware context whose overlay holds the configurations of several designs.

A run uses a kernel, and each kernel has a PDI. The firmware loads another PDI where a run uses
another kernel than the previous run. The array then starts again, and its contents are lost.
"""

from __future__ import annotations

from collections.abc import Mapping

from ort_aie_ep.npu.simulator.machine import Machine
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.design import Design


class Pdis:
    """Designs by kernel. At least one design is needed; the first is loaded at the start."""

    def __init__(self, designs: Mapping[str, Design]) -> None:
        self._designs = dict(designs)
        self.reset()

    def reset(self) -> None:
        """Configure the array again."""
        self._load(next(iter(self._designs)))

    def _load(self, kernel: str) -> None:
        self._kernel, self.machine = kernel, Machine(self._designs[kernel])

    def select(self, kernel: str) -> float:
        """Load the PDI that a run of `kernel` needs; returns the seconds that this takes."""
        if kernel == self._kernel:
            return 0.0
        self._load(kernel)
        return costs.PDI_SWITCH.value
