"""The common part of measurements: differences between streams, run in interleaved rounds.

A host's clock sees only whole runs, so a constant is a difference: the same stream with more and
with less of one thing, in interleaved rounds, divided by the difference in number. Effects that
cannot be separated in this way are not measured. The round trip through pyxrt is part of DISPATCH
and cancels elsewhere.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ort_aie_ep.aie_kernels.reference import argument_bytes
from ort_aie_ep.bringup import streams
from ort_aie_ep.bringup.device import Buffer, Context, Npu, Program
from ort_aie_ep.bringup.streams import Operations
from ort_aie_ep.npu.packages.package import Package

#: Writes in a short and in a long stream: 4,000 of 100 cycles are 0.2 ms.
FEW, MANY = 200, 4000
PAGE = 4096


@dataclass(frozen=True)
class Measurement:
    """A measured constant of `costs` (or a value derived from some), beside the value there.

    `measured` is None where `reason` says why. `spread` is the distance of the quartiles.
    """

    name: str
    unit: str
    how: str
    in_costs: float
    of_device: str
    status: str
    measured: float | None = None
    spread: float | None = None
    package: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Value:
    """The median of repetitions, and the distance of the quartiles."""

    median: float
    spread: float

    def __sub__(self, other: Value) -> Value:
        return Value(self.median - other.median, self.spread + other.spread)

    def __add__(self, other: Value) -> Value:
        return Value(self.median + other.median, self.spread + other.spread)

    def scaled(self, factor: float) -> Value:
        """Multiply by `factor`."""
        return Value(self.median * factor, self.spread * abs(factor))


def value_of(times: list[float]) -> Value:
    """The value of single measurements, at least two."""
    low, middle, high = statistics.quantiles(times, n=4)
    return Value(middle, high - low)


class Bench:
    """A package on the device; it times streams in interleaved rounds."""

    def __init__(
        self, npu: Npu, package: Package, repetitions: int, beside: Context | None = None
    ) -> None:
        self.npu, self.package, self.repetitions = npu, package, repetitions
        self.manifest: Mapping[str, Any] = package.manifest
        self.context: Context = npu.open(package, beside)
        self.buffers: list[Buffer] = [self.context.buffer(0, np.zeros(PAGE, np.uint8))]

    @property
    def columns(self) -> int:
        """The columns of the package's device."""
        return int(self.manifest["columns"])

    def arguments(self, sequence: str, parameters: Mapping[str, int]) -> None:
        """Replace the buffers by buffers of zeros for a sequence."""
        described = self.manifest["sequences"][sequence]["arguments"]
        sizes = [argument_bytes(a["name"], a["bytes"], parameters) for a in described]
        self.buffers = [
            self.context.buffer(i, np.zeros(max(size, PAGE), np.uint8))
            for i, size in enumerate(sizes)
        ]

    def operations(self, sequence: str, parameters: Mapping[str, int]) -> Operations:
        """The stream of a sequence, to be rewritten."""
        return streams.operations_of(streams.build_one(self.manifest, sequence, parameters))

    def program(self, operations: Operations) -> Program:
        """A stream on the device, with the current buffers."""
        return self.words(streams.encode(self.manifest, operations))

    def words(self, words: streams.Words) -> Program:
        """A program of words, with the current buffers."""
        return self.context.program(words, self.buffers)

    def sequence(self, sequence: str, parameters: Mapping[str, int]) -> Program:
        """The stream of a sequence on the device."""
        return self.words(streams.build_one(self.manifest, sequence, parameters))

    def seconds(self, *programs: Callable[[], float]) -> list[Value]:
        """The seconds of each program, in interleaved rounds, so that a drift affects all."""
        for program in programs:
            program()
        rounds = [[program() for program in programs] for _ in range(self.repetitions)]
        return [value_of(list(times)) for times in zip(*rounds, strict=True)]

    def each(self, operation: tuple[Any, ...], before: Operations | None = None) -> Value:
        """Seconds of one operation."""
        short, long = (
            self.program([*(before or []), *[operation] * count]) for count in (FEW, MANY)
        )
        return self.more(short, long, MANY - FEW)

    def more(self, less: Callable[[], float], more: Callable[[], float], by: float) -> Value:
        """(seconds of `more` less those of `less`) / `by`, round by round."""
        less(), more()
        return value_of([(-less() + more()) / by for _ in range(self.repetitions)])


@dataclass(frozen=True)
class Experiment:
    """A constant's name, how it is measured, and a sequence that its package needs (None: any).

    `model` gives what to expect from `costs` where that depends on several. A bandwidth is in bytes
    per second, everything else in seconds.
    """

    name: str
    how: str
    measure: Callable[[Bench], Value]
    sequence: str | None = None
    model: Callable[[Mapping[str, Any]], float] | None = None
