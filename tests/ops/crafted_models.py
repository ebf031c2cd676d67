"""Opens models that were made to do harm, in a separate process, so that a crash is a result."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import ort_aie_ep
from ort_aie_ep.runtime.provider import NAME

# Opens a model through a door and runs it on the arrays of a file; prints the outcome.
OPEN = f"""
import sys
import numpy as np, onnxruntime
library, door, model, feeds = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
if door == "provider":
    onnxruntime.register_execution_provider_library("{NAME}", library)
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == "{NAME}"]
    options.add_provider_for_devices(devices[:1], {{}})
else:
    options.register_custom_ops_library(library)
try:
    session = onnxruntime.InferenceSession(model, options, enable_fallback=False)
    with np.load(feeds) as file:
        session.run(None, dict(file))
    print("ran")
except Exception as error:
    print(error)
"""


def python(code: str, *arguments: object, timeout: float = 300, **options: Any) -> str:
    """What a program prints. The test fails if a signal ends it, or if it takes too long."""
    result = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        **options,
    )
    if result.returncode < 0:
        name = signal.Signals(-result.returncode).name
        raise AssertionError(f"{name} ended the process: {result.stderr[-2000:]}")
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout


def opened(
    model: bytes | Path, folder: Path, door: str, feeds: Mapping[str, npt.NDArray[Any]]
) -> str:
    """ "ran", or the error that opening or running a model gave."""
    if isinstance(model, bytes):
        path = folder / "crafted.onnx"
        path.write_bytes(model)
        model = path
    np.savez(folder / "feeds.npz", **feeds)
    return python(OPEN, ort_aie_ep.library_path(), door, model, folder / "feeds.npz").strip()
