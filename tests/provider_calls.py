"""AieExecutionProvider for tests: its devices, and the models to try it on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
from op_models import ORT_VERSION

import ort_aie_ep
from ort_aie_ep.runtime.provider import NAME

DATA = Path(__file__).parent / "data"
MODELS = sorted(path.parent.name for path in DATA.glob("*/genai_config.json"))

needs_provider = pytest.mark.skipif(
    ORT_VERSION < (1, 24), reason="the plugin interface lacks custom-op domains before 1.24"
)


@contextmanager
def registered() -> Iterator[None]:
    """The library, registered as an execution provider of this process."""
    onnxruntime.register_execution_provider_library(NAME, ort_aie_ep.library_path())
    yield
    onnxruntime.unregister_execution_provider_library(NAME)


def devices() -> list[Any]:
    """The provider's devices, while it is registered."""
    return [d for d in onnxruntime.get_ep_devices() if d.ep_name == NAME]
