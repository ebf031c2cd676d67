"""genai_config.json of a model folder, as each command reads it.

An input is the file. The model beside it is empty: its inputs and outputs are those of a decoder.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import Any, cast

import atheris
from target import fuzz, scratch

with atheris.instrument_imports(include=["ort_aie_ep"]):
    from ort_aie_ep.compiler.compiled_folder import _make_genai_folder
    from ort_aie_ep.errors import AieError
    from ort_aie_ep.models.folder import GENAI_CONFIG, find_model, other_models
    from ort_aie_ep.models.interface import context_length
    from ort_aie_ep.running.generate import Decoder, stop_tokens

FOLDER, COMPILED = scratch(), scratch()
(FOLDER / "model.onnx").touch()


@dataclass(frozen=True)
class Arg:
    """An input or output of a session."""

    name: str
    shape: list[Any]
    type: str = "tensor(float)"


class Session:
    """A decoder's inputs and outputs, with as little information as allowed."""

    def get_inputs(self) -> list[Arg]:
        """Tokens and a layer's past."""
        tokens = Arg("input_ids", ["batch", "length"], "tensor(int64)")
        past = [
            Arg(f"past_key_values.0.{kind}", ["batch", "heads", "past", "size"])
            for kind in ("key", "value")
        ]
        return [tokens, *past]

    def get_outputs(self) -> list[Arg]:
        """Logits and a layer's present."""
        present = [
            Arg(f"present.0.{kind}", ["batch", "heads", "total", "size"])
            for kind in ("key", "value")
        ]
        return [Arg("logits", ["batch", "length", "vocabulary"]), *present]


def test(data: bytes) -> None:
    """Uses the configuration as `run`, `generate` and `compile` do."""
    (FOLDER / GENAI_CONFIG).write_bytes(data)
    folder = find_model(FOLDER)
    stop_tokens(folder)
    context_length(folder)
    with contextlib.suppress(AieError):
        Decoder(cast(Any, Session()), folder, 64)
    assert folder.genai_config is not None
    other_models(folder)
    _make_genai_folder(json.loads(json.dumps(folder.genai_config)), COMPILED, {"model.onnx"})


if __name__ == "__main__":
    fuzz(test, of_json=True)
