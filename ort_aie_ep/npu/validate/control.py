"""Measures the constants of `costs` that were taken from NPU1, on the device at hand.

A host's clock sees only whole runs, so each constant is a difference: the same stream with more and
with less of one thing, in turns, divided by how much more. What cannot be told apart in this way is
not in the list. The round trip through pyxrt is part of DISPATCH and cancels elsewhere.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ort_aie_ep.npu.packages.package import Package
from ort_aie_ep.npu.validate import streams
from ort_aie_ep.npu.validate.npu import Buffer, Context, Fault, Npu, Program
from ort_aie_ep.npu.validate.problem import argument_bytes
from ort_aie_ep.npu.validate.streams import Operations
from ort_aie_ep.npu.vocabulary import costs
from ort_aie_ep.npu.vocabulary.device import device as find_device
from ort_aie_ep.npu.vocabulary.errors import DesignError, StreamError

REPETITIONS, QUICK_REPETITIONS = 51, 7
#: Writes in a short and in a long stream: 4,000 of 100 cycles are 0.2 ms.
FEW, MANY = 200, 4000
PIECES = 4  # the queue of a shim's channel holds four tasks
PAGE = 4096


@dataclass(frozen=True)
class Measurement:
    """A constant of `costs` (or a sum of two) as measured, in its unit, beside what stands there.

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
class _Value:
    median: float
    spread: float

    def __sub__(self, other: _Value) -> _Value:
        return _Value(self.median - other.median, self.spread + other.spread)

    def __add__(self, other: _Value) -> _Value:
        return _Value(self.median + other.median, self.spread + other.spread)

    def scaled(self, factor: float) -> _Value:
        return _Value(self.median * factor, self.spread * factor)


class _Bench:
    """A package on the device; streams are timed on it in turns."""

    def __init__(self, npu: Npu, package: Package, repetitions: int) -> None:
        self.npu, self.package, self.repetitions = npu, package, repetitions
        self.manifest: Mapping[str, Any] = package.manifest
        self.context: Context = npu.open(package)
        self.buffers: list[Buffer] = [self.context.buffer(0, np.zeros(PAGE, np.uint8))]

    def arguments(self, sequence: str, parameters: Mapping[str, int]) -> None:
        """Buffers of zeros for a sequence, in the place of those before."""
        described = self.manifest["sequences"][sequence]["arguments"]
        sizes = [argument_bytes(a["name"], a["bytes"], parameters) for a in described]
        self.buffers = [
            self.context.buffer(i, np.zeros(max(size, PAGE), np.uint8))
            for i, size in enumerate(sizes)
        ]

    def program(self, operations: Operations) -> Program:
        return self.words(streams.encode(self.manifest, operations))

    def words(self, words: streams.Words) -> Program:
        return self.context.program(words, self.buffers)

    def seconds(self, *programs: Callable[[], float]) -> list[_Value]:
        """Of each program; they take turns, so that what drifts drifts for all."""
        for program in programs:
            program()
        rounds = [[program() for program in programs] for _ in range(self.repetitions)]
        return [_value(list(times)) for times in zip(*rounds, strict=True)]

    def each(self, operation: tuple[Any, ...], before: Operations | None = None) -> _Value:
        """Seconds of one operation."""
        short, long = (
            self.program([*(before or []), *[operation] * count]) for count in (FEW, MANY)
        )
        return self.more(short, long, MANY - FEW)

    def more(self, less: Callable[[], float], more: Callable[[], float], by: float) -> _Value:
        """(seconds of `more` less those of `less`) / `by`, turn by turn."""
        less(), more()
        return _value([(-less() + more()) / by for _ in range(self.repetitions)])


def _value(times: list[float]) -> _Value:
    low, middle, high = statistics.quantiles(times, n=4)
    return _Value(middle, high - low)


# --- each measurement: seconds of what its constants cost -----------------------------------------
def _dispatch(bench: _Bench) -> _Value:
    return bench.seconds(bench.program([streams.write(bench.manifest)]))[0]


