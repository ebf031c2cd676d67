"""A machine without an NPU, for which a file keeps its bits, whatever machine this is."""

from __future__ import annotations

import pytest

from ort_aie_ep import machine


@pytest.fixture(autouse=True)
def without_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "npu_device", str)
    monkeypatch.delenv("ORT_AIE_TARGET", raising=False)
