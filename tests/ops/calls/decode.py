"""Decodes with count_allocations preloaded, and prints how often ort_aie_ep allocated memory: in a
prompt, then for tokens after it.

    LD_PRELOAD=COUNT_ALLOCATIONS python decode.py MODEL compiled|provider
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime

import ort_aie_ep
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.runtime.provider import NAME

COUNTER = ctypes.CDLL(None)
COUNTER.count_stop.restype = ctypes.c_int64
RUNTIME = Path(onnxruntime.capi.onnxruntime_pybind11_state.__file__).name
WARM_UP, COUNTED = 4, 8


def allocations(call: Callable[[], object], times: int) -> int:
    if not COUNTER.count_start(b"libort_aie_ep.so", RUNTIME.encode()):
        sys.exit("a library to count is not loaded")
    for _ in range(times):
        call()
    count: int = COUNTER.count_stop()
    return count


def opened(model: Path, door: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # other threads allocate memory when their first task arrives
    if door == "compiled":
        options.register_custom_ops_library(ort_aie_ep.library_path())
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    onnxruntime.register_execution_provider_library(NAME, ort_aie_ep.library_path())
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == NAME]
    options.add_provider_for_devices(devices[:1], {})
    return onnxruntime.InferenceSession(model, options, enable_fallback=False)


def main(model: str, door: str) -> None:
    folder = find_model(Path(model))
    decoder = Decoder(opened(folder.model, door), folder, 1024)
    prompt = allocations(lambda: decoder.forward(np.arange(600)), 1)
    tokens = iter(np.arange(WARM_UP + COUNTED).reshape(-1, 1))
    for times in (WARM_UP, COUNTED):
        count = allocations(lambda: decoder.forward(next(tokens)), times)
    print(prompt, count)


if __name__ == "__main__":
    main(*sys.argv[1:])
