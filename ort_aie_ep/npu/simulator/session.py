"""Run the sequences of a design in the simulator: for tests, and for people.

session = Session(fused_dqp.build(device("npu2")))
results = session.run("matvec", {"N": 2048, "K": 2048, "bias": 0}, buffers)
results[0].seconds
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from ort_aie_ep.npu.kernels import Kernels
from ort_aie_ep.npu.packages.package import build_runs, manifest
from ort_aie_ep.npu.simulator.machine import Machine, Result
from ort_aie_ep.npu.simulator.txn import decode
from ort_aie_ep.npu.terms.arguments import RunBuffers
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.progress import Count, Progress

#: The limit for an argument with random numbers: four times the largest matrix of an 8B model.
MAX_BYTES = 1 << 30


@dataclass
class Session:
    """A design on a `Machine`, with streams from the native interpreter.

    The machine keeps its state between runs. `trace` records spans for `machine.trace`;
    `kernels` are others than the package has.
    """

    design: Design
    trace: bool = False
    kernels: Kernels | None = None
    machine: Machine = field(init=False)
    _manifest: Mapping[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.machine = Machine(self.design, trace=self.trace, kernels=self.kernels)
        self._manifest = manifest(self.design)

    def build(
        self,
        sequence: str,
        parameters: Mapping[str, int],
        buffers: Iterable[str] | Mapping[str, tuple[int, int]],
    ) -> list[np.ndarray]:
        """The instruction words of each run of `sequence` for a shape.

        `buffers` are the arguments in the order of the run's buffers, or (buffer, byte offset) of
        each. Raises DesignError for a shape that the sequence refuses.
        """
        if not isinstance(buffers, Mapping):
            buffers = {name: (i, 0) for i, name in enumerate(buffers)}
        names = [a.name for a in self.design.sequences[sequence].arguments]
        places = {name: buffers[name] for name in names}
        runs = build_runs(self._manifest, sequence, parameters, places)
        return [np.asarray(run["words"]) for run in runs]

    def run(
        self,
        sequence: str,
        parameters: Mapping[str, int],
        buffers: Mapping[str, np.ndarray],
        progress: Progress | None = None,
    ) -> list[Result]:
        """Build and run `sequence`.

        `buffers` are contiguous arrays by argument name, written in place. A run has few buffers;
        if there are more arguments, they are copied into one. `progress` counts operations of the
        streams.
        """
        packed = RunBuffers.of(buffers)
        bytes_of = [
            (name, array.reshape(-1).view(np.uint8))
            for name, array in zip(packed.places, packed.arrays, strict=False)
        ]
        words = self.build(sequence, parameters, packed.places)
        streams = [decode(of_run) for of_run in words]
        count = Count(progress, sum(len(stream.operations) for stream in streams))
        results = []
        for number, stream in enumerate(streams, 1):
            count.begin(f"run {number} of {len(streams)}")
            results.append(self.machine.run_stream(stream, bytes_of, count))
        for name, array in packed.unpack(packed.arrays).items():
            if array is not buffers[name] and buffers[name].flags.writeable:
                buffers[name][...] = array
        return results


def random_buffers(
    design: Design, sequence: str, parameters: Mapping[str, int], seed: int = 0
) -> dict[str, np.ndarray]:
    """Buffers (n,) uint8 for every argument of `sequence`, by name.

    Inputs hold small bfloat16 numbers, which are also Q4NX blocks of finite weights; outputs are
    zero.

    Raises DesignError for an unknown sequence, a parameter without value, or more than MAX_BYTES.
    """
    if sequence not in design.sequences:
        raise DesignError(
            f"design {design.name} has no sequence {sequence!r}; it has "
            f"{', '.join(design.sequences)}"
        )
    sizes = design.sequences[sequence].argument_bytes(parameters)
    for name, size in sizes.items():
        if not 0 <= size <= MAX_BYTES:
            raise DesignError(
                f"sequence {sequence}: argument {name} would have {size:,} bytes; a simulation "
                f"accepts up to {MAX_BYTES:,}"
            )
    rng = np.random.default_rng(seed)
    buffers = {}
    for name, size in sizes.items():
        values = rng.standard_normal(-(-size // 2)) * 0.1
        buffers[name] = values.astype(ml_dtypes.bfloat16).view(np.uint8)[:size].copy()
    for argument in design.sequences[sequence].arguments:
        if argument.direction == "out":
            buffers[argument.name][:] = 0
    return buffers
