"""Shared setup. Must not import onnxruntime: tests/ops/test_kernels.py also runs without it."""

from __future__ import annotations

from importlib import metadata

import hypothesis
import pytest
from cmake_program import Project

from ort_aie_ep import _native

# Examples are the same in every run; a slow machine or an emulator is no failure.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """One folder for all: what one program has of the project another need not build."""
    return Project(tmp_path_factory.mktemp("project"))


def pytest_report_header() -> str:
    try:
        onnxruntime = metadata.version("onnxruntime")
    except metadata.PackageNotFoundError:
        onnxruntime = "not installed"
    return f"onnxruntime {onnxruntime}, kernels {_native.selected_isa()}"


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
