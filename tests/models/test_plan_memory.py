"""Temporaries of a plan: each call has its own, they are kept, and a prompt's are given back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest

import ort_aie_ep

Array = npt.NDArray[Any]
LLAMA = Path(__file__).parents[1] / "data" / "llama"
KV_HEADS, SIZE, LAYERS, HIDDEN = 2, 32, 2, 192


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> onnxruntime.InferenceSession:
    folder = tmp_path_factory.mktemp("plan") / "llama"
    ort_aie_ep.compile(LLAMA, folder)
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(ort_aie_ep.library_path())
    options.enable_cpu_mem_arena = False  # excludes what ONNX Runtime keeps
    return onnxruntime.InferenceSession(folder / "model.onnx", options)


def feeds(tokens: Array) -> dict[str, Array]:
    """First prompts, (batch, tokens)."""
    none = np.zeros((len(tokens), KV_HEADS, 0, SIZE), np.float32)
    past = {
        f"past_key_values.{layer}.{kind}": none
        for layer in range(LAYERS)
        for kind in ("key", "value")
    }
    return {"input_ids": tokens, "attention_mask": np.ones_like(tokens)} | past


def prompt(length: int, seed: int, batch: int = 1) -> Array:
    return np.random.default_rng([length, seed]).integers(0, 500, (batch, length))


def test_calls_at_once_have_temporaries_of_their_own(
    session: onnxruntime.InferenceSession,
) -> None:
    prompts = [prompt(length, seed) for seed in range(8) for length in (1, 7, 64)]
    alone = [session.run(None, feeds(tokens)) for tokens in prompts]
    with ThreadPoolExecutor(6) as pool:
        for _ in range(5):
            together = list(pool.map(lambda tokens: session.run(None, feeds(tokens)), prompts))
            for one, other in zip(alone, together, strict=True):
                for expected, actual in zip(one, other, strict=True):
                    np.testing.assert_array_equal(actual, expected)


def resident() -> int:
    """Bytes of anonymous memory."""
    text = Path("/proc/self/status").read_text()
    return int(text.split("RssAnon:")[1].split()[0]) << 10


def test_a_prompts_temporaries_are_given_back(session: onnxruntime.InferenceSession) -> None:
    logits, token = session.get_outputs()[0].name, feeds(prompt(1, 0))
    session.run([logits], token)
    session.run([logits], feeds(prompt(200, 1, batch=200)))
    after_prompts = resident()
    session.run([logits], token)
    # At least two rows of the hidden state for each token. The kernels' scratch stays; it does not
    # grow beyond a chunk of a prompt.
    assert after_prompts - resident() > 200 * 200 * 2 * HIDDEN * 4
