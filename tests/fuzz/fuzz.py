"""Runs the fuzz targets of this folder, several at a time; `make fuzz` calls it.

    python fuzz.py [--seconds 120] [--jobs N] [--folder .cache/fuzz] [TARGET...]
    python fuzz.py --replay FILE TARGET

A target is NAME.cc (libFuzzer, by CMakeLists.txt) or NAME.py (Atheris, by target.py). Each starts
from seeds/NAME and from the corpus that earlier runs kept. The exit code is 1 if there is a
finding: an error that is not on purpose, a hang, too much memory. See CONTRIBUTING.md.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from clang import ROOT, NoClang, cache_folder, find_clang

HERE = Path(__file__).resolve().parent
NOT_TARGETS = {"clang", "fuzz", "runtime", "target", "test_targets"}
# Limits for one input. It is large enough for the square of its size to exceed the other two.
MOST_BYTES = 1 << 18
MOST_SECONDS = 5
MOST_MEGABYTES = 1024
PROGRESS_SECONDS = 15


@dataclass(frozen=True)
class Target:
    """A fuzz target: its name, the command that starts it, and why it cannot be started."""

    name: str
    command: tuple[str, ...]
    why_not: str = ""

    @property
    def seeds(self) -> Path:
        """Inputs in the repository, including former findings."""
        return HERE / "seeds" / self.name

    @property
    def options(self) -> list[str]:
        """Further options for libFuzzer."""
        words = self.seeds.with_suffix(".dict")
        return [
            f"-max_len={MOST_BYTES}",
            f"-timeout={MOST_SECONDS}",
            f"-rss_limit_mb={MOST_MEGABYTES}",
            *([f"-dict={words}"] if words.is_file() else []),
        ]


@dataclass
class Run:
    """A target that is running."""

    target: Target
    folder: Path
    seconds: int
    process: subprocess.Popen[bytes]
    log: Path
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None

    @property
    def elapsed(self) -> float:
        """Seconds since the start, or until the end."""
        return (self.ended or time.monotonic()) - self.started

    def executions(self) -> int:
        """Inputs so far, from the log."""
        text = _tail(self.log)
        exact = re.findall(r"stat::number_of_executed_units: (\d+)", text)
        counts = exact or re.findall(r"^#(\d+)", text, re.MULTILINE)
        return int(counts[-1]) if counts else 0

    def status(self) -> str:
        """One line about the run."""
        found = re.findall(r"cov: (\d+).*? corp: (\d+)", _tail(self.log))
        reach = f", coverage {found[-1][0]}, corpus {found[-1][1]}" if found else ""
        return f"{self.target.name}: {self.elapsed:.0f} s, {self.executions():,} inputs{reach}"

    def findings(self) -> list[Path]:
        """The inputs that this run has kept as findings."""
        text = self.log.read_text(errors="replace")
        return [Path(name) for name in re.findall(r"Test unit written to (\S+)", text)]


def _tail(path: Path, most: int = 1 << 16) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - most))
        return file.read().decode(errors="replace")


def environment() -> dict[str, str]:
    """The environment of a target: sanitizers that report enough, Python that finds target.py, and
    the kernels that are built with sanitizers."""
    symbolizer = shutil.which("llvm-symbolizer") or shutil.which("addr2line") or ""
    sanitizers = {
        "ASAN_OPTIONS": f"external_symbolizer_path={symbolizer}:detect_leaks=1",
        "UBSAN_OPTIONS": f"external_symbolizer_path={symbolizer}:print_stacktrace=1",
    }
    return {**sanitizers, **os.environ, "PYTHONSAFEPATH": "",
            "ORT_AIE_TARGET": "host", "ORT_AIE_ISA": "portable"}  # fmt: skip


def build(names: Iterable[str]) -> dict[str, Target]:
    """Builds the C++ targets; those that cannot be built say why."""
    names = list(names)
    try:
        compiler = find_clang(cache_folder())
    except NoClang as error:
        why_not = f"no clang with libFuzzer: {error}"
        return {name: Target(name, (), why_not) for name in names}
    folder = ROOT / "build" / "fuzz"
    tools = Path(sys.executable).parent
    print(f"building with {compiler}", flush=True)
    configure = [tools / "cmake", "-S", ROOT, "-B", folder, "-G", "Ninja"]
    settings = {
        "CMAKE_MAKE_PROGRAM": tools / "ninja",
        "CMAKE_CXX_COMPILER": compiler,
        "CMAKE_BUILD_TYPE": "None",  # with assertions
        "CMAKE_CXX_FLAGS": "-O1 -gline-tables-only",
        "ORT_AIE_SANITIZE": "fuzzer-no-link,address,undefined",
        "ORT_AIE_FUZZ": "ON",
        "Python_EXECUTABLE": sys.executable,
        "pybind11_DIR": subprocess.run(
            [sys.executable, "-m", "pybind11", "--cmakedir"],
            check=True, capture_output=True, text=True,
        ).stdout.strip(),
    }  # fmt: skip
    given = [f"-D{key}={value}" for key, value in settings.items()]
    for command in ([*configure, *given], [tools / "ninja", "-C", folder, *names]):
        if subprocess.run(command, check=False).returncode:
            sys.exit("error: the fuzz targets cannot be built")
    return {name: Target(name, (str(folder / "fuzz_targets" / name),)) for name in names}


def targets(wanted: list[str]) -> list[Target]:
    """The requested targets (all if none is named), ready to run if possible."""
    native = {path.stem for path in HERE.glob("*.cc")} - NOT_TARGETS
    python = {path.stem for path in HERE.glob("*.py")} - NOT_TARGETS
    known = sorted(native | python)
    for name in wanted:
        if name not in known:
            sys.exit(f"error: there is no target {name}; expected some of {', '.join(known)}")
    chosen = wanted or known
    ready = build(name for name in chosen if name in native) if native & set(chosen) else {}
    for name in python & set(chosen):
        ready[name] = Target(name, (sys.executable, str(HERE / f"{name}.py")), _why_not_python())
    return [ready[name] for name in chosen]


def _why_not_python() -> str:
    done = subprocess.run(
        [sys.executable, "-c", "import atheris, ort_aie_ep"],
        cwd="/", capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def start(target: Target, folder: Path, seconds: int) -> Run:
    """Starts a run of `target`, which keeps its corpus and its findings in `folder`."""
    corpus, findings = folder / "corpus" / target.name, folder / "findings"
    logs = folder / "logs"
    for needed in (corpus, findings, logs, target.seeds):
        needed.mkdir(parents=True, exist_ok=True)
    log = logs / f"{target.name}-{os.getpid()}-{time.monotonic_ns()}.log"
    command = [
        *target.command,
        *target.options,
        f"-max_total_time={seconds}",
        f"-artifact_prefix={findings}/{target.name}-",
        "-print_final_stats=1",
        "-reload=1",
        str(corpus),
        str(target.seeds),
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, stdout=output, stderr=output, env=environment()
        )
    return Run(target, folder, seconds, process, log)


def run_all(chosen: list[Target], folder: Path, seconds: int, jobs: int) -> list[Run]:
    """Runs each target for `seconds`, `jobs` processes at a time."""
    # With more cores than targets, each target gets several processes that share its corpus.
    waiting = chosen * max(1, jobs // max(1, len(chosen)))
    running: list[Run] = []
    done: list[Run] = []
    said = time.monotonic()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(start(waiting.pop(0), folder, seconds))
            time.sleep(0.2)
            for run in [run for run in running if run.process.poll() is not None]:
                run.ended = time.monotonic()
                running.remove(run)
                done.append(run)
                print(f"done  {run.status()}", flush=True)
            if running and time.monotonic() - said >= PROGRESS_SECONDS:
                said = time.monotonic()
                for run in running:
                    print(f"  ..  {run.status()} ({len(waiting)} to come)", flush=True)
    finally:
        for run in running:
            run.process.terminate()
            run.process.wait()
            run.ended = time.monotonic()
    return done


def report(chosen: list[Target], runs: list[Run]) -> bool:
    """Prints the table and the findings; returns whether there are none."""
    print("\n| target | s | inputs | findings |\n|---|--:|--:|--:|")
    well = True
    for target in chosen:
        its = [run for run in runs if run.target is target]
        seconds, inputs = sum(r.elapsed for r in its), sum(r.executions() for r in its)
        found = sum(len(run.findings()) for run in its)
        numbers = "not run | |" if target.why_not else f"{seconds:,.0f} | {inputs:,} | {found}"
        print(f"| {target.name} | {numbers} |")
    for target in chosen:
        if target.why_not:
            print(f"\n{target.name}: not run: {target.why_not}")
    for run in runs:
        if not run.process.returncode:
            continue
        well = False
        print(f"\n{run.target.name}: {_reason(run)}")
        print(f"  log: {run.log}")
        for finding in run.findings():
            print(f"  input: {finding}")
            print(f"  again: make fuzz-replay TARGET={run.target.name} INPUT={finding}")
    return well


def _reason(run: Run) -> str:
    """The line of a log that describes the failure."""
    lines = run.log.read_text(errors="replace").splitlines()
    for mark in ("runtime error:", "ERROR: ", "Error", "Exception"):
        for line in lines:
            if mark in line:
                return line.strip()
    return f"exit code {run.process.returncode}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="all if none is named")
    parser.add_argument("--seconds", type=int, default=120, help="of each target (%(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at a time")
    parser.add_argument("--folder", type=Path, default=ROOT / ".cache" / "fuzz", help="of corpora")
    parser.add_argument("--replay", type=Path, help="runs one target on one input")
    options = parser.parse_args()
    if options.replay and len(options.targets) != 1:
        parser.error("--replay takes one TARGET")
    chosen = targets(options.targets)
    if options.replay:
        [target] = chosen
        if target.why_not:
            sys.exit(f"error: {target.why_not}")
        command = [*target.command, *target.options, str(options.replay.resolve())]
        sys.exit(subprocess.run(command, env=environment(), check=False).returncode)
    # So that running targets end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    folder = options.folder.resolve()
    runs = run_all(
        [t for t in chosen if not t.why_not], folder, options.seconds, max(1, options.jobs)
    )
    if not report(chosen, runs):
        sys.exit(1)


if __name__ == "__main__":
    main()
