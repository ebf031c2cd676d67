"""A host of text models: a session that is fed tokens under a mask, and whole caches from call to
call."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from op_models import session_options

import ort_aie_ep
from ort_aie_ep.models.interface import TYPES

Array = npt.NDArray[Any]


class Host:
    """A session and its caches.

    Attributes:
        outputs: those that calls ask for.
        past: the caches and states by the names of their inputs, after the first call.
        total: tokens so far.
    """

    def __init__(self, model: Path, *, library: bool = True, numerics: str = "bf16") -> None:
        options = session_options()
        options.log_severity_level = 3
        if library:
            options.register_custom_ops_library(ort_aie_ep.library_path())
            # The environment, because ops read session entries from ONNX Runtime 1.24 on.
            os.environ["ORT_AIE_NUMERICS"] = numerics
        self.session = onnxruntime.InferenceSession(
            str(model), options, providers=["CPUExecutionProvider"]
        )
        os.environ.pop("ORT_AIE_NUMERICS", None)
        self.outputs = [output.name for output in self.session.get_outputs()]
        self.past: dict[str, Array] = {}
        self.total = 0
        config = model.with_name("genai_config.json")
        self._config = (
            json.loads(config.read_text())["model"]["decoder"] if config.is_file() else {}
        )

    def __call__(self, tokens: Array, mask: Array | None = None) -> Array:
        """Logits (batch, new, vocabulary) of tokens (batch, new) under mask (batch, past + new)."""
        batch, new = tokens.shape
        self.total += new
        mask = np.ones((batch, self.total), np.int64) if mask is None else mask
        feeds: dict[str, Array] = {"input_ids": tokens, "attention_mask": mask, **self.past}
        inputs = self.session.get_inputs()
        for entry in inputs:
            if entry.name == "position_ids":
                positions = np.maximum(mask.cumsum(1) - 1, 0)[:, -new:]
                # (batch, new), or three equal axes of it, as for text
                axes = (3, 1, 1) if len(entry.shape) == 3 else (1, 1)
                feeds[entry.name] = np.tile(positions, axes)
            elif entry.name not in feeds:
                feeds[entry.name] = self._empty(entry, batch)
        given = {entry.name for entry in inputs}
        feeds = {name: array for name, array in feeds.items() if name in given}
        results = dict(zip(self.outputs, self.session.run(self.outputs, feeds), strict=True))
        logits: Array = results.pop("logits")
        self.past = {
            next(p for part in ("past_key_values", "past")
                 if (p := name.replace("present", part, 1)) in given): value
            for name, value in results.items()
        }  # fmt: skip
        return logits

    def _empty(self, entry: onnxruntime.NodeArg, batch: int) -> Array:
        """A cache without tokens, but with the rows of a window that slides."""
        window = self._config.get("sliding_window", {}).get("window_size", 0)
        rows = window if "sliding" in str(entry.shape) else 0
        named = {
            0: batch, 1: self._config.get("num_key_value_heads"), 2: rows,
            3: self._config.get("head_size"),
        }  # fmt: skip
        shape = [dim if isinstance(dim, int) else named[i] for i, dim in enumerate(entry.shape)]
        return np.zeros(shape, TYPES[entry.type][0])
