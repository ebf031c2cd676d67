"""Shared setup. Must not import onnxruntime: tests/ops/test_kernels.py also runs without it."""

from __future__ import annotations

from importlib import metadata

import hypothesis

from ort_aie_ep import _native

# Examples are the same in every run; a slow machine or an emulator is no failure.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")


def pytest_report_header() -> str:
    try:
        onnxruntime = metadata.version("onnxruntime")
    except metadata.PackageNotFoundError:
        onnxruntime = "not installed"
    return f"onnxruntime {onnxruntime}, kernels {_native.selected_isa()}"
