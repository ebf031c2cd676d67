"""`ort-aie validate`: everything that can be tried on an NPU, in the order in which it can fail.

Each step reports its result, and the next one begins whatever that was. The report is written
whenever a step or a design ends, so a report exists even if the machine hangs or the user stops
early.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from ort_aie_ep import __version__
from ort_aie_ep.aie_kernels.build import designs_on
from ort_aie_ep.bringup import first_token
from ort_aie_ep.bringup.bench import Measurement
from ort_aie_ep.bringup.cases import DesignResult, DesignRun, package_folders, read_for
from ort_aie_ep.bringup.constants import measure, measurements
from ort_aie_ep.bringup.device import NPU1, Fault, Identity, Npu, load_binding
from ort_aie_ep.bringup.first_token import Token
from ort_aie_ep.errors import AieError
from ort_aie_ep.explain.doctor import find_xrt_target
from ort_aie_ep.machine import Finding, find_npu
from ort_aie_ep.npu.packages.package import MANIFEST, Package
from ort_aie_ep.npu.terms.device import device as find_device
from ort_aie_ep.npu.terms.errors import PackageError
from ort_aie_ep.progress import Count, Progress
from ort_aie_ep.requirements import RUNTIME, install_line, runtime_version

FORMAT = 2
#: Timed repetitions of a case: of a layer's shape, and of a small one.
RUNS, QUICK_RUNS = 9, 3
#: First the design that computes nothing, then those that share no channel, then the rest.
ORDER = ("micro", "dequant", "gemm", "fused_dqp", "vector_ops", "flow_kv", "flow_qkv", "decode")

Outcome = Literal["done", "failed", "skipped", "interrupted"]


@dataclass
class Step:
    """The result of a step in a line, and a remedy for a failure."""

    outcome: Outcome
    says: str
    remedy: str = ""
    name: str = ""
    seconds: float = 0.0


@dataclass
class Report:
    """The results so far."""

    folder: str
    made: str
    library: str = __version__
    machine: list[Finding] = field(default_factory=list)
    device: Identity | None = None
    steps: list[Step] = field(default_factory=list)
    designs: list[DesignResult] = field(default_factory=list)
    control: list[Measurement] = field(default_factory=list)
    token: Token | None = None

    @property
    def passed(self) -> bool:
        """Whether everything ran and was right."""
        done = all(step.outcome in ("done", "skipped") for step in self.steps)
        return done and bool(self.designs) and all(design.passed for design in self.designs)

    @property
    def interrupted(self) -> bool:
        """Whether the user ended it early."""
        return any(step.outcome == "interrupted" for step in self.steps)

    def to_json(self) -> dict[str, Any]:
        """The report as its file contains it."""
        return {"format": FORMAT, "passed": self.passed} | asdict(self)


def validate(
    folder: Path,
    save: Callable[[Report], None] = lambda report: None,
    *,
    designs: Collection[str] = (),
    quick: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Try everything with the package in `folder`, or all packages in folders of it.

    Args:
        folder: a package, or a folder of packages.
        save: receives the results so far.
        designs: only packages of these designs, and no model, which needs all of them.
        quick: leave out the shapes of a layer and the simulations, and measure with few runs.
        progress: counts cases, measurements and the model's tokens (as one); the total is 0 until
            the overlays are read.

    Raises only what `save` raises.
    """
    report = Report(str(folder), datetime.now(UTC).isoformat(timespec="seconds"))
    run = _Run(report, folder, save, designs, quick, Count(progress, 0))
    done = 0
    for name, do in run.steps.items():
        run.count.begin(name)
        start = monotonic()
        try:
            step = do()
        except KeyboardInterrupt:
            step = Step("interrupted", "ended by the user")
        except Exception as error:  # whatever the error: later steps may still find something
            step = Step("failed", f"{type(error).__name__}: {error}", _REPORT_IT)
        step.name, step.seconds = name, monotonic() - start
        report.steps.append(step)
        save(report)
        if step.outcome == "interrupted":
            break
        # All that a step counts is done now, even where it was left out.
        run.count.done = done = done + run.planned.get(name, 0)
        run.count.begin("")
    return report


