"""The papers' tables as data: the performance model is calibrated on them and judged by them.

"paper 1" is *Efficient LLM Decoding on Ryzen AI NPUs* (Ryzen AI 5 340), "paper 2" *Mapping Gemma3
onto an Edge Dataflow Architecture* (Ryzen AI 7 350); both are Krackan with DDR5-5600.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Phase = Literal["decode", "prefill"]

#: Context lengths of every table's columns, from the left.
CONTEXTS = tuple(1024 << i for i in range(8))


@dataclass(frozen=True)
class Row:
    """A row of a table: values at `CONTEXTS`, as many as printed.

    Decode rows are tokens per second, prefill rows the time to the first token in seconds.
    """

    paper: int
    table: str
    phase: Phase
    model: str
    hardware: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class Cell:
    """One measurement of a paper. `calibrates`: the model's constants were fitted to it."""

    paper: int
    table: str
    phase: Phase
    model: str
    context: int
    value: float
    calibrates: bool


def _gemma3(table: str, phase: Phase, model: str, *rows: tuple[float, ...]) -> tuple[Row, ...]:
    hardware = ("NPU", "iGPU", "CPU")
    return tuple(Row(2, table, phase, model, h, v) for h, v in zip(hardware, rows, strict=True))


ROWS: tuple[Row, ...] = (
    Row(1, "III", "decode", "qwen3-0.6b", "NPU", (50.4, 45.3, 36.0, 25.7, 16.4, 9.6)),
    Row(1, "III", "decode", "qwen3-1.7b", "NPU", (27.8, 26.1, 22.7, 18.3, 13.1, 8.3)),
    Row(1, "III", "decode", "qwen3-4b", "NPU", (14.0, 13.3, 11.9, 10.1, 7.7, 5.3)),
    Row(1, "III", "decode", "qwen3-8b", "NPU", (8.1, 7.9, 7.4, 6.6, 5.5, 4.1)),
    *_gemma3(
        "1", "prefill", "gemma3-1b",
        (1.02, 1.64, 2.7, 4.9, 9.74, 21),
        (0.51, 1.14, 2.61, 6.64, 21.3, 95.1),
        (4.06, 8.06, 17.2, 36.2, 75.5, 165),
    ),
    *_gemma3(
        "2", "prefill", "gemma3-4b",
        (1.98, 3.27, 5.82, 11.1, 22.9, 50.9),
        (2.05, 4.26, 9.54, 23.8, 71.5, 265),
        (20.3, 42.4, 85.4, 176, 766, 832),
    ),
    *_gemma3(
        "3", "decode", "gemma3-1b",
        (34.3, 33.7, 32.6, 31.4, 28.3, 23.1),
        (38.0, 53.9, 42.3, 33.5, 25.0, 13.6),
        (41.9, 40.8, 41.7, 40.2, 38.1, 33.8),
    ),
    *_gemma3(
        "4", "decode", "gemma3-4b",
        (14.4, 14.4, 14.1, 13.7, 13.0, 11.9, 10.8, 9.2),
        (18.6, 17.4, 15.3, 12.6, 9.2, 5.9, 3.3, 1.9),
        (14.6, 13.5, 13.9, 13.0, 11.4, 10.8, 7.5, 4.1),
    ),
)  # fmt: skip

#: Paper 2, section 3.2: seconds to the first token for a picture of 4,096 patches.
PICTURES = {"gemma3-4b": {"NPU": 4.41, "iGPU": 7.45, "CPU": 38.55}}

#: Paper 1, Table I: its NPU's speed over other backends' at `CONTEXTS`. The llama models' own
#: speeds are only in a figure, so these ratios are their only published numbers.
SPEEDUPS: dict[str, dict[str, tuple[float, ...]]] = {
    "llama-3.2-1b": {
        "Ryzen AI 1.4": (2.0, 2.4, 3.2, 4.5, 6.3, 8.6, 10.7, 12.3),
        "iGPU": (1.3, 1.9, 3.0, 4.9, 7.6, 10.8, 13.9, 16.2),
        "CPU": (0.7, 0.7, 0.8, 0.9, 1.0, 1.2, 1.4, 1.5),
    },
    "llama-3.2-3b": {
        "Ryzen AI 1.4": (1.8, 2.5, 3.5, 5.2, 7.6, 10.3, 12.6, 14.2),
        "iGPU": (0.7, 0.8, 1.0, 1.4, 1.8, 2.3, 2.8, 3.1),
        "CPU": (0.7, 0.7, 0.8, 0.9, 1.1, 1.2, 1.3, 1.4),
    },
    "llama-3.1-8b": {
        "Ryzen AI 1.4": (1.2, 1.6, 2.3, 3.4, 5.3, 7.8, 10.7, 13.3),
        "iGPU": (0.7, 0.8, 0.9, 1.2, 1.7, 2.3, 3.0, 3.7),
        "CPU": (0.7, 1.0, 0.9, 1.0, 1.0, 1.3, 1.6, 1.8),
    },
}

