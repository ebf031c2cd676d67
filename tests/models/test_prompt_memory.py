"""The memory that operators keep after a prompt is bounded by its chunk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path += [str(Path(__file__).parents[1] / "ops")]

from attention_calls import SHARED, Inputs, attributes, model_of, random_inputs
from op_models import Array, one_op_model
from projection_calls import make_weights, q4nx_model

from ort_aie_ep import _native
from ort_aie_ep.formats import bf16_blocks

# Runs a model on inputs and outputs that are allocated and touched; reports how much memory the
# process gains, which is scratch.
MEASURE = """
import sys
import numpy as np, onnxruntime, ort_aie_ep

def held():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Anonymous"))

model, arrays = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
options.enable_cpu_mem_arena = False
options.register_custom_ops_library(ort_aie_ep.library_path())
session = onnxruntime.InferenceSession(model, options)
binding, values = session.io_binding(), {}
with np.load(arrays) as file:
    for name, array in file.items():
        values[name] = onnxruntime.OrtValue.ortvalue_from_numpy(array)
for entry in session.get_inputs():
    binding.bind_ortvalue_input(entry.name, values[entry.name])
for entry in session.get_outputs():
    binding.bind_ortvalue_output(entry.name, values["to " + entry.name])
before = held()
session.run_with_iobinding(binding)
print(held() - before)
"""


def scratch_bytes(
    folder: Path, model: bytes, inputs: Inputs, outputs: dict[str, Array], chunk: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> int:  # fmt: skip
    if chunk is None:
        monkeypatch.delenv("ORT_AIE_PROMPT_CHUNK", raising=False)
    else:
        monkeypatch.setenv("ORT_AIE_PROMPT_CHUNK", chunk)
    (folder / "model.onnx").write_bytes(model)
    given = {name: array for name, array in inputs.items() if array is not None}
    np.savez(folder / "arrays.npz", **given, **{f"to {k}": x for k, x in outputs.items()})
    result = subprocess.run(
        [sys.executable, "-c", MEASURE, str(folder / "model.onnx"), str(folder / "arrays.npz")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return int(result.stdout)


# Positions of the tokens (8 bytes each), panels of weights and of keys, the pages that a first run
# touches: 0.3 MB.
SLACK = 1 << 20


@pytest.mark.parametrize("accuracy_level", [0, 4])
def test_scratch_of_a_projection_does_not_grow_with_the_prompt(
    accuracy_level: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    k = 512
    w = make_weights(32, k)

    def scratch(rows: int, chunk: str | None) -> int:
        a = np.ones((1, rows, k), np.float32)
        model = q4nx_model(w, a, accuracy_level=accuracy_level)
        outputs = {"Y": np.ones((1, rows, w.n), np.float32)}
        return scratch_bytes(tmp_path, model, {"A": a}, outputs, chunk, monkeypatch)

    # bfloat16 activations, or int8 ones with a scale and a sum per group of 32.
    row_bytes = 2 * k if accuracy_level == 0 else k + 8 * k // 32
    assert scratch(8192, "100000") > 8192 * row_bytes  # unbounded memory shows
    assert scratch(8192, None) < scratch(2048, None) + SLACK
    assert scratch(8192, "256") < 256 * row_bytes + SLACK


def test_scratch_of_an_unquantised_projection_does_not_grow_with_the_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    k, n = 512, 32
    blocks = bf16_blocks.pack(np.ones((n, k), np.float32))
    attributes = {"K": k, "N": n, "format": _native.FORMAT}

    def scratch(rows: int, chunk: str | None) -> int:
        a = np.ones((1, rows, k), np.float32)
        outputs = {"Y": a.dtype}
        model = one_op_model("GEMM", {"A": a, "W": blocks}, outputs, attributes, constants=("W",))
        y = {"Y": np.ones((1, rows, n), np.float32)}
        return scratch_bytes(tmp_path, model, {"A": a}, y, chunk, monkeypatch)

    assert scratch(8192, "100000") > 8192 * 2 * k
    assert scratch(8192, None) < scratch(2048, None) + SLACK
    assert scratch(8192, "256") < 256 * 2 * k + SLACK


@pytest.mark.parametrize("windowed", [0, 1])
def test_scratch_of_attention_does_not_grow_with_the_prompt(
    windowed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = {"local_window_size": 64, "sliding_window_cache": 1} if windowed else {}
    a = attributes(num_heads=4, kv_num_heads=1, do_rotary=1, **window)
    dim = 16

    def scratch(tokens: int, chunk: str | None) -> int:
        capacity = 80 if windowed else tokens
        inputs = random_inputs(a, tokens, lengths=(tokens,), capacity=capacity, dim=dim)
        outputs = {"output": np.ones((1, tokens, 4 * dim), np.float32)}
        for present, past in SHARED.items():
            array = inputs[past]
            assert array is not None
            outputs[present] = np.ones_like(array)
        return scratch_bytes(tmp_path, model_of(a, inputs), inputs, outputs, chunk, monkeypatch)

    # Queries in float32; with a sliding-window cache also the new keys and values.
    token_bytes = 4 * dim * (4 + 2 * windowed)
    assert scratch(8192, "100000") > 8192 * token_bytes
    assert scratch(8192, None) < scratch(2048, None) + SLACK
    assert scratch(8192, "256") < 256 * token_bytes + SLACK
