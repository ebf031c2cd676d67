"""Shared setup. Must not import onnxruntime: tests/ops/test_kernels.py and
test_lookup_kernels.py also run without it."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib import metadata

# numpy reads this on import. Two threads of its OpenBLAS multiply the references' small matrices
# no faster than one, and spin on a core that other test processes need.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Which kernels run must not depend on what ran before. Tests of trials switch them on.
os.environ["ORT_AIE_TUNE"] = "off"
# The width of tables in a file. GNU readline tells child processes, such as pytest's workers, the
# terminal's width.
os.environ.pop("COLUMNS", None)

import hypothesis
import pytest
from cmake_program import SOURCE, Project

from ort_aie_ep import _native

# Examples are the same in every run; a slow machine or an emulator is not a failure.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Models that commands compile for tests are not among the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORT_AIE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def project() -> Project:
    """One build folder for all programs, so that they share what they use of the project."""
    return Project(SOURCE / "build" / "dev")


@pytest.fixture(scope="module")
def provider() -> Iterator[None]:
    """The execution provider, registered in ONNX Runtime, if that knows providers of its kind."""
    from op_models import ORT_VERSION
    from provider_calls import registered

    with registered() if ORT_VERSION >= (1, 24) else nullcontext():
        yield


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, str]]:
    """Makes commands end each bar with a line, however short it was, and reads those lines from
    stderr: title → what was done, for the bars that ended at their total."""
    from ort_aie_ep.cli import progress

    monkeypatch.setattr(progress, "SHORT", 0.0)

    def read(stderr: str) -> dict[str, str]:
        line = r"^([a-z][^:\n]*): (.*) in [\d.]+ s, .* ?(?:/s|s per \w+)$"
        found = re.findall(line, stderr, re.MULTILINE)
        return {title: done for title, done in found if " of " not in done}

    return read


def pytest_report_header() -> str:
    try:
        onnxruntime = metadata.version("onnxruntime")
    except metadata.PackageNotFoundError:
        onnxruntime = "not installed"
    return f"onnxruntime {onnxruntime}, kernels {_native.selected_isa()}"


def pytest_collection_finish() -> None:
    """Modules and items stay to the end: looking through them for garbage, again and again, would
    take a twentieth of the run."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips whole-model tests of Gemma3 where ONNX Runtime cannot run the source model."""
    try:
        version = tuple(int(part) for part in metadata.version("onnxruntime").split(".")[:2])
    except metadata.PackageNotFoundError:
        return
    if version >= (1, 31):
        return
    reason = (
        "GroupQueryAttention has sliding_window_cache, which the builder's Gemma3 uses, from 1.31"
    )
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is not None and "gemma3" in map(str, callspec.params.values()):
            item.add_marker(pytest.mark.skip(reason=reason))
