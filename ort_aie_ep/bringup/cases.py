"""The sequences of a design package on an NPU, compared with numpy and with the simulator."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from ort_aie_ep import _npu
from ort_aie_ep.aie_kernels.build import make_design
from ort_aie_ep.aie_kernels.reference import Output, Problem
from ort_aie_ep.bringup import chains
from ort_aie_ep.bringup.bench import value_of
from ort_aie_ep.bringup.device import NPU1, Context, Fault, Identity, Npu
from ort_aie_ep.bringup.problems import Shape, shapes
from ort_aie_ep.errors import AieError
from ort_aie_ep.npu.packages.package import MANIFEST, Package, build_runs, package_of, read_package
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.arguments import RunBuffers
from ort_aie_ep.npu.terms.device import Device
from ort_aie_ep.npu.terms.device import device as find_device
from ort_aie_ep.npu.terms.errors import DesignError, PackageError
from ort_aie_ep.progress import Count

if TYPE_CHECKING:
    from ort_aie_ep.npu.simulator.session import Session

#: After this many failed runs, a design is not tried any further.
MAX_FAULTS = 3
#: Seconds of the device that are simulated, which takes about ten thousand times as long.
MAX_SIMULATED = 1e-3

Outcome = Literal["passed", "wrong", "refused", "fault"]


@dataclass(frozen=True)
class Difference:
    """An output against numpy.

    `worst` is the largest error, `of_tolerance` the largest share that an error has of its
    tolerance (infinite for a wrong value where no error is allowed).
    """

    output: str
    elements: int
    wrong: int
    worst: float
    of_tolerance: float
    tolerance: float  # of the element with the largest share
    example: str  # the first wrong element, or nothing


@dataclass(frozen=True)
class Case:
    """A sequence with a shape. Seconds are the total of all runs that the shape needs.

    `predicted` is the schedule's estimate, by which sequences are divided into runs. `simulated` is
    the simulator's (None: too long, or the package has another version of the design). Both exclude
    the dispatch. `measured` is the median from start to completion, `spread` the distance of the
    quartiles.
    """

    sequence: str
    shape: dict[str, int]
    outcome: Outcome
    reason: str = ""
    differences: tuple[Difference, ...] = ()
    runs: int = 0
    repetitions: int = 0
    measured: float | None = None
    spread: float | None = None
    predicted: float | None = None
    simulated: float | None = None


def case_name(sequence: str, shape: Mapping[str, int]) -> str:
    """A sequence with its shape."""
    parts = (f"{k}={v}" for k, v in shape.items() if not k.endswith("_bits"))
    return " ".join([sequence, *parts])


@dataclass
class DesignResult:
    """A package: why it was refused, or its cases, and why they were not simulated."""

    package: str
    design: str = ""
    device: str = ""
    uuid: str | None = None
    toolchain: Mapping[str, str] | None = None
    refused: str = ""
    not_simulated: str = ""
    cases: list[Case] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether it ran and everything was right."""
        ran = not self.refused and bool(self.cases)
        return ran and all(case.outcome == "passed" for case in self.cases)


def package_folders(folder: Path) -> list[Path]:
    """The package in `folder`, or those in its subfolders. Raises AieError if there are none."""
    if (folder / MANIFEST).is_file():
        return [folder]
    found = sorted(path.parent for path in folder.glob(f"*/{MANIFEST}"))
    if not found:
        raise AieError(
            f"{folder} is not a design package and contains none (a folder with overlay.xclbin and "
            f"{MANIFEST}); build one with: ort-aie kernels build all --out {folder}"
        )
    return found


def read_for(folder: Path, identity: Identity, result: DesignResult) -> Package:
    """The package for a device; `result` describes it. Raises PackageError if it does not fit."""
    package = read_package(folder)
    content = package.manifest
    result.design, result.device = package_of(content), content["device"]
    result.uuid, result.toolchain = content["uuid"], content["toolchain"]
    if content["generation"] != identity.generation:
        raise PackageError(
            f"built for {content['device']} (generation {content['generation']}), but this is "
            f"{identity.name} (generation {identity.generation}): it would run, complete and "
            f"return zeros; build all designs with: ort-aie kernels build all --device "
            f"{'npu1' if identity.generation == 3 else 'npu2'}"
        )
    return package


