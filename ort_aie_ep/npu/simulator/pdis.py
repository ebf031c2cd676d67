"""The array of one hardware context whose overlay holds the configurations of several designs.

A run uses a kernel, and each kernel has a PDI. The firmware loads another PDI where a run uses
another kernel than the previous run, or where a stream begins with LOADPDI, which names the PDI by
id. The array then starts again, and its contents are lost.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ort_aie_ep.npu.simulator.machine import Machine
from ort_aie_ep.npu.simulator.txn import LoadPdi, decode
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.errors import StreamError


class Pdis:
    """Designs by kernel; PDIs have ids from 1, in the order of the kernels.

    At least one design is needed; the first is loaded at the start.
    """

    def __init__(self, designs: Mapping[str, Design]) -> None:
        self._designs = dict(designs)
        self.loads = 0  # of a PDI after the first
        self.reset()

    def reset(self) -> None:
        """Configure the array again."""
        self._load(next(iter(self._designs)))

    def _load(self, kernel: str) -> None:
        self.kernel = kernel
        pdi = list(self._designs).index(kernel) + 1
        self.machine = Machine(self._designs[kernel], pdi=pdi)

    def select(self, kernel: str, words: npt.NDArray[np.uint32]) -> float:
        """Load the PDI that a run of `kernel` needs; returns the seconds that this takes.

        The time of a LOADPDI in the stream belongs to the machine. Raises StreamError for the id of
        a PDI that the overlay does not hold.
        """
        first = next(iter(decode(words).operations), None)
        if isinstance(first, LoadPdi):
            if not 1 <= first.id <= len(self._designs):
                raise StreamError(
                    f"operation 0 loads PDI {first.id}; the overlay holds 1 to {len(self._designs)}"
                )
            self._load(list(self._designs)[first.id - 1])
            self.loads += 1
            return 0.0
        if kernel == self.kernel:
            return 0.0
        self._load(kernel)
        self.loads += 1
        return costs.PDI_SWITCH.value
