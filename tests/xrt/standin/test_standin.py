"""The stand-in of XRT, used by a C++ program through XRT's own headers; numpy computes the
results."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

import background
import ml_dtypes
import numpy as np
import pytest
from cmake_program import Project
from standin_inputs import deadlock, matvec, words

from ort_aie_ep.modelled_npu.device_process import write_packages
from ort_aie_ep.npu.terms.device import device

HERE = Path(__file__).parent

TOGETHER = [
    "RunsMatvec", "BytesMoveBySyncAlone", "InstructionsWithoutSyncAreAnError", "UserMemory",
    "PartsOfBuffers", "Runlist", "RunlistsBindTheBuffersThatARunHas", "RunlistsWaitForAllTheirRuns",
    "RunsDoNotKeepTheirBuffers", "RunsEndWhenTheirEndIsSeen", "KindsOfBuffers", "Arguments",
    "Overlays", "OverlayOfAnotherNpuWritesNothing", "WatchdogResetsTheContext",
    "AbortTakesBackWhatHasNotBegun", "InjectedFailuresOfRuns",
]  # fmt: skip
# What becomes of the modelled NPU's process.
ALONE = ["ChildOutlivesTheThreadThatOpenedTheDevice", "ChildKilledInARun"]


@pytest.fixture(scope="module")
def program(project: Project) -> Path:
    return project.build("tests/xrt/standin_test")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """For each device, the program's inputs: packages, a matvec and its result, broken overlays."""
    packages = tmp_path_factory.mktemp("packages")
    for name in ("npu1", "npu2"):
        write_packages(packages / name, device(name))
    overlay = (packages / "npu2" / "fused_dqp" / "overlay.xclbin").read_bytes()
    folders = {}
    for name in ("npu1", "npu2"):
        folder = folders[name] = tmp_path_factory.mktemp(name)
        (folder / "packages").symlink_to(packages)
        buffers, result, _, _ = matvec(name)
        for file, data in {**buffers, "result": result, "words": words(name)}.items():
            if file != "y":
                (folder / file).write_bytes(data.tobytes())
        (folder / "deadlock").write_bytes(deadlock().tobytes())
        (folder / "truncated.xclbin").write_bytes(overlay[:-1])
        (folder / "damaged.xclbin").write_bytes(overlay.replace(b"fused_dqp", b"fused_dqq"))
    return folders


def environment(name: str, faults: str = "") -> dict[str, str]:
    return {
        **os.environ,
        "ORT_AIE_SIM_PYTHON": sys.executable,
        "ORT_AIE_SIM_DEVICE": name,
        "ORT_AIE_SIM_FAULTS": faults,
    }


def run(program: Path, folder: Path, *cases: str, name: str = "npu2", faults: str = "") -> None:
    done = subprocess.run(
        [program, folder, *cases], env=environment(name, faults), capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""


def test_result_of_the_simulator_is_that_of_numpy() -> None:
    """The values that the program compares with, bit for bit, are right."""
    for name in ("npu1", "npu2"):
        _, result, exact, bound = matvec(name)
        assert result.dtype == ml_dtypes.bfloat16
        assert np.all(np.abs(result.astype(np.float64) - exact) <= bound)


def symbols(*arguments: str | Path) -> set[str]:
    """Mangled names that nm lists as defined."""
    done = subprocess.run(
        ["nm", "--defined-only", *arguments], capture_output=True, text=True, check=True
    )
    fields = [line.split() for line in done.stdout.splitlines()]
    return {f[2].partition("@")[0] for f in fields if len(f) == 3 and f[1] == "T"}


@pytest.mark.skipif(shutil.which("nm") is None, reason="there is no nm")
def test_what_it_implements_is_in_the_real_library(project: Project, program: Path) -> None:
    assert project.xrt_library
    real = symbols("-D", project.xrt_library)
    own = symbols(*(program.parent / "objects").read_text().splitlines())
    public = {name for name in own if re.match("_ZNK?3xrt", name) and "_impl" not in name}
    assert len(public) > 80
    assert public <= real


def test_program(program: Path, folders: dict[str, Path]) -> None:
    run(program, folders["npu2"], *TOGETHER)


@pytest.mark.parametrize("case", ALONE)
def test_the_child(program: Path, folders: dict[str, Path], case: str) -> None:
    run(program, folders["npu2"], case)


def test_first_generation(program: Path, folders: dict[str, Path]) -> None:
    run(program, folders["npu1"], "FirstGenerationHasNoRunlists", name="npu1")


def test_a_run_that_is_destroyed_before_its_end_is_seen_ends_the_process(
    program: Path, folders: dict[str, Path]
) -> None:
    done = subprocess.run(
        [program, folders["npu2"], "RunDestroyedUnseen"], env=environment("npu2"),
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGABRT
    assert done.stderr == "xrt::run destructed while command is still in progress\n"


def test_faults_of_the_environment(program: Path, folders: dict[str, Path]) -> None:
    # Contexts in order: refused, corrupted, wrong, good twice; the fourth context's first buffer is
    # the sixth of all.
    faults = "context_refused@1,overlay_corrupted@2,overlay_wrong@3,allocation@6"
    run(program, folders["npu2"], "InjectedFailuresOfContextsAndBuffers", faults=faults)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGABRT, signal.SIGINT])
