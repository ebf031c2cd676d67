"""The tokenizer in a model folder: tokenizer.json, as Hugging Face's library writes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import ModelFolder

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER = "tokenizer.json"


def has_tokenizer(folder: ModelFolder) -> bool:
    """Whether the folder has a tokenizer.json."""
    return tokenizer_file(folder).is_file()


def require_tokenizer(folder: ModelFolder, given: Path) -> None:
    """Refuses a model without a tokenizer.json; `given` is what the user named it by."""
    if not has_tokenizer(folder):
        raise AieError(
            f"{given} has no tokenizer.json, so text cannot become tokens: "
            "copy it there from the model's source"
        )


def load_tokenizer(folder: ModelFolder) -> Tokenizer:
    """The folder's tokenizer, which neither cuts nor pads a text.

    A tokenizer.json can hold the truncation and padding of a training run. Transformers switches
    both off when it loads the file, and so does this.

    Raises:
        AieError: the folder has no tokenizer, or one that cannot be read.
    """
    from tokenizers import Tokenizer

    require_tokenizer(folder, folder.path)
    path = tokenizer_file(folder)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exceptions
        raise AieError(f"{path} cannot be read as a tokenizer: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def tokenizer_file(folder: ModelFolder) -> Path:
    """Where the tokenizer is, if the folder has one."""
    return folder.path / TOKENIZER


def prefix_tokens(tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    """Tokens that the tokenizer puts before every text, such as begin-of-text; may be none."""
    return np.array(tokenizer.encode("").ids, np.int64)
