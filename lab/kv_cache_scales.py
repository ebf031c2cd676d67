"""Compares rules for the scales of a quantised KV cache by their errors on other text.

    python lab/kv_cache_scales.py                # the demonstration model
    python lab/kv_cache_scales.py COMPILED       # compiled without --kv, with a tokenizer

Scales come from the text that `compile --kv` reads by default. Errors come from the same number of
windows of the text that `ort-aie accuracy` measures. They are relative root mean square errors of
keys and of values, as means over layers. Prints Markdown.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ort_aie_ep.compiler.calibration import purpose
from ort_aie_ep.compiler.compile import compile_model
from ort_aie_ep.compiler.reading import WINDOW_TOKENS, Reader, read_windows
from ort_aie_ep.formats.kv_codes import (
    BITS,
    Floats,
    channel_scales,
    largest_code,
    relative_error,
)
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.models.tokenizer import load_tokenizer
from ort_aie_ep.runtime.sessions import Options, open_session
from ort_aie_ep.tools.bench import demo
from ort_aie_ep.tools.bench.measured_text import held_out_tokens

PARTS = np.arange(0.4, 1.01, 0.05, np.float32)


def of_largest(part: float) -> Callable[[Floats, int], Floats]:
    """The rule that a channel's largest number, times `part`, gets the largest code."""

    def scales(rows: Floats, bits: int) -> Floats:
        largest = np.abs(rows).max(axis=2, keepdims=True)
        return largest * np.float32(part / largest_code(bits))

    return scales


def percentile(rows: Floats, bits: int) -> Floats:
    """The rule that clips one number in a thousand."""
    return np.percentile(np.abs(rows), 99.9, axis=2, keepdims=True) / largest_code(bits)


def least_error(rows: Floats, bits: int) -> Floats:
    """The rule that uses the best of PARTS of the largest number."""
    best = error = np.array(np.inf, np.float32)
    for part in PARTS:
        scales, top = of_largest(part)(rows, bits), largest_code(bits)
        coded = np.rint(rows / scales).clip(-top - 1, top) * scales
        tried = np.square(coded - rows).sum(axis=2, keepdims=True)
        best, error = np.where(tried < error, scales, best), np.minimum(tried, error)
    return best


RULES: dict[str, Callable[[Floats, int], Floats]] = {
    "largest": of_largest(1),
    "1.1 · largest": of_largest(1.1),
    "1.25 · largest": of_largest(1.25),
    "1.5 · largest": of_largest(1.5),
    "99.9th percentile": percentile,
    "least squared error": least_error,
    "in use": channel_scales,
}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", type=Path)
    given = parser.parse_args().model
    with tempfile.TemporaryDirectory() as scratch:
        if given is None:
            given = compile_model(demo.MODEL, Path(scratch, "model")).path
        folder = find_model(given)
        read = read_windows(folder, None, purpose("int8"))
        *windows, _ = read.windows
        text = held_out_tokens(load_tokenizer(folder))
        starts = np.linspace(0, len(text) - WINDOW_TOKENS, len(windows)).astype(int)
        session = open_session(folder.model, Options("host", log="quiet"))
        reader = Reader(session, read)
        seen = [reader.read(window).caches for window in windows]
        other = [reader.read(text[start : start + WINDOW_TOKENS]).caches for start in starts]
        print(f"| | {' | '.join(f'{kv}, keys | values' for kv in BITS)} |")
        print("|---|" + "---:|" * 2 * len(BITS))
        for name, rule in RULES.items():
            errors: list[float] = []
            for bits in BITS.values():
                found: dict[str, list[float]] = {"key": [], "value": []}
                for cache in seen[0]:
                    rows, unseen = (
                        np.concatenate([window[cache] for window in part], axis=2)
                        for part in (seen, other)
                    )
                    kind = "value" if cache.endswith(".value") else "key"
                    found[kind].append(relative_error(unseen, rule(rows, bits), bits))
                errors += [float(np.mean(part)) for part in found.values()]
            print(f"| {name} | {' | '.join(f'{error:.2%}' for error in errors)} |")


if __name__ == "__main__":
    main()
