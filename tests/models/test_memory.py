"""Weights are read in place from the mapped file, once, however many nodes use a tensor."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from op_models import ORT_VERSION

import ort_aie_ep
from ort_aie_ep.tools.synth import synth

# Runs a prompt and a token, then reports how much the process's memory has grown.
MEASURE = """
import json, sys
import numpy as np, onnxruntime, ort_aie_ep

def held():
    with open("/proc/self/smaps_rollup") as file:
        return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in file if "kB" in line}

folder, vocab, heads, dim = sys.argv[1], *map(int, sys.argv[2:])
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
options.register_custom_ops_library(ort_aie_ep.library_path())
before = held()
session = onnxruntime.InferenceSession(folder + "/model.onnx", options)
past = [entry.name for entry in session.get_inputs() if "past" in entry.name]
past = {name: np.zeros((1, heads, 0, dim), "f4") for name in past}
for length in (16, 1):
    session.run(["logits"], {"input_ids": np.ones((1, length), np.int64),
                             "attention_mask": np.ones((1, length), np.int64), **past})
after = held()
print(json.dumps({key: after[key] - before[key] for key in ("Anonymous", "Rss")}))
"""


def test_weights_and_tied_embedding_are_resident_once(tmp_path: Path) -> None:
    # The embedding is tied and makes up half of the weights, so a second copy would show.
    synth("llama-3.2-1b", tmp_path / "source", layers=1, vocab=32768)
    compiled = ort_aie_ep.compile(tmp_path / "source", tmp_path / "compiled")
    decoder = json.loads((compiled.path / "genai_config.json").read_text())["model"]["decoder"]
    result = subprocess.run(
        [sys.executable, "-c", MEASURE, str(compiled.path), "32768"]
        + [str(decoder[key]) for key in ("num_key_value_heads", "head_size")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    held = json.loads(result.stdout)
    # Anonymous memory holds activations, scratch and ONNX Runtime's own data; the rest is the
    # mapped file.
    assert held["Anonymous"] < compiled.weight_bytes / 3
    assert held["Rss"] < compiled.weight_bytes * 4 / 3


# Opens a session with the execution provider; reports how much memory that adds, at the peak and
# afterwards.
PROVIDE = """
import json, sys
import onnxruntime, ort_aie_ep

def status(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))

name = "AieExecutionProvider"
onnxruntime.register_execution_provider_library(name, ort_aie_ep.library_path())
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
for key, value in zip(sys.argv[2::2], sys.argv[3::2]):
    options.add_session_config_entry(key, value)
devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]
options.add_provider_for_devices(devices[:1], {})
before = status("VmRSS")
session = onnxruntime.InferenceSession(sys.argv[1], options, enable_fallback=False)
print(json.dumps({"peak": status("VmHWM") - before, "stays": status("VmRSS") - before}))
"""


def provide(model: Path, **config: str) -> dict[str, int]:
    entries = [part for key, value in config.items() for part in (f"ep.{key}", value)]
    result = subprocess.run(
        [sys.executable, "-c", PROVIDE, str(model), *entries],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    measured: dict[str, int] = json.loads(result.stdout)
    return measured


@pytest.mark.skipif(ORT_VERSION < (1, 24), reason="the provider needs ONNX Runtime 1.24")
def test_the_provider_holds_weights_once_and_a_context_model_none(tmp_path: Path) -> None:
    synth("llama-3.2-1b", tmp_path / "source", layers=8, vocab=4096)
    source = tmp_path / "source" / "model.onnx"
    weights = (tmp_path / "source" / "model.onnx.data").stat().st_size
    packed = provide(source, context_enable="1", context_file_path=str(tmp_path / "ctx.onnx"))
    # At the peak, memory holds the source's pages and the packed weights; afterwards, the packed
    # weights.
    assert packed["peak"] <= 2 * weights + 200_000_000
    assert packed["stays"] <= 1.1 * weights
    # The file is mapped but not touched before the first run; the model itself holds the norms and
    # the rotary embedding tables.
    assert provide(tmp_path / "ctx.onnx")["peak"] <= 0.2 * weights
