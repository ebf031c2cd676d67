"""`ort-aie accuracy`: the cost of rounding activations, in perplexity on a text.

The text is a file, or by default the part of Python's standard library that `corpus.py` keeps out
of training. It is read in windows of equal length, spread evenly over it. Four variants of one
model score the same tokens:

* ONNX Runtime's CPU EP with accuracy_level 0: float activations, the reference,
* the CPU EP with accuracy_level 4: its own int8 activations, for comparison,
* the compiled model with bf16 and with int8 activations, and again with other KV caches.

Each is scored twice: a window in one pass (many rows: dequant + GEMM, FlowQKV), and token by token
(one row: FusedDQP, FlowKV). The variants alternate at each window, so no logits need storing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import ModelFolder
from ort_aie_ep.models.interface import context_length
from ort_aie_ep.models.onnx_file import load_model
from ort_aie_ep.models.tokenizer import load_tokenizer, prefix_tokens
from ort_aie_ep.progress import Count, Progress
from ort_aie_ep.running.generate import Decoder, Logits, Tokens
from ort_aie_ep.runtime.sessions import Options, open_edited, open_session
from ort_aie_ep.tools.bench.measured_text import tokens_of
from ort_aie_ep.tools.bench.statistics import RESAMPLES, Interval

# Rows of logits to turn into probabilities at a time: float64 rows of a large vocabulary are big.
_ROWS = 64
# Names of the modes for `progress`.
_MODES = {"prefill": "in passes", "decode": "token by token"}


@dataclass(frozen=True)
class Workload:
    """How much to score.

    Attributes:
        tokens: tokens to score in passes over whole windows, at least.
        decode_tokens: tokens to score token by token, at least.
        window: tokens of a window, including those that the tokenizer puts before a text.
        text: a file with the text, of which as much is scored as it has; None: the held-out text.
    """

    tokens: int
    decode_tokens: int
    window: int
    text: Path | None = None

    def windows(self, prefix: int) -> tuple[int, int]:
        """(windows to score in one pass, windows to decode).

        A window scores all its tokens except the first, which nothing precedes.
        """
        scored = self.window - max(prefix, 1)
        return -(-self.tokens // scored), -(-self.decode_tokens // scored)


@dataclass(frozen=True)
class Score:
    """One variant in one mode.

    Attributes:
        variant: which session.
        mode: "prefill" or "decode".
        tokens: how many were scored.
        perplexity: perplexity of the text.
        ratio: perplexity / the reference's; resampled in pairs, so that the difficulty of a window
            cancels out.
        top1: fraction of positions where its likeliest token is the reference's.
        largest_difference: largest difference of any logit from the reference's.
    """

    variant: str
    mode: str
    tokens: int
    perplexity: Interval
    ratio: Interval
    top1: float
    largest_difference: float


@dataclass(frozen=True)
class AccuracyReport:
    """All scores; the reference comes first in each mode."""

    window: int
    windows: int
    decode_windows: int
    scores: tuple[Score, ...]


@dataclass(frozen=True)
class _Window:
    """The results of one variant on one window: sums over its scored tokens."""

    loss: float
    tokens: int
    same: int
    largest_difference: float


def accuracy(
    compiled: ModelFolder,
    source: ModelFolder,
    threads: int | None,
    workload: Workload,
    progress: Progress | None = None,
    caches: Mapping[str, ModelFolder] | None = None,
) -> AccuracyReport:
    """Scores the four variants, and two more for each model of `caches`, by its KV cache's type.

    `progress` counts the tokens that all variants read, first in passes, then one by one.

    Raises:
        AieError: the model has no tokenizer, the text is too short, or a session fails.
    """
    ours = {"": compiled} | {f", KV {kv}": folder for kv, folder in (caches or {}).items()}
    return score(
        lambda: _variants(ours, source, threads, workload.window), source, workload, progress
    )


def score(
    open_variants: Callable[[], Sequence[tuple[str, Decoder]]],
    source: ModelFolder,
    workload: Workload,
    progress: Progress | None = None,
) -> AccuracyReport:
    """Scores named variants of `source`, which are opened once the workload is known to fit. Their
    decoders hold a window, and the first is the reference. `progress` is as for `accuracy`.

    Raises:
        AieError: the model has no tokenizer, the text is too short, or a session fails.
    """
    if not 2 <= workload.window <= context_length(source):
        raise AieError(
            f"a window of {workload.window} tokens does not fit the model's context of "
            f"{context_length(source)}"
        )
    tokenizer = load_tokenizer(source)
    prefix = prefix_tokens(tokenizer)
    if workload.window <= len(prefix):
        raise AieError(f"a window of {workload.window} tokens has no room for text")
    count, decode_count = workload.windows(len(prefix))
    text = tokens_of(tokenizer, workload.text)
    if workload.text is not None:
        most = len(text) // (workload.window - len(prefix))
        if most == 0:
            raise AieError(
                f"text {workload.text} has {len(text)} tokens, less than a window of "
                f"{workload.window}: pass a longer text, or a smaller --window"
            )
        count, decode_count = min(count, most), min(decode_count, most)
    windows = _windows(text, prefix, workload.window, max(count, decode_count))
    variants = open_variants()
    scores: list[Score] = []
    for mode, used in (("prefill", windows[:count]), ("decode", windows[:decode_count])):
        if used:
            scores += _score(mode, used, max(len(prefix), 1), variants, progress)
    return AccuracyReport(workload.window, count, decode_count, tuple(scores))


def _windows(text: Tokens, prefix: Tokens, size: int, count: int) -> list[Tokens]:
    """`count` windows of `size` tokens, not overlapping, evenly spaced over the text."""
    part = size - len(prefix)
    if count * part > len(text):
        raise AieError(
            f"{count} windows of {size} tokens need {count * part} tokens, and the held-out text "
            f"has {len(text)}"
        )
    # In a fixed shuffled order, so that any part of the windows is also spread over the text.
    starts = np.linspace(0, len(text) - part, count).astype(np.int64)
    np.random.default_rng(0).shuffle(starts)
    return [np.concatenate([prefix, text[start : start + part]]) for start in starts]


def _variants(
    ours: Mapping[str, ModelFolder], source: ModelFolder, threads: int | None, capacity: int
) -> list[tuple[str, Decoder]]:
    """`ours` maps a suffix for the variants' names to a compiled model."""
    plain = Options(threads=threads)
    sessions = {
        f"CPU EP, level {level}": (
            open_edited(with_accuracy_level(source, level), source.model.parent, plain),
            source,
        )
        for level in (0, 4)
    } | {
        f"ort_aie_ep, {numerics}{name}": (
            open_session(compiled.model, Options("host", numerics, threads)),
            compiled,
        )
        for name, compiled in ours.items()
        for numerics in ("bf16", "int8")
    }
    return [
        (name, Decoder(session, folder, capacity)) for name, (session, folder) in sessions.items()
    ]


