"""Scales for a quantised KV cache: the model reads a text, and its keys and values show how large
each channel becomes.

Calibration measures the cache's contents: keys after norm and rotation, in the compiled model
before its cache changes, on this CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ort_aie_ep.errors import AieError
from ort_aie_ep.formats.kv_codes import BITS, Floats, channel_scales, relative_error
from ort_aie_ep.graph_passes.attention.cache_type import CachedAttention, Scales
from ort_aie_ep.models import corpus
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

Tokens = npt.NDArray[np.int64]

# Evenly spaced windows of the text: all but the last give the scales; the last one tests them.
WINDOWS = 5
WINDOW_TOKENS = 512
LEAST_TOKENS = 32
# More characters than a token has, so that each window's part of the text is long enough.
_CHARACTERS = 8
TOKEN_IDS = ".npy"


@dataclass(frozen=True)
class CacheError:
    """The error of one attention's quantised cache, on text that the scales did not come from.

    Attributes:
        node: the attention.
        keys: root mean square error over the root mean square of its keys.
        values: the same for its values.
    """

    node: str
    keys: float
    values: float


@dataclass(frozen=True)
class CacheReport:
    """How a cache was quantised.

    Attributes:
        kv: "int8" or "int4".
        text: the source of the scales.
        tokens: tokens of that text.
        layers: the errors of each attention.
        left: inputs that keep their caches, because their attention is not an aie operator.
    """

    kv: str
    text: str
    tokens: int
    layers: tuple[CacheError, ...]
    left: tuple[str, ...]

    def errors(self) -> dict[str, dict[str, float]]:
        """The error of each attention, for keys and for values."""
        return {
            "keys": {layer.node: layer.keys for layer in self.layers},
            "values": {layer.node: layer.values for layer in self.layers},
        }


@dataclass(frozen=True)
class CalibrationText:
    """Windows of tokens; `source` is the text's name in the report."""

    source: str
    windows: tuple[Tokens, ...]

    @property
    def tokens(self) -> int:
        """How many tokens the scales come from."""
        return sum(len(window) for window in self.windows[:-1])


def reader(source: ModelFolder) -> ModelFolder:
    """The folder that says how to run a model: for a bare .onnx file, the folder around it, if
    that folder's model is the file."""
    if source.genai_config is not None:
        return source
    try:
        around = find_model(source.path)
    except AieError:
        return source
    return around if around.model == source.model else source