class DesignRun:
    """A package that is being tested: adds cases to `result` as they end.

    A failed run costs its context, and after MAX_FAULTS of them the package is not tried further.
    """

    def __init__(
        self, npu: Npu, package: Package, result: DesignResult, simulate: bool, count: Count
    ) -> None:
        self._npu, self._package, self._result, self._count = npu, package, result, count
        self._device = find_device(package.manifest["device"])
        self._context: Context | None = None
        self._faults = 0
        self._simulator: Session | None = None
        if not simulate:
            result.not_simulated = "not requested"
        self._shapes = {
            name: shapes(package.manifest, self._device, name)
            for name in package.manifest["sequences"]
        }

    def cases(self, *, typical: bool) -> int:
        """How many cases `typical` has, or `small` without those that have no reference."""
        return sum(shape.typical == typical for its in self._shapes.values() for shape in its)

    @property
    def chain_cases(self) -> int:
        """How many cases `chains` has."""
        # NPU1's firmware is said to drop chained commands, so the library does not use chains
        # there.
        its_chains = self._npu.has_chains and self._npu.identity.generation > NPU1
        return len(chains.LENGTHS) if its_chains and self._result.design == chains.DESIGN else 0

    def small(self, repetitions: int) -> None:
        """Small shapes of every sequence."""
        for name, its in self._shapes.items():
            if not its:
                reason = "no reference for this sequence in this version of the library"
                self._result.cases.append(Case(name, {}, "refused", reason))
        self._every(False, repetitions)

    def typical(self, repetitions: int) -> None:
        """The shapes of a layer."""
        self._every(True, repetitions)

    def chains(self, repetitions: int) -> None:
        """Chains of runs, on the overlay for them.

        They wait without a limit, so run them last: the device may hang.
        """
        for runs in chains.LENGTHS if self.chain_cases else ():
            self._case(chains.NAME, {"runs": runs}, lambda n=runs: self._chain(n, repetitions))  # type: ignore[misc]

    def close(self) -> None:
        """Give up the context: a device has few, and other designs need them."""
        self._context = None

    def _every(self, typical: bool, repetitions: int) -> None:
        for name, its in self._shapes.items():
            for shape in its:
                if shape.typical == typical:
                    run = lambda s=shape: self._run(s, repetitions)  # noqa: E731
                    self._case(name, shape.parameters, run)

    def _case(self, sequence: str, parameters: dict[str, int], run: Callable[[], Case]) -> None:
        if self._faults >= MAX_FAULTS:
            reason = f"not run: {self._faults} earlier runs of this design failed"
            self._result.cases.append(Case(sequence, parameters, "refused", reason))
            self._count.step()
            return
        self._count.begin(f"{self._result.design} {case_name(sequence, parameters)}")
        try:
            self._context = self._context or self._npu.open(self._package)
            case = run()
        except Fault as fault:
            case = Case(sequence, parameters, "fault", f"{fault.kind}: {fault}")
            self._context, self._faults = None, self._faults + 1
        except DesignError as error:
            case = Case(sequence, parameters, "refused", str(error))
        self._result.cases.append(case)
        self._count.step()

    def _run(self, shape: Shape, repetitions: int) -> Case:
        assert self._context is not None
        simulator = self._simulated()
        return run_case(self._context, self._package, shape.make(), repetitions, simulator)

    def _chain(self, runs: int, repetitions: int) -> Case:
        assert self._context is not None
        output, times = chains.run_chain(self._context, self._package, runs, repetitions)
        return _judged(chains.NAME, {"runs": runs}, [output], runs, times, None)

    def _simulated(self) -> Session | None:
        if self._simulator is not None or self._result.not_simulated:
            return self._simulator
        try:
            self._simulator = _simulator(self._package, self._device)
        except (ImportError, AieError) as error:  # SimPy is an optional dependency
            self._result.not_simulated = str(error)
        return self._simulator


