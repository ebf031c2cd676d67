"""`compile --kv`: a change to a model's interface on request."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from builder_nodes import projection_model

import ort_aie_ep

DATA = Path(__file__).parents[2] / "data"
DTYPES = {"f16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}


def logits(folder: Path, tokens: list[int], dtype: str = "float32") -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.register_custom_ops_library(ort_aie_ep.library_path())
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options)
    feeds = {
        "input_ids": np.array([tokens], np.int64),
        "attention_mask": np.ones((1, len(tokens)), np.int64),
    }
    for entry in session.get_inputs():
        if entry.name.startswith("past"):
            feeds[entry.name] = np.zeros((1, 2, 0, 32), dtype)
    return session.run(["logits"], feeds)[0]


@pytest.mark.parametrize("kv", ["f16", "bf16"])
def test_kv_changes_past_and_present_alone(kv: str, tmp_path: Path) -> None:
    ort_aie_ep.compile(DATA / "llama", tmp_path / "out", kv=kv)
    before = ir.load(DATA / "llama" / "model.onnx").graph
    after = ir.load(tmp_path / "out" / "model.onnx").graph
    for old, new in zip(
        (*before.inputs, *before.outputs), (*after.inputs, *after.outputs), strict=True
    ):
        is_cache = (old.name or "").startswith(("past", "present"))
        assert (new.name, str(new.shape)) == (old.name, str(old.shape))
        assert new.dtype == (DTYPES[kv] if is_cache else old.dtype)


def test_a_float16_cache_moves_logits_by_its_rounding(tmp_path: Path) -> None:
    ort_aie_ep.compile(DATA / "llama", tmp_path / "f32")
    ort_aie_ep.compile(DATA / "llama", tmp_path / "f16", kv="f16")
    tokens = [int(t) for t in np.random.default_rng(3).integers(3, 500, 80)]
    expected = logits(tmp_path / "f32", tokens)
    actual = logits(tmp_path / "f16", tokens, "float16")
    # float16 has 11 bits, and a layer's rounding flips bfloat16 or int8 roundings after it: the
    # largest difference stays a small part of the spread of logits.
    assert 0 < np.abs(actual - expected).max() < expected.std() / 4


def test_unknown_kv_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ort_aie_ep.AieError, match=r"'f8'.*f16"):
        ort_aie_ep.compile(DATA / "llama", tmp_path / "out", kv="f8")
    assert not list(tmp_path.iterdir())


def test_kv_without_attention_is_refused(tmp_path: Path) -> None:
    onnx.save(projection_model(), tmp_path / "model.onnx")
    with pytest.raises(ort_aie_ep.AieError, match=r"kv type f16"):
        ort_aie_ep.compile(tmp_path / "model.onnx", tmp_path / "out", kv="f16")
    assert not (tmp_path / "out").exists()
