"""Packages for the recorder, and shorter streams than a host's clock needs."""

from __future__ import annotations

from pathlib import Path

import pytest
from overlay_site import Site, shortened


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture(autouse=True)
def short_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """See `shortened`."""
    shortened(monkeypatch)
