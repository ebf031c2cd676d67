"""Calls of whole models in ONNX Runtime, and what the NPU counted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
from op_models import session_options

import ort_aie_ep
from ort_aie_ep import npu_counters
from ort_aie_ep.models.shapes import Shape
from ort_aie_ep.runtime.counters import NpuCounters

Array = npt.NDArray[Any]
SIMULATED = pytest.mark.skipif(
    not Path(ort_aie_ep.library_path()).with_name("libort_aie_sim.so").is_file(),
    reason="built without XRT's headers",
)
PROMPT, CAPACITY = 5, 16
WINDOW, WINDOW_CAPACITY = 4, 6  # the second token is the first that moves a windowed cache
# Real heads, with few channels and a small vocabulary.
SMALL = {"hidden": 256, "ffn": 512, "layers": 2, "heads": 4, "kv_heads": 2, "vocab": 512}


def more(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    new = {reason: count - before.get(reason, 0) for reason, count in after.items()}
    return {reason: count for reason, count in new.items() if count}


@dataclass(frozen=True)
class Call:
    """The last token's logits, the cache, and what the NPU counted."""

    logits: Array
    cache: dict[str, Array]
    before: NpuCounters
    after: NpuCounters

    def counted(self, name: str) -> int:
        return int(getattr(self.after, name) - getattr(self.before, name))

    @property
    def host_steps(self) -> dict[str, int]:
        return more(self.before.host_steps, self.after.host_steps)

    @property
    def between(self) -> dict[str, int]:
        return more(self.before.host_steps_between, self.after.host_steps_between)


def open_session(folder: Path, target: str, **entries: str) -> onnxruntime.InferenceSession:
    options = session_options()
    options.register_custom_ops_library(str(ort_aie_ep.library_path()))
    for name, value in {"target": target, "numerics": "bf16", **entries}.items():
        options.add_session_config_entry(f"ort_aie.{name}", value)
    return onnxruntime.InferenceSession(
        folder / "model.onnx", options, providers=["CPUExecutionProvider"]
    )


def empty_cache(shape: Shape, capacity: int = CAPACITY) -> dict[str, Any]:
    """With room for all tokens; a layer with a window keeps little more than the window."""

    def rows(layer: int) -> Array:
        own = WINDOW_CAPACITY if shape.is_local(layer) else capacity
        return np.zeros((1, shape.kv_heads, own, shape.head_dim), np.float32)

    return {
        f"past_key_values.{layer}.{what}": rows(layer)
        for layer in range(shape.layers)
        for what in ("key", "value")
    }


def growing_cache(folder: Path, heads: int = 0, dim: int = 0) -> dict[str, Any]:
    """Empty; of `heads` and `dim` where the model's inputs name sizes."""
    return {
        value.name: np.zeros((1, heads or value.shape[1], 0, dim or value.shape[3]), np.float32)
        for value in open_session(folder, "host").get_inputs()
        if value.name.startswith("past_key_values")
    }


def calls(
    cache: dict[str, Any],
    vocab: int,
    folder: Path,
    targets: list[str],
    *,
    prompt: int = PROMPT,
    session: onnxruntime.InferenceSession | None = None,
    **entries: str,
) -> list[Call]:
    """Runs the prompt on the first target, then a token on each of the others, with one cache: in a
    session for each target, or all in one."""
    sessions = {
        target: session or open_session(folder, target, **entries) for target in set(targets)
    }
    names = [o.name for o in sessions[targets[0]].get_outputs()]
    wanted = {i.name for i in sessions[targets[0]].get_inputs()}
    ids = np.random.default_rng(0).integers(0, vocab, prompt + len(targets))
    found, seen = [], 0
    for i, target in enumerate(targets):
        count = prompt if i == 0 else 1
        seen += count
        feeds = {
            "input_ids": ids[None, seen - count : seen],
            "attention_mask": np.ones((1, seen), np.int64),
            "position_ids": np.arange(seen - count, seen)[None],
            **cache,
        }
        before = npu_counters()
        feeds = {name: value for name, value in feeds.items() if name in wanted}
        outputs = dict(zip(names, sessions[target].run(None, feeds), strict=True))
        cache = {
            name.replace("present", "past_key_values"): value
            for name, value in outputs.items()
            if name.startswith("present")
        }
        logits = outputs["logits"][0, -1].astype(np.float64)
        found.append(Call(logits, cache, before, npu_counters()))
    return found
