"""The models of tests/data that are one model.onnx with a genai_config.json, and how some differ
from the others."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from op_models import ORT_VERSION

DATA = Path(__file__).parent / "data"
# The first ONNX Runtime that was tried whose CPU EP has all operators and attributes of a model, if
# not the oldest one: 1.23.2 lacks sliding_window_cache, and 1.27.0 state_window.
SINCE = {
    "gemma4": (1, 31),
    "gpt_oss": (1, 31),
    "lfm2": (1, 31),
    "lfm2_moe": (1, 31),
    "qwen3_5": (1, 30),
}
MODELS = [
    path.parent.name
    for path in sorted(DATA.glob("*/genai_config.json"))
    if (path.parent / "model.onnx").is_file() and SINCE.get(path.parent.name, (0, 0)) <= ORT_VERSION
]
# Models that cannot be written as context models: the rotary tables are in branches of an If, which
# ONNX Runtime has no place for in the context's file.
NO_CONTEXT = {"phi4mini"}
# Operators left on the CPU EP, in addition to those that compute lengths from the mask. Phi's
# norms are not RMS norms, and one reads the embedding.
LEFT = {
    "phi": {"Gather", "LayerNormalization", "com.microsoft.SkipLayerNormalization"},
    "phi4mini": {"Greater", "If"},
}  # fmt: skip

# Norms and windows of layers, a plain one, several plans.
FEW = ("gemma3", "llama", "phi")


@contextmanager
def edited(file: Path) -> Iterator[Any]:
    """The content of a JSON file, written back at the end; links to it keep the old one."""
    content = json.loads(file.read_text())
    yield content
    file.unlink()
    file.write_text(json.dumps(content))


def few(names: Iterable[str], also: Collection[str] = ()) -> list[Any]:
    """Parameters of a test that asserts the same of each: only FEW and `also` run with each
    change."""
    return [
        name if name in FEW or name in also else pytest.param(name, marks=pytest.mark.in_turn)
        for name in names
    ]
