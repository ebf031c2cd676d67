"""Packages for the recorder, and shorter streams than a host's clock needs."""

from __future__ import annotations

from pathlib import Path

import pytest
from overlay_site import Site

from ort_aie_ep.npu.validate import bench, control, data_path


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture(autouse=True)
def short_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator's clock is exact: differences need not be large. 400 writes are 40,000 cycles,
    more than an object takes."""
    monkeypatch.setattr(bench, "FEW", 20)
    monkeypatch.setattr(bench, "MANY", 400)
    for quick in ("", "QUICK_"):
        monkeypatch.setattr(data_path, f"{quick}OBJECTS", (8, 24))
        monkeypatch.setattr(data_path, f"{quick}SMALL_OBJECTS", (8, 40))
        monkeypatch.setattr(data_path, f"{quick}COPIES", 2)
        monkeypatch.setattr(control, f"{quick}REPETITIONS", 3)
