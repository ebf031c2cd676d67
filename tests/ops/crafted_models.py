"""Opens models that were made to do harm, in a separate process, so that a crash is a result."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import ort_aie_ep
from ort_aie_ep.runtime.provider import NAME

# Opens models through a door and runs each on the arrays of a file; prints each outcome.
OPEN = f"""
import sys
import numpy as np, onnxruntime
library, door, *files = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
if door == "provider":
    onnxruntime.register_execution_provider_library("{NAME}", library)
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == "{NAME}"]
    options.add_provider_for_devices(devices[:1], {{}})
else:
    options.register_custom_ops_library(library)
for model, feeds in zip(files[::2], files[1::2]):
    try:
        session = onnxruntime.InferenceSession(model, options, enable_fallback=False)
        with np.load(feeds) as file:
            session.run(None, dict(file))
        outcome = "ran"
    except Exception as error:
        outcome = str(error)
    print(ascii(outcome), flush=True)
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
        said = (result.stdout + result.stderr)[-2000:]
        raise AssertionError(f"{name} ended the process, which had said: {said}")
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout


def opened(
    model: bytes | Path, folder: Path, door: str, feeds: Mapping[str, npt.NDArray[Any]]
) -> str:
    """ "ran", or the error that opening or running a model gave."""
    (outcome,) = opened_in_turn([model], folder, door, [feeds])
    return outcome


def opened_in_turn(
    models: Sequence[bytes | Path],
    folder: Path,
    door: str,
    feeds: Sequence[Mapping[str, npt.NDArray[Any]]],
) -> list[str]:
    """As `opened`, for each model with its feeds, all in one process."""
    files = []
    for i, (model, given) in enumerate(zip(models, feeds, strict=True)):
        if isinstance(model, bytes):
            path = folder / f"crafted.{i}.onnx"
            path.write_bytes(model)
            model = path
        np.savez(folder / f"feeds.{i}.npz", **given)
        files += [model, folder / f"feeds.{i}.npz"]
    said = python(OPEN, ort_aie_ep.library_path(), door, *files).splitlines()
    outcomes = [ast.literal_eval(line) for line in said]
    assert len(outcomes) == len(models)
    return outcomes
