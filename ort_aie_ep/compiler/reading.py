"""A model reads a text: the windows of tokens, and a session that reads them.

Scales of a quantised KV cache (`calibration.py`) and the importance of in-features
(`importance.py`) come from this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ort_aie_ep.compiler.options import TOKEN_IDS
from ort_aie_ep.errors import AieError
from ort_aie_ep.formats.kv_codes import Floats
from ort_aie_ep.models import corpus, files
from ort_aie_ep.models.folder import ModelFolder, find_model
from ort_aie_ep.models.interface import (
    TYPES,
    Interface,
    Unfit,
    context_length,
    read_interface,
    token_feeds,
)
from ort_aie_ep.models.tokenizer import has_tokenizer, load_tokenizer, prefix_tokens
from ort_aie_ep.runtime import sessions

if TYPE_CHECKING:
    import onnxruntime

Tokens = npt.NDArray[np.int64]

WINDOW_TOKENS = 512
LEAST_TOKENS = 32
# More characters than a token has, so that each window's part of the text is long enough.
_CHARACTERS = 8


@dataclass(frozen=True)
class Purpose:
    """Why a model reads a text, for errors.

    Attributes:
        asked: the option that needs it, such as "kv type int8".
        finds: what the model has to find by reading.
        argument: how the text is given.
        windows: how many windows of a text it reads, evenly spaced.
    """

    asked: str
    finds: str
    argument: str
    windows: int


@dataclass(frozen=True)
class Text:
    """A text that a model reads.

    Attributes:
        source: its name in the report.
        windows: its tokens.
        folder: what says how to run the model.
        purpose: why the model reads it.
    """

    source: str
    windows: tuple[Tokens, ...]
    folder: ModelFolder
    purpose: Purpose

    @property
    def longest(self) -> int:
        """Tokens of the longest window."""
        return max(len(window) for window in self.windows)


def _folder_to_run(source: ModelFolder) -> ModelFolder:
    """The folder that says how to run a model: for a bare .onnx file, the folder around it, if
    that folder's model is the file."""
    if source.genai_config is not None:
        return source
    try:
        around = find_model(source.path)
    except AieError:
        return source
    return around if around.model == source.model else source


