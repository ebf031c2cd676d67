"""Runs in the simulator for their time, which does not depend on data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ort_aie_ep.npu.simulator.machine import Result
from ort_aie_ep.npu.simulator.session import Session
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.kernel import Array, Kernel


class TimeOnly(Session):
    """A session that calls only the kernels of integers: they compute loop counts."""

    def __init__(self, design: Design) -> None:
        super().__init__(design)
        kernels = self.machine.kernels
        call = kernels.call

        def call_integers(kernel: Kernel, *arguments: Any) -> None:
            if all(a.element == "i32" for a in kernel.arguments if isinstance(a, Array)):
                call(kernel, *arguments)

        kernels.call = call_integers  # type: ignore[method-assign]

    def time(self, sequence: str, parameters: Mapping[str, int]) -> list[Result]:
        """Run `sequence` on zeros."""
        sizes = self.design.sequences[sequence].argument_bytes(parameters)
        buffers = {name: np.zeros(size, np.uint8) for name, size in sizes.items()}
        return self.run(sequence, parameters, buffers)
