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
    "BytesMoveBySyncAlone", "Runlist", "RunlistsBindTheBuffersThatARunHas",
    "RunsDoNotKeepTheirBuffers", "RunsEndWhenTheirEndIsSeen", "WatchdogResetsTheContext",
]  # fmt: skip


@pytest.fixture(scope="module")
def program(project: Project) -> Path:
    return project.build("tests/xrt/standin_test")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program's inputs: packages, a matvec and its result, a stream that never ends."""
    folder = tmp_path_factory.mktemp("npu2")
    write_packages(folder / "packages", device("npu2"))
    buffers, result, _, _ = matvec("npu2")
    for file, data in {**buffers, "result": result, "words": words("npu2")}.items():
        if file != "y":
            (folder / file).write_bytes(data.tobytes())
    (folder / "deadlock").write_bytes(deadlock().tobytes())
    return folder


def environment(**others: str) -> dict[str, str]:
    own = {"ORT_AIE_SIM_PYTHON": sys.executable, "ORT_AIE_SIM_DEVICE": "npu2"}
    return {**os.environ, **own, "ORT_AIE_SIM_FAULTS": "", **others}


def run(program: Path, folder: Path, *cases: str, **others: str) -> tuple[int, str]:
    """The exit status, and what it says."""
    done = subprocess.run(
        [program, folder, *cases], env=environment(**others), capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


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


@pytest.mark.parametrize("cases", [TOGETHER, ["ChildKilledInARun"]], ids=len)
def test_program(program: Path, folder: Path, cases: list[str]) -> None:
    assert run(program, folder, *cases) == (0, "")


def test_a_run_that_is_destroyed_before_its_end_is_seen_ends_the_process(
    program: Path, folder: Path
) -> None:
    said = "xrt::run destructed while command is still in progress\n"
    assert run(program, folder, "RunDestroyedUnseen") == (-signal.SIGABRT, said)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGABRT, signal.SIGINT])
def test_the_child_ends_with_its_host(program: Path, folder: Path, how: signal.Signals) -> None:
    with (
        background.ignored(signal.SIGINT),
        staying(background.with_default_signals(*stay(program, folder))) as (host, child),
    ):
        assert alive(child)
        host.send_signal(how)
        assert host.wait(timeout=300) == -how
        until = time.monotonic() + 60
        while alive(child) and time.monotonic() < until:
            time.sleep(0.01)
        assert not alive(child)


def test_the_child_has_default_signals_whatever_its_host_ignores(
    program: Path, folder: Path
) -> None:
    """With SIGCHLD ignored it could not tell a kernel that compiles from one that does not."""
    signals = {signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD}
    with background.ignored(*signals):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        try:
            with staying(stay(program, folder)) as (host, child):
                assert signals <= signals_of(host.pid, "SigIgn")
                assert signals <= signals_of(host.pid, "SigBlk")
                assert not signals & signals_of(child, "SigIgn")
                assert signals_of(child, "SigBlk") == set()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def stay(program: Path, folder: Path) -> list[str | Path]:
    return [program, folder, "PrintChildAndStay"]


@contextmanager
def staying(command: Sequence[str | PathLike[str]]) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A program with the case PrintChildAndStay, and its child's process id."""
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as host:
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
    program: Path, folder: Path, variable: str, value: str, text: str
) -> None:
    status, said = run(program, folder, "BytesMoveBySyncAlone", **{variable: value})
    assert status == 1
    assert text in said
