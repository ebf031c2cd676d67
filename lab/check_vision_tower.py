"""Compare a layer of a vision tower with the widths of SigLIP with ONNX Runtime in float32.

    python lab/check_vision_tower.py                            # 4,096 patches on the host
    python lab/check_vision_tower.py --patches 64 --target sim  # on the modelled NPU

The layer has a hidden size of 1,152, 16 heads of 72 and an MLP of 4,304, random weights, and the
embedding of patches of 14 x 14 pixels before it. It is spelled out as by torch's exporter. Printed
are the steps that the device took, the error, as a part of the norm, the bound that the tests
derive for it, and seconds of a call.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import ort_aie_ep

TESTS = Path(__file__).parents[1] / "tests"
sys.path += [str(TESTS), str(TESTS / "passes")]

from vision_tower import vision_tower  # noqa: E402

HIDDEN, HEADS, FFN, PIXELS = 1152, 16, 4304, 3 * 14 * 14
# Of one call of each; the first of a session packs and compiles.
REPETITIONS = 3


def seconds(session: onnxruntime.InferenceSession, x: np.ndarray) -> tuple[np.ndarray, str]:
    """The features, and seconds of the shortest of the calls after the first; none on `sim`."""
    features, times = session.run(None, {"x": x})[0], []
    for _ in range(REPETITIONS if os.environ["ORT_AIE_TARGET"] == "host" else 0):
        begin = time.perf_counter()
        session.run(None, {"x": x})
        times.append(time.perf_counter() - begin)
    return features, f"{min(times):.2f}" if times else "–"


def main() -> None:
    """Make, compile, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--patches", type=int, default=4096)
    parser.add_argument("--target", choices=("host", "sim"), default="host")
    arguments = parser.parse_args()
    os.environ["ORT_AIE_TARGET"] = arguments.target
    model, products = vision_tower(
        arguments.patches, PIXELS, HIDDEN, FFN, 1, heads=HEADS, spelling="eager"
    )
    x = np.random.default_rng(0).standard_normal((1, arguments.patches, PIXELS)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        source, compiled = Path(folder) / "tower.onnx", Path(folder) / "compiled"
        onnx.save(model, source)
        ort_aie_ep.compile(source, compiled, quantize="bf16")
        options = onnxruntime.SessionOptions()
        options.register_custom_ops_library(ort_aie_ep.library_path())
        ours = onnxruntime.InferenceSession(str(compiled / "tower.onnx"), options)
        actual, taken = seconds(ours, x)
        on_device = ort_aie_ep.npu_counters().device_steps
        expected, cpu = seconds(onnxruntime.InferenceSession(str(source)), x)
    # Weights and activations of each product are rounded to bfloat16, on an NPU to bfp16: by at
    # most 2^-7 of the largest of eight, in attention's two products too. Errors add up in squares.
    bound = np.sqrt(2 * products) * 2.0**-8
    if arguments.target == "sim":
        bound = np.sqrt(2 * (products + 2)) * np.sqrt(8) * 2.0**-7
    error = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
    print(
        "| patches | target | steps on the device | error | bound | s | s, ONNX Runtime, float32 |"
    )
    print("|---:|---|---:|---:|---:|---:|---:|")
    print(
        f"| {arguments.patches:,} | {arguments.target} | {on_device} | {error:.5f} | {bound:.5f} "
        f"| {taken} | {cpu} |"
    )
    sys.exit(bool(not error <= bound))


if __name__ == "__main__":
    main()
