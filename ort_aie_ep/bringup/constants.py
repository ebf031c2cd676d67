"""Measures the constants of `costs` that came from other machines, on this machine's device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from ort_aie_ep.bringup import bench, data_path, streams
from ort_aie_ep.bringup.bench import Bench, Experiment, Measurement, Value
from ort_aie_ep.bringup.device import MAX_CHAIN, NPU1, Fault, Npu
from ort_aie_ep.npu.packages.package import Package
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.device import device as find_device
from ort_aie_ep.npu.terms.errors import DesignError, StreamError

REPETITIONS, QUICK_REPETITIONS = 51, 7
MAX_FAULTS = 3
NOT_TRIED = f"not tried: {MAX_FAULTS} earlier measurements failed"


# --- each measurement: seconds of what its constants cost -----------------------------------------
def _dispatch(on: Bench) -> Value:
    return on.seconds(on.program([streams.write(on.manifest)]))[0]


def _chained(runs: int) -> Callable[[Bench], Value]:
    def measured(on: Bench) -> Value:
        if on.npu.identity.generation == NPU1:
            raise DesignError(
                "the library does not use chains on NPU1, whose firmware drops commands"
            )
        programs = [on.program([streams.write(on.manifest)]) for _ in range(runs)]
        return on.seconds(on.context.chain(programs))[0].scaled(1 / runs)

    return measured


def _each(operation: Callable[[Mapping[str, Any]], tuple[Any, ...]]) -> Callable[[Bench], Value]:
    return lambda on: on.each(operation(on.manifest))


def _block_word(on: Bench) -> Value:
    eight, four = (on.each(streams.block_write(on.manifest, n)) for n in (8, 4))
    return (eight - four).scaled(1 / 4)


def _block(on: Bench) -> Value:
    return on.each(streams.block_write(on.manifest, 8)) - _block_word(on).scaled(8)


def _patch(on: Bench) -> Value:
    return on.each(streams.patch(on.manifest), [streams.block_write(on.manifest, 8)])


def _experiments(quick: bool) -> list[Experiment]:
    per = f"{bench.MANY - bench.FEW} more in a stream"
    return [
        Experiment("DISPATCH", "a stream of one write, start to completion", _dispatch),
        Experiment("WRITE32", f"{per}, to a register of a shim", _each(streams.write)),
        Experiment("RTP_WORD", f"{per}, to a worker's parameters", _each(streams.parameter_write)),
        Experiment("MASKWRITE", f"{per}, that change no bit", _each(streams.masked_write)),
        Experiment("BLOCKWRITE", f"{per}, of 8 words, less the words' own cost", _block),
        Experiment("BLOCKWRITE_WORD", f"{per}, of 8 and of 4 words", _block_word),
        Experiment("DDR_PATCH", per, _patch),
        *data_path.experiments(quick),
        # Last: of all measurements, a chain alone has no time limit but the driver's watchdog.
        *(
            Experiment(f"DISPATCH, {n} in a chain", "streams of one write, for each run",
                       _chained(n))
            for n in (2, MAX_CHAIN)
        ),
    ]  # fmt: skip


# --- all of them ----------------------------------------------------------------------------------
# Name, and whether its two packages share an xclbin.
_SWITCHES = (("OVERLAY_SWITCH", False), ("PDI_SWITCH", True))


def measurements(quick: bool) -> int:
    """How many measurements `measure` yields."""
    return len(_experiments(quick)) + len(_SWITCHES)


def measure(
    npu: Npu,
    packages: Sequence[Package],
    quick: bool,
    begin: Callable[[str], None] = lambda name: None,
) -> Iterator[Measurement]:
    """Every constant that can be measured with these packages: `measurements(quick)` of them.

    It never raises for a constant that cannot be measured. It calls `begin` with the name of each
    constant that it tries. After MAX_FAULTS failed runs it does not try the others.
    """
    repetitions = QUICK_REPETITIONS if quick else REPETITIONS
    faults = 0
    for experiment in _experiments(quick):
        package = next(
            (p for p in packages if experiment.sequence in (None, *p.manifest["sequences"])), None
        )
        empty = _beside_costs(experiment, package or packages[0])
        if package is None:
            reason = f"needs a package with the sequence {experiment.sequence}"
            yield replace(empty, reason=reason)
            continue
        if faults >= MAX_FAULTS:
            yield replace(empty, reason=NOT_TRIED)
            continue
        begin(experiment.name)
        try:
            yield _one(npu, package, experiment, empty, repetitions)
        except Fault as fault:
            # A gap in this Python's binding is not a fault of the device.
            faults += fault.kind != "binding"
            yield replace(empty, reason=str(fault))
    for name, together in _SWITCHES:
        begin(name)
        yield _switch(name, npu, packages, together, repetitions, faults >= MAX_FAULTS)


def _one(
    npu: Npu, package: Package, experiment: Experiment, empty: Measurement, repetitions: int
) -> Measurement:
    """Measure one constant. Raises Fault."""
    try:
        value = experiment.measure(Bench(npu, package, repetitions))
    except (DesignError, StreamError) as error:
        return replace(empty, reason=str(error))
    # Right after the runs: at rest the clock is lower.
    clock = npu.clock_hz() or costs.clock_hz(find_device(package.manifest["device"]))
    if empty.unit.startswith("cycles"):
        value = value.scaled(clock)
    where = str(package.folder)
    return replace(empty, measured=value.median, spread=value.spread, package=where)


def _switch(
    name: str, npu: Npu, packages: Sequence[Package], together: bool, repetitions: int,
    given_up: bool,
) -> Measurement:  # fmt: skip
    """Interleaved runs of two packages against each alone, of one xclbin (`together`) or of two."""
    how = "interleaved runs of two packages, against one package's"
    empty = _beside_costs(Experiment(name, how, _dispatch), packages[0])
    if given_up:
        return replace(empty, reason=NOT_TRIED)
    pair = next(
        (
            (one, other)
            for one, other in combinations(packages, 2)
            if (one.manifest["uuid"] == other.manifest["uuid"]) == together
        ),
        None,
    )
    if pair is None:
        reason = f"needs two packages of {'one xclbin' if together else 'different xclbins'}"
        return replace(empty, reason=reason)
    try:
        one = Bench(npu, pair[0], repetitions)
        other = Bench(npu, pair[1], repetitions, one.context if together else None)
        first, second = (b.program([streams.write(b.manifest)]) for b in (one, other))
        turns = one.seconds(lambda: first() + second())[0].scaled(1 / 2)
        alone = (one.seconds(first)[0] + other.seconds(second)[0]).scaled(1 / 2)
    except (Fault, DesignError) as error:
        return replace(empty, reason=str(error))
    value = turns - alone
    where = " and ".join(str(p.folder) for p in pair)
    return replace(empty, measured=value.median, spread=value.spread, package=where)


def _beside_costs(experiment: Experiment, package: Package) -> Measurement:
    """The cost that a name begins with, or the result of the experiment's model."""
    name = experiment.name.partition(",")[0]
    if name in ("DDR_READ", "DDR_WRITE"):
        read, written = costs.ddr(find_device(package.manifest["device"]).architecture)
        its = read if name == "DDR_READ" else written
    else:
        its = costs.all_costs()[name]
    expected = experiment.model(package.manifest) if experiment.model else its.value
    return Measurement(
        experiment.name, its.unit, experiment.how, float(expected), its.device, its.status
    )
