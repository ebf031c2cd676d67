"""Prompts in chunks: the same results, whatever the chunk, and memory that it bounds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attention_calls import (
    SHARED,
    Inputs,
    attributes,
    compare,
    flow_attention,
    model_of,
    random_inputs,
    reference,
)
from op_models import FLOAT16, FLOAT32, Array
from projection_calls import activations, make_weights, project, q4nx_model

# Kernels take 96 rows of a projection at a time, and 120 positions of attention with two heads to a
# key-value head: chunks are multiples of these, or one of them.
CHUNKS = ["1", "96", "100", "250", "100000"]


def environment(monkeypatch: pytest.MonkeyPatch, chunk: str | None) -> None:
    """Sets the option for sessions that are opened from here on; None for the default."""
    if chunk is None:
        monkeypatch.delenv("ORT_AIE_PROMPT_CHUNK", raising=False)
    else:
        monkeypatch.setenv("ORT_AIE_PROMPT_CHUNK", chunk)


# --- projections ----------------------------------------------------------------------------------


@pytest.mark.parametrize("accuracy_level", [0, 4])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16])
@pytest.mark.parametrize("rows", [97, 300])  # a last chunk of one row, and of some
def test_projections_do_not_depend_on_the_chunk(
    accuracy_level: int, dtype: np.dtype[Any], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = make_weights(40, 320, dtype=dtype)
    a, bias = activations(2, rows, 320, dtype=dtype), activations(40, dtype=dtype)
    environment(monkeypatch, None)
    expected = project(w, a, bias=bias, accuracy_level=accuracy_level)
    for chunk in CHUNKS:
        environment(monkeypatch, chunk)
        actual = project(w, a, bias=bias, accuracy_level=accuracy_level)
        np.testing.assert_array_equal(actual, expected, err_msg=f"prompt_chunk={chunk}")


# --- attention ------------------------------------------------------------------------------------


def outputs_by_chunk(
    a: Any, inputs: Inputs, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> dict[str | None, Inputs]:
    by_chunk = {}
    for chunk in (None, *CHUNKS):
        environment(monkeypatch, chunk)
        by_chunk[chunk] = flow_attention(a, inputs, shared=shared)
    return by_chunk


def assert_equal(a: Inputs, b: Inputs) -> None:
    assert a.keys() == b.keys()
    for name, x in a.items():
        np.testing.assert_array_equal(x, b[name], err_msg=name)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    ("lengths", "options"),
    [
        ((290,), {}),
        ((400,), {"local_window_size": 50}),  # 110 tokens before
        ((290,), {"causal": 0}),
        ((290, 131, 7), {}),  # padded prompts of a batch
    ],
)
@pytest.mark.parametrize("cache", [FLOAT32, FLOAT16])
def test_attention_does_not_depend_on_the_chunk(
    lengths: tuple[int, ...], options: dict[str, Any], shared: bool, cache: np.dtype[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    a = attributes(do_rotary=1, **options)
    inputs = random_inputs(a, 290, lengths=lengths, capacity=400, cache_dtype=cache)
    by_chunk = outputs_by_chunk(a, inputs, shared, monkeypatch)
    compare(a, inputs, by_chunk["1"], reference(a, inputs))
    for outputs in by_chunk.values():
        assert_equal(outputs, by_chunk[None])


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("past", [0, 30, 400])
@pytest.mark.parametrize("capacity", [50, 66, 200])
def test_a_sliding_window_cache_holds_the_same_whatever_the_chunk(
    shared: bool, past: int, capacity: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = attributes(do_rotary=1, local_window_size=50, sliding_window_cache=1)
    inputs = random_inputs(
        a, 290, lengths=(past + 290,), capacity=capacity, max_position=past + 290
    )
    by_chunk = outputs_by_chunk(a, inputs, shared, monkeypatch)
    expected = reference(a, inputs)
    rows = expected.cache_rows[0]
    for outputs in by_chunk.values():
        compare(a, inputs, outputs, expected)
        for name in SHARED:
            present, whole = outputs[name], by_chunk[None][name]
            assert present is not None
            assert whole is not None
            np.testing.assert_array_equal(present[:, :, :rows], whole[:, :, :rows], err_msg=name)


def test_a_batch_on_a_sliding_window_cache_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    a = attributes(do_rotary=1, local_window_size=20, sliding_window_cache=1)
    for lengths in ((290, 131, 7), (700, 310, 295)):  # padded prompts; later tokens
        inputs = random_inputs(a, 290, lengths=lengths, capacity=36)
        for outputs in outputs_by_chunk(a, inputs, False, monkeypatch).values():
            compare(a, inputs, outputs, reference(a, inputs))


# --- memory ---------------------------------------------------------------------------------------

# Runs a model on inputs and outputs that exist and are touched; reports what the process holds
# afterwards beyond that, which is scratch.
MEASURE = """
import sys
import numpy as np, onnxruntime, ort_aie_ep

def held():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Anonymous"))

model, arrays, *shared = sys.argv[1:]
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
    environment(monkeypatch, chunk)
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
    k = 2048
    w = make_weights(32, k)

    def scratch(rows: int, chunk: str | None) -> int:
        a = np.ones((1, rows, k), np.float32)
        model = q4nx_model(w, a, accuracy_level=accuracy_level)
        outputs = {"Y": np.ones((1, rows, w.n), np.float32)}
        return scratch_bytes(tmp_path, model, {"A": a}, outputs, chunk, monkeypatch)

    # bfloat16 activations, or int8 ones with a scale and a sum a group of 32.
    row_bytes = 2 * k if accuracy_level == 0 else k + 8 * k // 32
    assert scratch(8192, "100000") > 8192 * row_bytes  # what is not bounded shows
    assert scratch(8192, None) < scratch(2048, None) + SLACK
    assert scratch(8192, "256") < 256 * row_bytes + SLACK


@pytest.mark.parametrize("windowed", [0, 1])
def test_scratch_of_attention_does_not_grow_with_the_prompt(
    windowed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = {"local_window_size": 64, "sliding_window_cache": 1} if windowed else {}
    a = attributes(num_heads=8, kv_num_heads=2, do_rotary=1, **window)
    dim = 32

    def scratch(tokens: int, chunk: str | None) -> int:
        capacity = 80 if windowed else tokens
        inputs = random_inputs(a, tokens, lengths=(tokens,), capacity=capacity, dim=dim)
        outputs = {"output": np.ones((1, tokens, 8 * dim), np.float32)}
        for present, past in SHARED.items():
            array = inputs[past]
            assert array is not None
            outputs[present] = np.ones_like(array)
        return scratch_bytes(tmp_path, model_of(a, inputs), inputs, outputs, chunk, monkeypatch)

    # Queries in float32; on a sliding-window cache the new keys and values as well.
    token_bytes = 4 * dim * (8 + 2 * 2 * windowed)
    assert scratch(8192, "100000") > 8192 * token_bytes
    assert scratch(8192, None) < scratch(2048, None) + SLACK
    assert scratch(8192, "256") < 256 * token_bytes + SLACK
