"""`ort-aie first-day`: everything that can be tried on a chip, in the order in which it can fail.

Each step reports its result, and the next one begins whatever that was. The report is written
whenever a step or a design ends, so a report exists even if the machine hangs or the user stops
early.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from types import ModuleType
from typing import Any, Literal, Protocol

from ort_aie_ep import __version__
from ort_aie_ep.errors import AieError
from ort_aie_ep.npu.packages.package import Package, package_of
from ort_aie_ep.npu.validate.control import measure, measurements
from ort_aie_ep.npu.validate.npu import NPU1, Fault, Npu, load_binding
from ort_aie_ep.npu.validate.session import (
    QUICK_RUNS,
    RUNS,
    DesignResult,
    DesignRun,
    MakeDesign,
    Report,
    package_folders,
    read_for,
)
from ort_aie_ep.npu.vocabulary.errors import PackageError
from ort_aie_ep.progress import Count, Progress

FORMAT = 1
#: First the design that computes nothing, then those that share no channel, then the rest.
ORDER = ("micro", "dequant", "gemm", "fused_dqp", "vector_ops", "flow_kv", "flow_qkv", "decode")
NO_DEVICE = "there is no device to try it on"

Outcome = Literal["done", "failed", "skipped", "interrupted"]


class Finding(Protocol):
    """A link of the chain from the chip to the library: empty `found` means that it is missing."""

    @property
    def name(self) -> str:
        """What the step looked for."""

    @property
    def found(self) -> str:
        """The place or version found; empty if it is missing."""

    @property
    def remedy(self) -> str:
        """How to get it."""


@dataclass(frozen=True)
class Token:
    """A comparison of a model's tokens on the NPU with those on the host."""

    tokens: int
    same: int  # from the first, until the texts diverge
    near_tie: bool  # whether they diverge where the host barely prefers one token
    largest_difference: float  # of a logit
    largest_logit: float
    milliseconds: float  # a token, median of the repetitions
    host_milliseconds: float
    submissions: float  # for each token
    host_steps: dict[str, int]  # all that the NPU did not do, by reason

    @property
    def right(self) -> bool:
        """Whether the text is the same as on the host."""
        return self.same == self.tokens or self.near_tie


@dataclass(frozen=True)
class Means:
    """What a first day gets from modules above this one, or from a test.

    `wanted` gives the designs for "npu1" or "npu2". `build` builds one into a folder; if it is
    None, missing designs stay missing. `token` runs a model with the overlays of a folder.
    `progress` counts cases, measurements and the model's tokens (as one); the total is 0 until the
    overlays are read.
    """

    look: Callable[[], Sequence[Finding]]
    wanted: Callable[[str], Sequence[str]]
    token: Callable[[Path], Token]
    make_design: MakeDesign | None = None
    build: Callable[[str, str, Path], None] | None = None
    load: Callable[[], ModuleType] = load_binding
    progress: Progress | None = None


@dataclass
class Step:
    """The result of a step in a line, and a remedy for a failure."""

    name: str
    outcome: Outcome
    says: str
    remedy: str = ""
    seconds: float = 0.0


