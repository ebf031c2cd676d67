"""Whole models that others measured on XDNA2 in 2026, and how far machines of one kind differ.

Nothing here was measured by this project.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log
from typing import Literal

from ort_aie_ep.npu.terms import costs

Phase = Literal["token", "prompt"]

KRACKAN = costs.PROCESSOR
STRIX = "Ryzen AI 9 HX 370 (Strix)"

#: How many times as long a machine may take as another of its kind.
SPREAD = 1.9
BASIS = (
    f"range: from a {KRACKAN}, whose constants these are, to a machine of its kind that is "
    f"{SPREAD} times slower (two Ryzen AI 350 with equal DIMMs, FastFlowLM issue 625)"
)

LENGTHS = (512, 1024, 2048, 4096)

#: Milliseconds to the first token of a prompt of `LENGTHS` tokens, on `KRACKAN`: Xilinx/mlir-air,
#: branch perf-history, prefill_sweep_history.ndjson at 15f33a3b, nightly run of 2026-09-14
#: (mlir-air ff95a9b3, Peano 22.0.0.2026090201), verify pass in all cells.
PROMPTS: dict[str, tuple[float, ...]] = {
    "llama-3.2-1b": (292, 483, 925, 2150),
    "llama-3.2-3b": (646, 1146, 2531, 6124),
    "phi4-mini": (748, 1320, 2907, 7008),
    "llama-3.1-8b": (1351, 2517, 5962, 13276),
    "qwen2.5-7b": (2117, 3972, 8029, 19085),
    "qwen3-8b": (1836, 3523, 7131, 15256),
    "gemma3-4b": (1036, 1856, 3639, 7624),
}

#: Prompts on `STRIX`: pull requests #1910 (2026-08-26, the same program) and #1996 (the program of
#: bfloat16 weights), in milliseconds.
STRIX_PROMPTS: dict[str, tuple[float, ...]] = {
    "llama-3.2-1b": (311, 520, 978),
    "qwen3-4b": (1711, 2861, 5886, 13077),
}

CONTEXTS = tuple(1024 << i for i in range(8))

#: Tokens per second of mlir-air's fused decoder at `CONTEXTS`: sweep_history.ndjson, the machine
#: and the night of `PROMPTS`.
TOKENS: dict[str, tuple[float, ...]] = {
    "llama-3.2-1b": (68.44, 63.49, 54.79, 43.15, 30.43, 19.05, 10.92, 5.89),
    "llama-3.2-3b": (28.15, 25.77, 22.09, 17.16, 11.88, 7.36, 4.18, 2.24),
    "llama-3.1-8b": (13.2, 12.57, 11.4, 9.69, 7.44, 5.08, 3.11, 1.75),
    "phi4-mini": (23.57, 21.69, 18.67, 14.62, 10.2, 6.37, 3.63, 1.95),
    "qwen2.5-7b": (13.36, 12.79, 11.8, 10.23, 8.07, 5.68, 3.56, 2.04),
    "qwen3-4b": (20.9, 19.13, 16.39, 12.75, 8.83, 5.47, 3.11, 1.67),
    "qwen3-8b": (12.68, 12.03, 10.86, 9.11, 6.91, 4.65, 2.81, 1.57),
}

#: Weights of these models in billions, without the embedding's rows that a token only looks up.
BILLIONS = {
    "llama-3.2-1b": 1.24, "llama-3.2-3b": 3.21, "llama-3.1-8b": 7.50, "phi4-mini": 3.84,
    "qwen2.5-7b": 7.07, "qwen3-4b": 4.02, "qwen3-8b": 7.57, "gemma3-4b": 3.88,
}  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """A measured speed: tokens per second at a context, or seconds to a prompt's first token."""

    model: str
    phase: Phase
    context: int
    value: float
    machine: str
    source: str


def figures(phase: Phase) -> Iterator[Figure]:
    """All figures of a phase."""
    if phase == "token":
        for model, row in TOKENS.items():
            for context, value in zip(CONTEXTS, row, strict=True):
                source = "mlir-air's fused decoder, 2026-09-14"
                yield Figure(model, phase, context, value, KRACKAN, source)
        return
    for table, machine, source in (
        (PROMPTS, KRACKAN, "mlir-air's prompts, 2026-09-14"),
        (STRIX_PROMPTS, STRIX, "mlir-air's pull requests #1910 and #1996"),
    ):
        for model, row in table.items():
            for tokens, value in zip(LENGTHS, row, strict=False):
                yield Figure(model, phase, tokens, value / 1e3, machine, source)


def nearest(model: str, phase: Phase, context: int, billions: float) -> Figure:
    """The figure of the model, or else of that with the nearest number of weights, whose context is
    the nearest."""

    def distance(figure: Figure) -> tuple[float, float, bool]:
        size = 0.0 if figure.model == model else abs(log(BILLIONS[figure.model] / billions))
        return size, abs(log(figure.context / context)), figure.machine != KRACKAN

    return min(figures(phase), key=distance)


def nearest_words(model: str, phase: Phase, context: int, billions: float) -> str:
    """The nearest figure, which is another program's, in words."""
    figure = nearest(model, phase, context, billions)
    at = f"{figure.context // 1024}k" if figure.context % 1024 == 0 else str(figure.context)
    value = (
        f"{figure.value:g} tokens/s at {at}"
        if phase == "token"
        else f"{figure.value:g} s for a prompt of {at}"
    )
    return f"nearest measured: {figure.model}, {value}, {figure.source}, {figure.machine}"


def range_of(phase: Phase, seconds: float) -> tuple[float, float]:
    """The least and the most of a prediction of `seconds`: tokens per second, or seconds of a
    prompt. One end is the machine whose constants these are, the other one of its kind."""
    slowest = seconds * SPREAD
    return (1 / slowest, 1 / seconds) if phase == "token" else (seconds, slowest)


def range_words(phase: Phase, seconds: float) -> str:
    """The range as tables show it."""
    return "–".join(
        f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in range_of(phase, seconds)
    )
