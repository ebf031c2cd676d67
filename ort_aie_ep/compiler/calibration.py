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

from ort_aie_ep.compiler.reading import Purpose, Reader, Text
from ort_aie_ep.errors import AieError
from ort_aie_ep.formats.kv_codes import BITS, channel_scales, relative_error
from ort_aie_ep.graph_passes.attention.cache_type import CachedAttention, Scales
from ort_aie_ep.runtime import sessions

# Windows of the text: all but the last give the scales; the last one tests them.
WINDOWS = 5


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


def purpose(kv: str) -> Purpose:
    """Why the model reads a text for a cache of codes."""
    return Purpose(f"kv type {kv}", "its scales", "calibration (--calibration)", WINDOWS)


def calibrate(
    model: Path, attentions: Sequence[CachedAttention], kv: str, text: Text
) -> tuple[list[Scales], CacheReport]:
    """Scales of each attention's codes, and their error.

    Args:
        model: the .onnx file of the compiled model, with its unquantised cache.
        attentions: the attentions of that model.
        kv: "int8" or "int4".
        text: the text that it reads.

    Raises:
        AieError: the model cannot be run on tokens alone, or its keys or values are not finite.
    """
    session = sessions.open_session(model, sessions.Options("host", log="quiet"))
    run = Reader(session, text)
    *first, last = text.windows
    names = [(a.past_key.name or "", a.past_value.name or "") for a in attentions]
    seen = [run.read(window).caches for window in first]
    unseen = run.read(last).caches
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
    tokens = sum(len(window) for window in first)
    left = tuple(name for name in unseen if name not in quantised)
    return scales, CacheReport(kv, text.source, tokens, tuple(errors), left)