def read_windows(source: ModelFolder, given: Path | None, purpose: Purpose) -> Text:
    """The windows of a file, or by default of the standard library's sources that the demonstration
    model is trained on; `ort-aie accuracy` measures with none of them.

    A file is text, or, if its name ends in TOKEN_IDS, an array (windows, tokens) of token ids.

    Raises:
        AieError: the source is text and the folder has no tokenizer; the file cannot be read, or
            is too short.
    """
    folder = _folder_to_run(source)
    window = min(WINDOW_TOKENS, context_length(folder))
    if given is not None and given.suffix == TOKEN_IDS:
        return Text(str(given), _read_ids(given, window), folder, purpose)
    if not has_tokenizer(folder):
        raise AieError(
            f"{purpose.asked}: the model has to read text to find {purpose.finds}, and "
            f"{folder.path} has no tokenizer.json to turn text into tokens: copy it there from the "
            "model's source, or pass token ids, an integer array (windows, tokens) saved by "
            f"numpy.save: {purpose.argument} IDS{TOKEN_IDS}. Random ids give wrong results"
        )
    if given is None:
        name, text = "sources of Python's standard library", _default_text()
    else:
        name, text = str(given), files.read_text(given)
    tokenizer = load_tokenizer(folder)
    prefix = prefix_tokens(tokenizer)
    part = min(window * _CHARACTERS, len(text) // purpose.windows)
    starts = np.linspace(0, len(text) - part, purpose.windows).astype(int)
    windows = []
    for start in starts:
        ids = tokenizer.encode(text[start : start + part], add_special_tokens=False).ids
        windows.append(np.concatenate([prefix, np.array(ids, np.int64)])[:window])
    shortest = min(len(tokens) - len(prefix) for tokens in windows)
    if shortest < min(LEAST_TOKENS, window - len(prefix)):
        raise AieError(
            f"{name}: one of {purpose.windows} parts of it has {shortest} tokens; "
            f"{purpose.argument} uses up to {window} of each and needs at least {LEAST_TOKENS}: "
            "pass a longer text"
        )
    return Text(name, tuple(windows), folder, purpose)


def _default_text() -> str:
    return "".join(text for _, text in corpus.training_text())


def _read_ids(path: Path, window: int) -> tuple[Tokens, ...]:
    try:
        # Mapped, so that a header that claims more than the file has fails before memory is used.
        ids = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise AieError(f"token ids {path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # numpy raises many kinds for damaged headers
        raise AieError(f"token ids {path} are not an array saved by numpy.save: {error}") from error
    if not isinstance(ids, np.ndarray):
        raise AieError(f"token ids {path} are an archive; expected one array saved by numpy.save")
    if ids.ndim != 2 or ids.dtype.kind not in "iu" or ids.shape[0] < 2 or not ids.shape[1]:
        raise AieError(
            f"token ids {path} must be integers (windows, tokens) in two or more windows, got "
            f"{ids.dtype} {ids.shape}"
        )
    if ids.shape[1] > window:
        raise AieError(
            f"token ids {path} have {ids.shape[1]} in a window; expected at most {window}"
        )
    return tuple(ids.astype(np.int64))


@dataclass(frozen=True)
class Reading:
    """What a model computed from a window.

    Attributes:
        caches: name of the past → (1, KV heads, tokens, head size).
        outputs: the other outputs that were asked for.
    """

    caches: dict[str, Floats]
    outputs: dict[str, npt.NDArray[Any]]


class Reader:
    """A session on a model that reads window by window."""

    def __init__(self, session: onnxruntime.InferenceSession, text: Text) -> None:
        """Windows are those of `text`, or others of at most their length."""
        self._session, purpose = session, text.purpose
        inputs, outputs = session.get_inputs(), session.get_outputs()
        try:
            self._interface: Interface = read_interface(text.folder, inputs, outputs, text.longest)
        except Unfit as reason:
            raise AieError(
                f"{purpose.asked}: the model has to read a text to find {purpose.finds}, and it "
                f"cannot be run by itself: {reason}"
            ) from None
        self._vocabulary = self._interface.vocabulary
        self._asked = purpose.asked

    def read(self, tokens: Tokens, outputs: Sequence[str] = ()) -> Reading:
        """Runs the model on a window alone; `outputs` names outputs that are no caches."""
        if tokens.min() < 0 or tokens.max() >= self._vocabulary:
            raise AieError(
                f"{self._asked}: token ids range from {tokens.min()} to "
                f"{tokens.max()}, and the model has {self._vocabulary} tokens"
            )
        interface, count = self._interface, len(tokens)
        binding, kept, found = self._session.io_binding(), [], {}
        for value, feed in token_feeds(interface, tokens[None], np.zeros(1, np.int64)):
            kept.append(sessions.ort_value(feed, value.type))
            binding.bind_ortvalue_input(value.name, kept[-1])
        for cache in (*interface.caches, *interface.states):
            dtype, shape = TYPES[cache.type][0], list(cache.shape)
            past = np.zeros(shape, dtype)
            present = past
            if cache not in interface.states:
                # The cache of a sliding window keeps all rows if it has room for them.
                shape[2] = max(shape[2], count)
                present = np.zeros(shape, dtype)
                past = present if interface.shared else past
                found[cache.past] = (present, cache.type)
            else:
                present = np.zeros(shape, dtype)
            kept += [sessions.ort_value(a, cache.type) for a in (past, present)]
            binding.bind_ortvalue_input(cache.past, kept[-2])
            binding.bind_ortvalue_output(cache.present, kept[-1])
        for name in outputs:
            binding.bind_output(name, "cpu")
        sessions.run(self._session, binding)
        values = binding.get_outputs()[len(binding.get_outputs()) - len(outputs) :]
        return Reading(
            {
                name: sessions.as_float(present[:, :, :count], kind)
                for name, (present, kind) in found.items()
            },
            {name: value.numpy() for name, value in zip(outputs, values, strict=True)},
        )
