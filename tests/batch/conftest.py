"""A compiled model, and the completions that a worker is expected to write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import ort_aie_ep

# What Ray would write into the home folder or send; it reads both when it is imported.
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

DEMO = Path(ort_aie_ep.__file__).parent / "demo_model"
TEXTS = (
    "def main(argv):",
    "import os\n",
    "class A",
    "for i in range(10):\n    ",
    "try:\n",
    "x = [",
)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("batch") / "compiled"
    ort_aie_ep.compile(DEMO, folder)
    return folder


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    """120 prompts of different lengths."""
    return [f"# {i}\n" * (i % 5) + TEXTS[i % len(TEXTS)] for i in range(120)]