def test_the_child_ends_with_its_host(
    program: Path, folders: dict[str, Path], how: signal.Signals
) -> None:
    with (
        background.ignored(signal.SIGINT),
        staying(background.with_default_signals(*stay(program, folders))) as (host, child),
    ):
        assert alive(child)
        host.send_signal(how)
        assert host.wait(timeout=300) == -how
        until = time.monotonic() + 60
        while alive(child) and time.monotonic() < until:
            time.sleep(0.01)
        assert not alive(child)


def test_the_child_has_default_signals_whatever_its_host_ignores(
    program: Path, folders: dict[str, Path]
) -> None:
    """With SIGCHLD ignored it could not tell a kernel that compiles from one that does not."""
    signals = {signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD}
    with background.ignored(*signals):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        try:
            with staying(stay(program, folders)) as (host, child):
                assert signals <= signals_of(host.pid, "SigIgn")
                assert signals <= signals_of(host.pid, "SigBlk")
                assert not signals & signals_of(child, "SigIgn")
                assert signals_of(child, "SigBlk") == set()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def stay(program: Path, folders: dict[str, Path]) -> list[str | Path]:
    return [program, folders["npu2"], "PrintChildAndStay"]


@contextmanager
def staying(command: Sequence[str | PathLike[str]]) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A program with the case PrintChildAndStay, and its child's process id."""
    with subprocess.Popen(
        command, env=environment("npu2"), stdout=subprocess.PIPE, text=True
    ) as host:
        try:
            assert host.stdout is not None
            yield host, int(host.stdout.readline())
        finally:
            host.kill()


def signals_of(process: int, kind: str) -> set[int]:
    """A process's SigIgn or SigBlk."""
    status = Path(f"/proc/{process}/status").read_text()
    found = re.search(rf"^{kind}:\s*([0-9a-f]+)$", status, re.MULTILINE)
    assert found is not None
    mask = int(found[1], 16)
    return {bit + 1 for bit in range(mask.bit_length()) if mask >> bit & 1}


def alive(process: int) -> bool:
    """Whether it runs; a process that has ended but that no one has waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("ORT_AIE_SIM_PYTHON", "/nonexistent/python", "set ORT_AIE_SIM_PYTHON"),
        ("ORT_AIE_SIM_PYTHON", "/bin/false", "set ORT_AIE_SIM_PYTHON"),
        ("ORT_AIE_SIM_DEVICE", "npu9", "unknown device 'npu9'; known: npu1"),
        ("ORT_AIE_SIM_FAULTS", "fire@1", 'unknown fault "fire"'),
    ],
)
def test_wrong_settings_are_named(
    program: Path, folders: dict[str, Path], variable: str, value: str, text: str
) -> None:
    done = subprocess.run(
        [program, folders["npu2"], "RunsMatvec"],
        env={**environment("npu2"), variable: value},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert text in done.stderr