@dataclass
class _Run:
    """The steps, and the data that they pass to later steps."""

    report: Report
    folder: Path
    save: Callable[[Report], None]
    designs: Collection[str]
    quick: bool
    count: Count
    npu: Npu | None = None
    packages: list[Package] = field(default_factory=list)
    runs: list[DesignRun] = field(default_factory=list)
    #: How many items each step will count, once the overlays are read.
    planned: dict[str, int] = field(default_factory=dict)

    @property
    def steps(self) -> dict[str, Callable[[], Step]]:
        """The steps by name, each after those that it needs."""
        return {
            "machine": self._machine,
            "device": self._device,
            "overlays": self._overlays,
            "small shapes": lambda: self._cases(lambda run: run.small(QUICK_RUNS)),
            "shapes of a layer": self._layers,
            "chains of runs": lambda: self._cases(lambda run: run.chains(QUICK_RUNS)),
            "constants": self._constants,
            "a model's tokens": self._token,
        }

    def _machine(self) -> Step:
        self.report.machine = links()
        missing = [each for each in self.report.machine if not each.found]
        if missing:
            return Step("failed", f"there is no {missing[0].name}", missing[0].remedy)
        count = len(self.report.machine)
        return Step("done", f"{count} links from the chip to the library are present")

    def _device(self) -> Step:
        try:
            self.npu = Npu(load_binding())
        except Fault as fault:
            return Step("failed", str(fault), "see the step `machine`")
        its = self.report.device = self.npu.identity
        says = f"{its.name or 'no name'} at {its.address or '?'}, XRT {its.xrt or '?'}, "
        says += f"driver {its.driver or '?'}, firmware {its.firmware or '?'}, Linux {its.kernel}"
        return Step("done", says)

    def _overlays(self) -> Step:
        if self.npu is None:
            return Step("skipped", "there is no device to try it on")
        device = "npu1" if self.npu.identity.generation == NPU1 else "npu2"
        wanted = self._wanted(device)
        try:
            folders = package_folders(self.folder)
        except AieError as error:
            how = _how_to_build(device, self.designs or ["all"], self.folder)
            return Step("failed", str(error), how)
        problems = []
        for each in sorted(folders, key=_place):
            problems += self._read(self.npu, each)
        self._plan()
        names = [design.design for design in self.report.designs if not design.refused]
        missing = [name for name in wanted if name not in names]
        says = f"{', '.join(names) or 'none'} for {device}"
        if not missing and not problems:
            return Step("done", says)
        says += f"; missing: {', '.join(missing)}" if missing else ""
        says += "".join(f"; {problem}" for problem in problems)
        return Step("failed", says, _how_to_build(device, missing or ["all"], self.folder))

    def _wanted(self, device: str) -> Collection[str]:
        """The designs that should be there."""
        if self.designs or (self.folder / MANIFEST).is_file():
            return self.designs
        return list(designs_on(find_device(device), ()))

    def _read(self, npu: Npu, folder: Path) -> list[str]:
        """Read a package if it is of a design to be tried; returns the problem with it."""
        result = DesignResult(str(folder))
        try:
            package = read_for(folder, npu.identity, result)
        except PackageError as error:
            result.refused = str(error)
        if self.designs and result.design and result.design not in self.designs:
            return []
        self.report.designs.append(result)
        if result.refused:
            return [result.refused]
        self.packages.append(package)
        self.runs.append(DesignRun(npu, package, result, not self.quick, self.count))
        return []

    def _plan(self) -> None:
        of_layers = 0 if self.quick else sum(run.cases(typical=True) for run in self.runs)
        self.planned = {
            "small shapes": sum(run.cases(typical=False) for run in self.runs),
            "shapes of a layer": of_layers,
            "chains of runs": sum(run.chain_cases for run in self.runs),
            "constants": measurements(self.quick) if self.packages else 0,
            "a model's tokens": 1 if self.packages and not self.designs else 0,
        }
        self.count.total = sum(self.planned.values())

    def _layers(self) -> Step:
        if self.quick:
            return Step("skipped", "--quick leaves them out")
        return self._cases(lambda run: run.typical(RUNS))

    def _cases(self, run_all: Callable[[DesignRun], None]) -> Step:
        if not self.runs:
            return Step("skipped", "there is no overlay to run")
        designs = self.report.designs
        before = [len(design.cases) for design in designs]
        for run in self.runs:
            try:
                run_all(run)
            finally:
                run.close()
            self.save(self.report)
        new = [
            (design, case)
            for design, start in zip(designs, before, strict=True)
            for case in design.cases[start:]
        ]
        if not new:
            return Step("skipped", "no overlay here has chains, or this pyxrt has no run lists")
        not_right = [(design, case) for design, case in new if case.outcome != "passed"]
        says = f"{len(new) - len(not_right)} of {len(new)} cases are right"
        if not not_right:
            return Step("done", says)
        design, case = not_right[0]
        says += f"; the first that is not: {design.design} {case.sequence}: {case.outcome}"
        return Step("failed", f"{says}: {case.reason}", _ADVICE[case.outcome])

    def _constants(self) -> Step:
        if self.npu is None or not self.packages:
            return Step("skipped", "there is no overlay to measure with")
        control = self.report.control
        for each in measure(self.npu, self.packages, self.quick, self.count.begin):
            control.append(each)
            self.save(self.report)
            self.count.step()
        measured = sum(each.measured is not None for each in control)
        says = f"{measured} of {len(control)} are measured"
        if not measured:
            return Step("failed", f"{says}: {control[0].reason}", _ADVICE["fault"])
        return Step("done", says)

    def _token(self) -> Step:
        if self.designs:
            return Step("skipped", "a model needs all designs")
        if self.npu is None or not self.packages:
            return Step("skipped", "there is no overlay to run a model on")
        try:
            token = self.report.token = first_token.run_apart(self.folder)
        except AieError as error:
            return Step("failed", str(error), _ADVICE["fault"])
        if token.submissions == 0:
            reasons = ", ".join(token.host_steps) or "no reason was given"
            says = f"the host did all the work: {reasons}"
            return Step("failed", says, "see 'What runs on the host' in docs/ryzen-ai.md")
        says = f"{token.same} of {token.tokens} are the host's"
        return Step("done", says) if token.right else Step("failed", says, _ADVICE["wrong"])


_REPORT_IT = "this is a bug in ort_aie_ep: please report it"
_ADVICE = {
    "wrong": "please report it with this report: the simulator computes it correctly",
    "fault": "run 'dmesg | grep -i xdna', and report its output with this report",
    "refused": "the reason says what to change",
}


def links() -> list[Finding]:
    """The chain from the chip to the library."""
    version = runtime_version()
    runtime = Finding("ONNX Runtime", version, "" if version else install_line([RUNTIME]))
    return [runtime, *find_npu(), find_xrt_target()]


def _place(folder: Path) -> tuple[int, str]:
    """The position in ORDER, others last; a package's folder has its design's name."""
    names = [name for name in ORDER if folder.name.startswith(name)]
    return (ORDER.index(names[0]) if names else len(ORDER), folder.name)


def _how_to_build(device: str, designs: Collection[str], folder: Path) -> str:
    return "; ".join(
        f"ort-aie kernels build {name} --device {device} --out {folder}" for name in designs
    )
