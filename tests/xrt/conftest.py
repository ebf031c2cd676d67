"""What several of this folder's files use."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def overlays(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the modelled NPU's packages, made once."""
    cache = tmp_path_factory.getbasetemp()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return cache / "ort_aie_ep" / "simulated_overlays" / "npu2"