def with_accuracy_level(source: ModelFolder, level: int) -> bytes:
    """The model with accuracy_level set at every MatMulNBits; weights stay where they are."""
    model = load_model(source.model)
    changed = 0
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.op_type == "MatMulNBits":
            node.attributes["accuracy_level"] = ir.AttrInt64("accuracy_level", level)
            changed += 1
    if not changed:
        raise AieError(f"{source.model} has no MatMulNBits")
    content: bytes = ir.to_proto(model).SerializeToString()
    return content


def _score(
    mode: str,
    windows: Sequence[Tokens],
    first: int,
    variants: Sequence[tuple[str, Decoder]],
    progress: Progress | None,
) -> list[Score]:
    """Scores tokens [first, end) of each window with each variant, the reference first."""
    results: dict[str, list[_Window]] = {name: [] for name, _ in variants}
    count = Count(progress, sum(len(tokens) - 1 for tokens in windows) * len(variants))
    for tokens in windows:
        reference: Logits | None = None
        for name, decoder in variants:
            count.begin(f"{_MODES[mode]}, {name}")
            logits = _logits(mode, decoder, tokens, count)[first - 1 :]
            reference = logits if reference is None else reference
            results[name].append(_compare(logits, reference, tokens[first:]))
    losses = {name: np.array([w.loss for w in results[name]]) for name, _ in variants}
    counts = np.array([w.tokens for w in results[variants[0][0]]])
    base = losses[variants[0][0]]
    return [
        Score(
            variant=name,
            mode=mode,
            tokens=int(counts.sum()),
            perplexity=_bootstrap(losses[name], counts),
            ratio=_bootstrap(losses[name] - base, counts),
            top1=sum(w.same for w in results[name]) / int(counts.sum()),
            largest_difference=max(w.largest_difference for w in results[name]),
        )
        for name, _ in variants
    ]


def _logits(mode: str, decoder: Decoder, tokens: Tokens, count: Count) -> Logits:
    """Logits (len(tokens) - 1, vocabulary): for the token after each one except the last."""
    decoder.reset()
    if mode == "prefill":
        logits = decoder.forward(tokens[:-1])
        if len(logits) == len(tokens) - 1:
            count.step(amount=len(logits))
            return logits
        # The graph computes only the last row, so windows can only be scored one row a pass.
        raise AieError("the model returns logits only for the last token; use --tokens 0")
    rows = []
    for token in np.split(tokens[:-1], len(tokens) - 1):
        rows.append(decoder.forward(token))
        count.step()
    return np.concatenate(rows)


def _compare(logits: Logits, reference: Logits, targets: Tokens) -> _Window:
    loss, same, largest = 0.0, 0, 0.0
    for start in range(0, len(targets), _ROWS):
        rows = slice(start, start + _ROWS)
        ours, theirs = logits[rows].astype(np.float64), reference[rows]
        top = ours.max(axis=1)
        log_sum = top + np.log(np.exp(ours - top[:, None]).sum(axis=1))
        loss += float((log_sum - ours[np.arange(len(ours)), targets[rows]]).sum())
        same += int((logits[rows].argmax(axis=1) == theirs.argmax(axis=1)).sum())
        largest = max(largest, float(np.abs(logits[rows] - theirs).max()))
    return _Window(loss, len(targets), same, largest)


def _bootstrap(losses: npt.NDArray[np.float64], counts: npt.NDArray[np.int64]) -> Interval:
    """exp(sum of losses / sum of counts) and its 95 % interval over resampled windows.

    The generator has the same seed for all variants, so they are resampled with the same windows.
    """
    picks = np.random.default_rng(0).integers(0, len(losses), (RESAMPLES, len(losses)))
    samples = np.exp(losses[picks].sum(axis=1) / counts[picks].sum(axis=1))
    low, high = np.percentile(samples, (2.5, 97.5))
    return Interval(float(np.exp(losses.sum() / counts.sum())), float(low), float(high))
