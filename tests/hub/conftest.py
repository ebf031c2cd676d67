"""The real huggingface_hub, with a hub on 127.0.0.1, and caches of each test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hubs import Hub, running

huggingface_hub = pytest.importorskip("huggingface_hub")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub, which huggingface_hub asks; it reads its variables when it is imported."""
    from huggingface_hub import constants

    with running() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setenv("ORT_AIE_CACHE", str(tmp_path / "compiled"))
        yield hub