@dataclass
class FirstDay:
    """The results. `report` is as `ort-aie validate` writes it."""

    folder: str
    report: Report
    machine: list[dict[str, str]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    token: Token | None = None

    @property
    def passed(self) -> bool:
        """Whether everything ran and was right."""
        done = all(step.outcome in ("done", "skipped") for step in self.steps)
        return done and self.report.passed

    @property
    def interrupted(self) -> bool:
        """Whether the user ended it early."""
        return any(step.outcome == "interrupted" for step in self.steps)

    def to_json(self) -> dict[str, Any]:
        """The report as its file contains it."""
        return {
            "format": FORMAT, "passed": self.passed, "folder": self.folder,
            "machine": self.machine, "steps": [asdict(step) for step in self.steps],
            "validate": self.report.to_json(),
            "token": None if self.token is None else asdict(self.token),
        }  # fmt: skip


def first_day(folder: Path, means: Means, save: Callable[[FirstDay], None]) -> FirstDay:
    """Try everything with the overlays below `folder`; `save` receives the results so far.

    Raises only what `save` raises.
    """
    made = datetime.now(UTC).isoformat(timespec="seconds")
    day = FirstDay(str(folder), Report(made, __version__))
    run = _Run(day, folder, means, save)
    for name, do in run.steps():
        run.count.begin(name)
        start = monotonic()
        try:
            step = do()
        except KeyboardInterrupt:
            step = Step(name, "interrupted", "ended by the user")
        except Exception as error:  # whatever the error: later steps may still find something
            step = Step(name, "failed", f"{type(error).__name__}: {error}", _REPORT_IT)
        step.name, step.seconds = name, monotonic() - start
        day.steps.append(step)
        save(day)
        if step.outcome != "interrupted":
            run.counted(name)
        if step.outcome == "interrupted":
            break
    return day


_REPORT_IT = "this is a bug in ort_aie_ep: please report it"


class _Run:
    """The steps, and the data that they pass to later steps."""

    def __init__(
        self, day: FirstDay, folder: Path, means: Means, save: Callable[[FirstDay], None]
    ) -> None:
        self._day, self._folder, self._means, self._save = day, folder, means, save
        self._npu: Npu | None = None
        self._packages: list[Package] = []
        self._runs: list[DesignRun] = []
        self.count = Count(means.progress, 0)
        # Steps after the overlays, with the number of items that each will count.
        self._planned: dict[str, int] = {}

    def counted(self, name: str) -> None:
        """Count all of a step as done, even where it was left out."""
        names = [step for step, _ in self.steps()]
        over = names[: names.index(name) + 1]
        self.count.done = sum(self._planned.get(step, 0) for step in over)
        self.count.begin("")

    def steps(self) -> Iterable[tuple[str, Callable[[], Step]]]:
        """The steps, each after those that it needs."""
        return (
            ("machine", self._machine),
            ("device", self._device),
            ("overlays", self._overlays),
            ("small shapes", lambda: self._shapes(lambda run: run.small(QUICK_RUNS))),
            ("shapes of a layer", lambda: self._shapes(lambda run: run.typical(RUNS))),
            ("chains of runs", lambda: self._shapes(lambda run: run.chains(QUICK_RUNS))),
            ("constants", self._constants),
            ("a model's tokens", self._token),
        )

    def _machine(self) -> Step:
        findings = self._means.look()
        self._day.machine = [
            {"name": each.name, "found": each.found, "remedy": each.remedy} for each in findings
        ]
        missing = [each for each in findings if not each.found]
        if missing:
            first = missing[0]
            return Step("", "failed", f"there is no {first.name}", first.remedy)
        return Step("", "done", f"{len(findings)} links from the chip to the library are present")

    def _device(self) -> Step:
        try:
            self._npu = Npu(self._means.load())
        except Fault as fault:
            self._day.report.problem = str(fault)
            return Step("", "failed", str(fault), "see the step `machine`")
        its = self._day.report.device = self._npu.identity
        says = f"{its.name}, XRT {its.xrt or '?'}, driver {its.driver or '?'}, "
        return Step("", "done", f"{says}firmware {its.firmware or '?'}, Linux {its.kernel}")

    def _overlays(self) -> Step:
        if self._npu is None:
            return Step("", "skipped", NO_DEVICE)
        device = "npu1" if self._npu.identity.generation == NPU1 else "npu2"
        wanted = self._means.wanted(device)
        problems = self._build(device, wanted)
        try:
            folders = package_folders(self._folder)
        except AieError as error:
            return Step("", "failed", str(error), _how_to_build(device, ["all"], self._folder))
        for each in sorted(folders, key=_place):
            result = DesignResult(str(each))
            self._day.report.designs.append(result)
            try:
                package = read_for(each, self._npu.identity, result)
            except PackageError as error:
                result.refused = str(error)
                problems.append(str(error))
                continue
            self._packages.append(package)
            self._runs.append(
                DesignRun(self._npu, package, result, self._means.make_design, self.count)
            )
        self._plan()
        names = [package_of(package.manifest) for package in self._packages]
        missing = [name for name in wanted if name not in names]
        says = f"{', '.join(names) or 'none'} for {device}"
        if not missing and not problems:
            return Step("", "done", says)
        says += f"; missing: {', '.join(missing)}" if missing else ""
        says += "".join(f"; {problem}" for problem in problems)
        return Step("", "failed", says, _how_to_build(device, missing or ["all"], self._folder))

    def _plan(self) -> None:
        """The numbers that later steps will count, now that the packages are known."""
        self._planned = {
            "small shapes": sum(run.cases(typical=False) for run in self._runs),
            "shapes of a layer": sum(run.cases(typical=True) for run in self._runs),
            "chains of runs": sum(run.chain_cases for run in self._runs),
            "constants": measurements(False) if self._packages else 0,
            "a model's tokens": 1 if self._packages else 0,
        }
        self.count.total = sum(self._planned.values())

    def _build(self, device: str, wanted: Sequence[str]) -> list[str]:
        """Build missing packages; returns the problems."""
        problems = []
        for name in wanted if self._means.build is not None else ():
            assert self._means.build is not None
            if (self._folder / name).is_dir():
                continue
            self.count.begin(f"building {name}")
            try:
                self._means.build(name, device, self._folder / name)
            except AieError as error:
                problems.append(f"{name} was not built: {error}")
        return problems

    def _shapes(self, run_all: Callable[[DesignRun], None]) -> Step:
        if not self._runs:
            return Step("", "skipped", "there is no overlay to run")
        designs = self._day.report.designs
        before, begun = self._count(), [len(design.cases) for design in designs]
        for run in self._runs:
            try:
                run_all(run)
            finally:
                run.close()
            self._save(self._day)
        right, cases = (now - then for now, then in zip(self._count(), before, strict=True))
        if not cases:
            return Step("", "skipped", "no overlay here has chains, or this pyxrt has no run lists")
        says = f"{right} of {cases} cases are right"
        if right == cases:
            return Step("", "done", says)
        design, case = next(
            (design, case)
            for design, start in zip(designs, begun, strict=True)
            for case in design.cases[start:]
            if case.outcome != "passed"
        )
        first = f"; the first that is not: {design.design} {case.sequence}: {case.outcome}"
        return Step("", "failed", f"{says}{first}: {case.reason}", _ADVICE[case.outcome])

    def _count(self) -> tuple[int, int]:
        cases = [case for design in self._day.report.designs for case in design.cases]
        return sum(case.outcome == "passed" for case in cases), len(cases)

    def _constants(self) -> Step:
        if self._npu is None or not self._packages:
            return Step("", "skipped", "there is no overlay to measure with")
        control = self._day.report.control
        for each in measure(self._npu, self._packages, False, self.count.begin):
            control.append(each)
            self._save(self._day)
            self.count.step()
        measured = sum(each.measured is not None for each in control)
        says = f"{measured} of {len(control)} are measured"
        if not measured:
            return Step("", "failed", f"{says}: {control[0].reason}", _ADVICE["fault"])
        return Step("", "done", says)

    def _token(self) -> Step:
        if self._npu is None or not self._packages:
            return Step("", "skipped", "there is no overlay to run a model on")
        try:
            token = self._day.token = self._means.token(self._folder)
        except AieError as error:
            return Step("", "failed", str(error), _ADVICE["fault"])
        if token.submissions == 0:
            reasons = ", ".join(token.host_steps) or "no reason was given"
            says = f"the host did all the work: {reasons}"
            return Step("", "failed", says, "see 'What runs on the host' in docs/ryzen-ai.md")
        says = f"{token.same} of {token.tokens} are the host's"
        return Step("", "done" if token.right else "failed", says, "" if token.right else _WRONG)


_WRONG = "please report it with this report: the simulator computes it correctly"
_ADVICE = {
    "wrong": _WRONG,
    "fault": "run 'dmesg | grep -i xdna', and report its output with this report",
    "refused": "the reason says what to change",
}


def _place(folder: Path) -> tuple[int, str]:
    """The position in ORDER, others last; a package's folder has its design's name."""
    names = [name for name in ORDER if folder.name.startswith(name)]
    return (ORDER.index(names[0]) if names else len(ORDER), folder.name)


def _how_to_build(device: str, designs: Sequence[str], folder: Path) -> str:
    return "; ".join(
        f"ort-aie kernels build {name} --device {device} --out {folder}" for name in designs
    )