def read_text(folder: ModelFolder, given: Path | None, kv: str) -> CalibrationText:
    """The windows of a file, or by default of the standard library's sources that the demonstration
    model is trained on; `ort-aie accuracy` measures with none of them.

    A file is text, or, if its name ends in TOKEN_IDS, an array (windows, tokens) of token ids.

    Raises:
        AieError: the source is text and the folder has no tokenizer; the file cannot be read, or
            is too short.
    """
    window = min(WINDOW_TOKENS, context_length(folder))
    if given is not None and given.suffix == TOKEN_IDS:
        return _read_ids(given, window)
    if not has_tokenizer(folder):
        raise AieError(
            f"kv type {kv}: the model has to read text to find its scales, and {folder.path} has "
            "no tokenizer.json to turn text into tokens: copy it there from the model's source, or "
            f"pass token ids, an integer array (windows, tokens) saved by numpy.save: "
            f"calibration (--calibration) IDS{TOKEN_IDS}. Random ids give wrong scales"
        )
    if given is None:
        source, text = "sources of Python's standard library", _default_text()
    else:
        source, text = str(given), _read_file(given)
    tokenizer = load_tokenizer(folder)
    prefix = prefix_tokens(tokenizer)
    part = min(window * _CHARACTERS, len(text) // WINDOWS)
    starts = np.linspace(0, len(text) - part, WINDOWS).astype(int)
    windows = []
    for start in starts:
        ids = tokenizer.encode(text[start : start + part], add_special_tokens=False).ids
        windows.append(np.concatenate([prefix, np.array(ids, np.int64)])[:window])
    shortest = min(len(tokens) - len(prefix) for tokens in windows)
    if shortest < min(LEAST_TOKENS, window - len(prefix)):
        raise AieError(
            f"{source}: a fifth of it has {shortest} tokens; calibration uses up to {window} and "
            f"needs at least {LEAST_TOKENS}: pass a longer text"
        )
    return CalibrationText(source, tuple(windows))


def _default_text() -> str:
    return "".join(text for _, text in corpus.training_text())


def _read_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise AieError(f"calibration text {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise AieError(f"calibration text {path} is not UTF-8: {error}") from error


def _read_ids(path: Path, window: int) -> CalibrationText:
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
    return CalibrationText(str(path), tuple(ids.astype(np.int64)))


def calibrate(
    model: Path,
    folder: ModelFolder,
    attentions: Sequence[CachedAttention],
    kv: str,
    text: CalibrationText,
) -> tuple[list[Scales], CacheReport]:
    """Scales of each attention's codes, and their error.

    Args:
        model: the .onnx file of the compiled model, with its unquantised cache.
        folder: the source's folder, with its configuration.
        attentions: the attentions of that model.
        kv: "int8" or "int4".
        text: the text that it reads.

    Raises:
        AieError: the model cannot be run on tokens alone, or its keys or values are not finite.
    """
    run = CacheReader(model, folder, kv, max(len(window) for window in text.windows))
    *first, last = text.windows
    names = [(a.past_key.name or "", a.past_value.name or "") for a in attentions]
    seen = [run.rows(window) for window in first]
    unseen = run.rows(last)
    scales, errors = [], []
    for attention, pair in zip(attentions, names, strict=True):
        made, lost = [], []
        for what, name in zip(("keys", "values"), pair, strict=True):
            rows = np.concatenate([window[name] for window in seen], axis=2)
            if not (np.isfinite(rows).all() and np.isfinite(unseen[name]).all()):
                raise AieError(
                    f"kv type {kv}: node '{attention.label}': its {what} are NaN or infinite on "
                    f"{text.source}"
                )
            made.append(channel_scales(rows, BITS[kv]))
            lost.append(relative_error(unseen[name], made[-1], BITS[kv]))
        scales.append(Scales(*made))
        errors.append(CacheError(attention.label, *lost))
    quantised = {name for pair in names for name in pair}
    left = tuple(name for name in unseen if name not in quantised)
    return scales, CacheReport(kv, text.source, text.tokens, tuple(errors), left)


class CacheReader:
    """A session on a model that reads its keys and values window by window."""

    def __init__(self, model: Path, folder: ModelFolder, kv: str, rows: int) -> None:
        self._session = sessions.open_session(model, sessions.Options("host", log="quiet"))
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        try:
            self._interface: Interface = read_interface(folder, inputs, outputs, rows)
        except Unfit as reason:
            raise AieError(
                f"kv type {kv}: the model has to read a text to find its scales, and it cannot be "
                f"run by itself: {reason}"
            ) from None
        self._vocabulary = self._interface.vocabulary
        self._kv = kv

    def rows(self, tokens: Tokens) -> dict[str, Floats]:
        """For each cache: name of the past → (1, KV heads, tokens, head size)."""
        if tokens.min() < 0 or tokens.max() >= self._vocabulary:
            raise AieError(
                f"kv type {self._kv}: token ids for calibration range from {tokens.min()} to "
                f"{tokens.max()}, and the model has {self._vocabulary} tokens"
            )
        interface, count = self._interface, len(tokens)
        binding, kept, found = self._session.io_binding(), [], {}
        for value, feed in token_feeds(interface, tokens[None], 0):
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
        sessions.run(self._session, binding)
        return {
            name: sessions.as_float(present[:, :, :count], kind)
            for name, (present, kind) in found.items()
        }