def _simulator(package: Package, device: Device) -> Session:
    """The package's design in the simulator. Raises DesignError if the library has another."""
    from ort_aie_ep.npu.simulator.session import Session

    name = package_of(package.manifest)
    design = make_design(name, device)
    ours = json.loads(json.dumps({n: s.to_json() for n, s in design.sequences.items()}))
    if ours != package.manifest["sequences"]:
        raise DesignError(f"the package's sequences are not those of {name} in this library")
    return Session(design)


def run_case(
    context: Context,
    package: Package,
    problem: Problem,
    repetitions: int,
    simulator: Session | None,
) -> Case:
    """Run a problem, compare it, then time it. Raises Fault, and DesignError for its shape."""
    packed = RunBuffers.of(problem.buffers)
    built = build_runs(package.manifest, problem.sequence, problem.parameters, packed.places)
    longest = max(run["predicted_seconds"] for run in built)
    if longest > costs.WATCHDOG_BUDGET.value:
        raise DesignError(
            f"a run is predicted to take {longest:.2f} s, but runs above "
            f"{costs.WATCHDOG_BUDGET.value} s are not submitted (the driver's watchdog acts after "
            "4 s)"
        )
    buffers = [context.buffer(i, array) for i, array in enumerate(packed.arrays)]
    programs = [context.program(run["words"], buffers) for run in built]
    for program in programs:
        program()
    outputs = problem.judge(packed.unpack([buffer.read() for buffer in buffers]))
    # Repetitions start from what the first run left; that is the same work.
    times = [sum(program() for program in programs) for _ in range(repetitions)]
    predicted = sum(run["predicted_seconds"] - _npu.DISPATCH_SECONDS for run in built)
    case = _judged(problem.sequence, problem.parameters, outputs, len(programs), times, predicted)
    if simulator is not None and predicted <= MAX_SIMULATED:
        copies = {name: np.array(array) for name, array in problem.buffers.items()}
        try:
            ran = simulator.run(problem.sequence, problem.parameters, copies)
            case = replace(case, simulated=sum(result.seconds for result in ran))
        except AieError as error:
            reason = f"{case.reason}; the simulator: {error}".removeprefix("; ")
            case = replace(case, reason=reason)
    return case


def _judged(
    sequence: str, parameters: dict[str, int], outputs: Sequence[Output], runs: int,
    times: list[float], predicted: float | None,
) -> Case:  # fmt: skip
    differences = tuple(_difference(output) for output in outputs)
    time = value_of(times)
    wrong = sum(d.wrong for d in differences)
    reason = f"{wrong} elements are off by more than their tolerance" if wrong else ""
    return Case(
        sequence, parameters, "wrong" if wrong else "passed", reason, differences, runs,
        len(times), time.median, time.spread, predicted,
    )  # fmt: skip


def _difference(output: Output) -> Difference:
    got, exact = output.got, output.reference.exact
    tolerance = output.reference.tolerance
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.abs(got - exact)
        wrong = ~(error <= tolerance)  # NaN is wrong
        share = np.where(error == 0, 0.0, error / tolerance)
        share = np.where(np.isnan(share), np.inf, share)
    at = np.unravel_index(int(np.argmax(share)), share.shape)
    example = ""
    if wrong.any():
        first = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        place = ", ".join(map(str, first))
        example = (
            f"[{place}]: {got[first]:.6g}, expected {exact[first]:.6g} ± {tolerance[first]:.2g}"
        )
    finite = error[np.isfinite(error)]
    worst = float(finite.max()) if finite.size else float("inf")
    return Difference(
        output.name, int(got.size), int(wrong.sum()), worst, float(share[at]),
        float(tolerance[at]), example,
    )  # fmt: skip