def _write(bench: _Bench) -> _Value:
    return bench.each(streams.write(bench.manifest))


def _parameter(bench: _Bench) -> _Value:
    return bench.each(streams.parameter_write(bench.manifest))


def _masked(bench: _Bench) -> _Value:
    return bench.each(streams.masked_write(bench.manifest))


def _block_word(bench: _Bench) -> _Value:
    eight, four = (bench.each(streams.block_write(bench.manifest, n)) for n in (8, 4))
    return (eight - four).scaled(1 / 4)


def _block(bench: _Bench) -> _Value:
    return bench.each(streams.block_write(bench.manifest, 8)) - _block_word(bench).scaled(8)


def _patch(bench: _Bench) -> _Value:
    return bench.each(streams.patch(bench.manifest), [streams.block_write(bench.manifest, 8)])


#: Four blocks: one object of 20 KB in and two of 32 KB out, in every column.
_OBJECT = {"blocks": 4}


def _object(bench: _Bench) -> Operations:
    bench.arguments("dequant", _OBJECT)
    words = streams.build_one(bench.manifest, "dequant", _OBJECT)
    return streams.operations_of(words)


def _wait(bench: _Bench) -> _Value:
    operations = _object(bench)
    waits = sum(each[0] == "wait" for each in operations)
    delay = [streams.write(bench.manifest)] * MANY
    one, all_ = (bench.program(streams.with_waits(operations, n, delay)) for n in (1, waits))
    if waits < 2:
        raise DesignError("the stream has a single wait")
    return bench.more(one, all_, waits - 1)


def _next_task(bench: _Bench) -> _Value:
    one = streams.of_column(_object(bench), 0)
    divided = streams.split_tasks(bench.manifest, one, "MM2S", PIECES)
    return bench.more(bench.program(one), bench.program(divided), PIECES - 1)


def _bandwidth(
    sequence: str, shapes: Sequence[Mapping[str, int]], arguments: Sequence[str]
) -> Callable[[_Bench], _Value]:
    """Bytes per second of `arguments`, from two shapes of a sequence."""

    def measured(bench: _Bench) -> _Value:
        described = {
            a["name"]: a["bytes"] for a in bench.manifest["sequences"][sequence]["arguments"]
        }
        if missing := set(arguments) - set(described):
            raise DesignError(f"the sequence has no argument {', '.join(sorted(missing))}")
        sizes = [sum(argument_bytes(a, described[a], shape) for a in arguments) for shape in shapes]
        if sizes[1] <= sizes[0]:
            raise DesignError("the larger shape moves no more bytes than the smaller one")
        bench.arguments(sequence, shapes[-1])
        programs = []
        for shape in shapes:
            words = streams.build_one(bench.manifest, sequence, shape)
            programs.append(bench.words(words))
        seconds = bench.more(programs[0], programs[1], sizes[1] - sizes[0])
        if seconds.median <= 0:
            raise DesignError("the larger shape took no longer than the smaller one")
        rate = 1 / seconds.median
        return _Value(rate, rate * rate * seconds.spread)

    return measured


def _matvec(n: int) -> dict[str, int]:
    return {"N": n, "K": 2048, "bias": 0, "activation": 0}


@dataclass(frozen=True)
class _Experiment:
    """A constant's name (two joined by " + "), how it is measured, and on which sequence's
    package (None: on any)."""

    name: str
    how: str
    measure: Callable[[_Bench], _Value]
    sequence: str | None = None