#: FastFlowLM 0.1.3 (https://docs.fastflowlm.com/benchmarks/llama3_results.html): tokens per second
#: at `CONTEXTS`. Its other columns give the ratios of paper 1's Table I within their rounding.
FASTFLOWLM_SPEEDS: dict[str, tuple[float, ...]] = {
    "llama-3.2-1b": (36.7, 35.8, 33.2, 29.6, 24.0, 17.7, 11.5, 6.8),
    "llama-3.2-3b": (16.1, 15.4, 14.3, 12.4, 9.9, 7.0, 4.4, 2.6),
    "llama-3.1-8b": (7.6, 7.4, 7.1, 6.5, 5.7, 4.4, 3.1, 2.0),
}

#: FastFlowLM's own tables of January 2026 for a Ryzen AI 7 350 with 32 GB, NPU in its power mode
#: "performance" (docs/docs/benchmarks/ of its repository at 8b8399c; 0.9.30 for the llamas, 0.9.31
#: for the others): tokens per second at `CONTEXTS`, of tokens and of prompts. Earlier releases are
#: left out: 0.9.21 has 62.7, 26.2 and 12.7 for the llamas' tokens at 1k.
FASTFLOWLM_2026_TOKENS: dict[str, tuple[float, ...]] = {
    "llama-3.2-1b": (64.5, 62.2, 58.9, 53.9, 45.5, 35.0, 24.1, 13.6),
    "llama-3.2-3b": (26.3, 25.5, 24.1, 21.7, 18.0, 13.6, 9.0),
    "llama-3.1-8b": (12.8, 12.6, 12.2, 11.5, 10.2, 8.5),
    "qwen3-0.6b": (66.5, 57.5, 44.5, 31.0, 19.6, 14.1),
    "qwen3-1.7b": (40.2, 35.8, 30.8, 23.7, 16.4, 12.5),
    "qwen3-4b": (19.6, 18.1, 16.3, 13.7, 10.6, 8.5),
    "qwen3-8b": (11.9, 11.5, 11.1, 10.4, 8.7, 7.2),
    "gemma3-1b": (41.1, 40.5, 39.5, 37.3, 33.6, 27.9),
    "gemma3-4b": (18.2, 18.0, 17.8, 17.3, 16.3, 14.8, 13.2, 11.2),
}
FASTFLOWLM_2026_PROMPTS: dict[str, tuple[float, ...]] = {
    "llama-3.2-1b": (1686, 2136, 2339, 2212, 1706, 1157),
    "llama-3.2-3b": (766, 910, 991, 933, 721, 500),
    "llama-3.1-8b": (403, 472, 495, 467, 381, 281),
    "qwen3-0.6b": (1494, 2003, 2165, 1981, 1485, 907),
    "qwen3-1.7b": (956, 1263, 1434, 1411, 1143, 768),
    "qwen3-4b": (509, 582, 615, 576, 448, 303),
    "qwen3-8b": (357, 435, 457, 442, 367, 260),
    "gemma3-1b": (1004, 1321, 1546, 1720, 1785, 1755),
    "gemma3-4b": (528, 654, 771, 881, 936, 926),
}

#: Paper 2, section 3.1.2: a bare bf16 GEMM of 2048 x 2048 x 2048 by megatile, in FLOP/s.
BARE_GEMM: dict[str, float] = {
    "128x512x512": 5.9e12, "256x256x512": 12.0e12, "512x512x512": 13.7e12,
}  # fmt: skip


def cells() -> Iterator[Cell]:
    """Every measurement of the papers' NPU rows.

    The constants are fitted to column 1k of paper 1's Table III and of paper 2's Table 1; all other
    cells are for judging.
    """
    for row in ROWS:
        if row.hardware != "NPU":
            continue
        for context, value in zip(CONTEXTS, row.values, strict=False):
            fitted = context == CONTEXTS[0] and (row.paper, row.table) in {(1, "III"), (2, "1")}
            yield Cell(row.paper, row.table, row.phase, row.model, context, value, fitted)


def others(model: str, phase: Phase) -> dict[str, tuple[float, ...]]:
    """Rows of other hardware for a model: name to values at `CONTEXTS`."""
    return {
        row.hardware: row.values
        for row in ROWS
        if (row.model, row.phase) == (model, phase) and row.hardware != "NPU"
    }
