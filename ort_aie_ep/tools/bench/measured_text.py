"""Tokens for timing, comparing and scoring: text that no demonstration model was trained on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ort_aie_ep.models import corpus
from ort_aie_ep.models.files import read_text
from ort_aie_ep.models.folder import ModelFolder
from ort_aie_ep.models.tokenizer import has_tokenizer, load_tokenizer
from ort_aie_ep.running.generate import Tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def held_out_tokens(tokenizer: Tokenizer) -> Tokens:
    """Tokens of all held-out modules of the standard library, sorted by name."""
    texts = (text for _, text in corpus.held_out_text())
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    return np.concatenate([np.array(part, np.int64) for part in ids])


def tokens_of(tokenizer: Tokenizer, text: Path | None) -> Tokens:
    """Tokens of a file with text, or by default of the held-out modules.

    Raises:
        AieError: the file cannot be read, or is not UTF-8.
    """
    if text is None:
        return held_out_tokens(tokenizer)
    return np.array(tokenizer.encode(read_text(text), add_special_tokens=False).ids, np.int64)


def measuring_tokens(folder: ModelFolder, vocabulary: int, count: int) -> Tokens:
    """`count` tokens for timing and comparing: held-out text, or random ids without a tokenizer."""
    if not has_tokenizer(folder):
        return np.random.default_rng(0).integers(0, vocabulary, count, np.int64)
    tokens = held_out_tokens(load_tokenizer(folder))
    return np.resize(tokens, count)
