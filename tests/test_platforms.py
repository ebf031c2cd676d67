"""What differs between operating systems, as far as this one shows it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from ort_aie_ep import platforms
from ort_aie_ep.errors import AieError
from ort_aie_ep.machine import find_npu
from ort_aie_ep.models.files import open_regular, written_beside


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names and folders as on Windows; what the system does stays this one's."""
    monkeypatch.setattr(sys, "platform", "win32")


def test_a_library_has_the_name_of_its_system(windows: None) -> None:
    assert platforms.library_name("ort_aie_ep") == "ort_aie_ep.dll"


@pytest.mark.skipif(sys.platform == "win32", reason="the names on Linux")
def test_a_library_on_linux() -> None:
    assert platforms.library_name("ort_aie_ep") == "libort_aie_ep.so"


def test_the_cache_of_a_user_on_windows(
    windows: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert platforms.cache_home() == tmp_path


def test_no_npu_is_looked_for_on_windows(windows: None) -> None:
    (finding,) = find_npu()
    assert (finding.found, finding.remedy) == ("", "ort_aie_ep uses the NPU on Linux only")


def test_the_simulator_says_that_it_needs_linux(windows: None) -> None:
    kernels = pytest.importorskip("ort_aie_ep.npu.kernels")
    with pytest.raises(AieError, match="Linux"):
        kernels.Kernels("aie2")


def test_cpus_without_an_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert platforms.usable_cpus() == list(range(os.cpu_count() or 1))


def test_a_locked_file_can_be_read_and_not_locked_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with written_beside(path, "wb") as file:
        file.write(b"content\n")
    with open_regular(path) as first, open_regular(path) as second:
        platforms.lock(first.fileno())
        with pytest.raises(BlockingIOError):
            platforms.lock(second.fileno())
        assert second.read() == b"content\n"
    with open_regular(path) as first, open_regular(path) as second:
        platforms.lock(first.fileno(), shared=True)
        platforms.lock(second.fileno(), shared=True)
        with open_regular(path) as third, pytest.raises(BlockingIOError):
            platforms.lock(third.fileno())


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_pages_go_back_to_the_system_whatever_was_allocated_between_them() -> None:
    def resident() -> int:
        return int(re.findall(r"RssAnon:\s*(\d+)", Path("/proc/self/status").read_text())[0]) << 10

    bytearray(1 << 24)  # glibc has what is smaller than what was freed in its heap
    size, before, others, pages = 1 << 19, resident(), [], []
    for _ in range(64):
        pages.append(platforms.own_pages(size))
        pages[-1][:] = b"x" * size
        others.append(bytearray(1 << 15))
    assert resident() - before > 60 * size
    pages.clear()
    assert resident() - before < 6 * size