def _experiments(quick: bool) -> list[_Experiment]:
    matvecs = [_matvec(n) for n in ((512, 1024) if quick else (2048, 16384))]
    dequants = [{"blocks": n} for n in ((64, 128) if quick else (512, 4096))]
    per = f"{MANY - FEW} more in a stream"
    waiting = "tasks that are complete, with and without"
    return [
        _Experiment("DISPATCH", "a stream of one write, start to completion", _dispatch),
        _Experiment("WRITE32", f"{per}, to a register of a shim", _write),
        _Experiment("RTP_WORD", f"{per}, to a worker's parameters", _parameter),
        _Experiment("MASKWRITE", f"{per}, of no bit", _masked),
        _Experiment("BLOCKWRITE", f"{per}, of 8 words, less its words", _block),
        _Experiment("BLOCKWRITE_WORD", f"{per}, of 8 and of 4 words", _block_word),
        _Experiment("DDR_PATCH", per, _patch),
        _Experiment("TCT_WAIT", f"{waiting} the other waits", _wait, "dequant"),
        _Experiment(
            "GATE_PIPELINED", f"a transfer to the device in {PIECES} tasks for one", _next_task,
            "dequant",
        ),
        _Experiment(
            "DDR_READ", "weights of a larger projection; at least this",
            _bandwidth("matvec", matvecs, ["w"]), "matvec",
        ),
        _Experiment(
            "DDR_WRITE", "output of dequantisation, 5/16 as much read meanwhile; at least this",
            _bandwidth("dequant", dequants, ["b"]), "dequant",
        ),
    ]  # fmt: skip


# --- all of them ----------------------------------------------------------------------------------
def measure(npu: Npu, packages: Sequence[Package], quick: bool) -> list[Measurement]:
    """Every constant that can be measured with these packages; never raises for one that cannot."""
    repetitions = QUICK_REPETITIONS if quick else REPETITIONS
    found = []
    for experiment in _experiments(quick):
        package = next(
            (p for p in packages if experiment.sequence in (None, *p.manifest["sequences"])), None
        )
        empty = _beside_costs(experiment.name, experiment.how, packages[0])
        if package is None:
            reason = f"needs a package with the sequence {experiment.sequence}"
            found.append(_with(empty, reason=reason))
            continue
        found.append(_one(npu, package, experiment, empty, repetitions))
    found.append(_switch(npu, packages, repetitions))
    return found


def _one(
    npu: Npu, package: Package, experiment: _Experiment, empty: Measurement, repetitions: int
) -> Measurement:
    try:
        bench = _Bench(npu, package, repetitions)
        value = experiment.measure(bench)
    except (Fault, DesignError, StreamError) as error:
        return _with(empty, reason=str(error))
    factor = 1.0
    if empty.unit.startswith("cycles"):
        # Right after the runs: at rest the clock is lower.
        factor = npu.clock_hz() or float(package.manifest["clock_hz"])
    value = value.scaled(factor)
    return _with(empty, measured=value.median, spread=value.spread, package=str(package.folder))


def _switch(npu: Npu, packages: Sequence[Package], repetitions: int) -> Measurement:
    """Two overlays in turns against each alone."""
    how = "runs of two packages in turns, against one package's"
    empty = _beside_costs("OVERLAY_SWITCH", how, packages[0])
    if len(packages) < 2:
        return _with(empty, reason="needs a folder with two packages for this device")
    try:
        one, other = (_Bench(npu, package, repetitions) for package in packages[:2])
        first, second = (b.program([streams.write(b.manifest)]) for b in (one, other))
        turns = one.seconds(lambda: first() + second())[0].scaled(1 / 2)
        alone = (one.seconds(first)[0] + other.seconds(second)[0]).scaled(1 / 2)
    except (Fault, DesignError) as error:
        return _with(empty, reason=str(error))
    value = turns - alone
    where = " and ".join(str(p.folder) for p in packages[:2])
    return _with(empty, measured=value.median, spread=value.spread, package=where)


def _beside_costs(name: str, how: str, package: Package) -> Measurement:
    every = costs.all_costs()
    if name in ("DDR_READ", "DDR_WRITE"):
        read, written = costs.ddr(find_device(package.manifest["device"]).architecture)
        its = read if name == "DDR_READ" else written
    else:
        its = every[name]
    return Measurement(name, its.unit, how, its.value, its.device, its.status)


def _with(measurement: Measurement, **changes: Any) -> Measurement:
    return Measurement(**{**measurement.__dict__, **changes})
