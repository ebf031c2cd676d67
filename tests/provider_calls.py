"""AieExecutionProvider for tests: its devices."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
from op_models import ORT_VERSION, session_options

import ort_aie_ep
from ort_aie_ep.runtime.provider import NAME

needs_provider = pytest.mark.skipif(
    ORT_VERSION < (1, 24), reason="the plugin interface lacks custom-op domains before 1.24"
)


@contextmanager
def registered() -> Iterator[None]:
    """The library, registered as an execution provider of this process."""
    onnxruntime.register_execution_provider_library(NAME, ort_aie_ep.library_path())
    yield
    onnxruntime.unregister_execution_provider_library(NAME)


@contextmanager
def registered_in_genai(og: Any) -> Iterator[None]:
    """The library, registered as an execution provider of `og`, which is onnxruntime_genai."""
    og.register_execution_provider_library(NAME, ort_aie_ep.library_path())
    yield
    gc.collect()  # sessions hold the provider
    og.unregister_execution_provider_library(NAME)


def devices() -> list[Any]:
    """The provider's devices, while it is registered."""
    return [d for d in onnxruntime.get_ep_devices() if d.ep_name == NAME]


def provider_session(
    model: bytes | str | Path,
    provider: Mapping[str, str] | None = None,
    *,
    context: Path | None = None,
    entries: Mapping[str, str] | None = None,
    change: Callable[[onnxruntime.SessionOptions], object] = lambda options: None,
    **config: str,
) -> onnxruntime.InferenceSession:
    """A session with the provider, which is registered, that records which nodes it takes.

    Args:
        model: bytes, or a file.
        provider: its options.
        context: where it writes a context model.
        entries: of the session's configuration.
        change: what else the session's options have.
        config: entries of the configuration that begin with `ep.`
    """
    options = session_options()
    options.log_severity_level = 4
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if context is not None:
        config |= {"context_enable": "1", "context_file_path": str(context)}
    own = {f"ep.{key}": value for key, value in config.items()}
    for key, value in (own | dict(entries or {})).items():
        options.add_session_config_entry(key, value)
    change(options)
    options.add_provider_for_devices(devices()[:1], dict(provider or {}))
    source = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(source, options, enable_fallback=False)
