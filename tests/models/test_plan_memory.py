"""Temporaries of a plan are kept, and a prompt's are given back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

import ort_aie_ep

Array = npt.NDArray[Any]
LLAMA = Path(__file__).parents[1] / "data" / "llama"
KV_HEADS, SIZE, LAYERS, HIDDEN = 2, 32, 2, 192


def feeds(tokens: Array) -> dict[str, Array]:
    """First prompts, (batch, tokens)."""
    none = np.zeros((len(tokens), KV_HEADS, 0, SIZE), np.float32)
    past = {
        f"past_key_values.{layer}.{kind}": none
        for layer in range(LAYERS)
        for kind in ("key", "value")
    }
    return {"input_ids": tokens, "attention_mask": np.ones_like(tokens)} | past


def resident() -> int:
    """Bytes of anonymous memory."""
    text = Path("/proc/self/status").read_text()
    return int(text.split("RssAnon:")[1].split()[0]) << 10


def test_a_prompts_temporaries_are_given_back(tmp_path: Path) -> None:
    ort_aie_ep.compile(LLAMA, tmp_path / "llama")
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(ort_aie_ep.library_path())
    options.enable_cpu_mem_arena = False  # excludes what ONNX Runtime keeps
    session = onnxruntime.InferenceSession(tmp_path / "llama" / "model.onnx", options)
    logits, token = session.get_outputs()[0].name, feeds(np.ones((1, 1), np.int64))
    session.run([logits], token)
    session.run([logits], feeds(np.random.default_rng(1).integers(0, 500, (200, 200))))
    after_prompts = resident()
    session.run([logits], token)
    # At least two rows of the hidden state for each token. The kernels' scratch stays; it does not
    # grow beyond a chunk of a prompt.
    assert after_prompts - resident() > 200 * 200 * 2 * HIDDEN * 4
