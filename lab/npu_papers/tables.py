"""What others published, as data: the model is calibrated on it and judged by it.

"paper 1" is *Efficient LLM Decoding on Ryzen AI NPUs* (Ryzen AI 5 340), "paper 2" *Mapping Gemma3
onto an Edge Dataflow Architecture* (Ryzen AI 7 350); both are Krackan with DDR5-5600.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Phase = Literal["decode", "prefill"]

CORES = 32  # of flash attention
BLOCK = 64  # queries and keys of its tile

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

#: mlir-air's nightly sweep of 2026-08-22 (commit e972f294), in tokens per second at `CONTEXTS`: C++
#: driver, the template of that context, synthetic data, two
#: weight channels a column. Beyond 4 GiB of cache offsets wrap, so long contexts measure time only.
MLIR_AIR_TOKENS: dict[str, tuple[float, ...]] = {
    "llama-3.2-1b": (68.22, 62.67, 54.64, 42.68, 29.93, 18.72, 10.71, 5.77),
    "llama-3.2-3b": (28.05, 25.63, 21.80, 16.88, 11.63, 7.18, 4.06, 2.17),
    "gemma3-4b": (20.65, 19.27, 17.00, 13.73, 9.94, 6.41, 3.74, 2.04),
    "phi4-mini": (23.39, 21.49, 18.44, 14.38, 9.99, 6.21, 3.53, 1.90),
    "qwen3-8b": (12.61, 11.91, 10.76, 8.99, 6.79, 4.55, 2.75, 1.53),
    "llama-3.1-8b": (13.14, 12.46, 11.33, 9.57, 7.32, 4.98, 3.03, 1.70),
    "qwen2.5-7b": (13.28, 12.69, 11.68, 10.04, 7.86, 5.48, 3.41, 1.95),
    "qwen2.5-3b": (27.03, 24.03, 19.68, 14.48, 9.47, 5.59, 3.08, 1.62),
}

#: Seconds to the first token of a prompt of 2,048 (shorter ones are padded to it), by machine. The
#: night's qwen3-0.6b, 1.7b and 4b have bf16 weights; every program computes with such. Its bf16
#: llama-3.2-3b took 2.79 to 8.86 s within three days and is left out. READMEs of
#: programming_examples/llms state those of Strix, and 824 tokens/s for llama-3.2-3b.
MLIR_AIR_PROMPT = 2048
MLIR_AIR_PROMPTS: dict[str, dict[str, float]] = {
    "Krackan, nightly": {
        "llama-3.2-1b": 0.893, "gemma3-4b": 3.698, "qwen3-8b": 7.179, "qwen3-0.6b": 1.50,
        "qwen3-1.7b": 2.03, "qwen3-4b": 5.36,
    },
    "Strix": {
        "llama-3.2-1b": 0.93, "llama-3.2-3b": MLIR_AIR_PROMPT / 824, "gemma3-4b": 4.5,
        "qwen3-8b": 7.72, "llama-3.1-8b": 6.22,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Latency:
    """A row of flash attention's table: one call, from the least to the most milliseconds."""

    heads: int
    kv_heads: int
    head_dim: int
    tokens: int
    causal: bool
    least: float
    most: float

    @property
    def name(self) -> str:
        """Its shape in words."""
        heads = f"{self.heads} and {self.kv_heads} heads of {self.head_dim}"
        return f"{self.tokens:,} tokens, {heads}{'' if self.causal else ', no mask'}"

    @property
    def seconds(self) -> float:
        """The middle of the range."""
        return (self.least + self.most) / 2e3

    @property
    def launches(self) -> float:
        """Two heads x 256 queries; values of 128 are done in halves, each from the scores on."""
        return self.heads / 2 * self.tokens / 256 * (self.head_dim / BLOCK)

    @property
    def scores(self) -> float:
        """Scores of one core, with those that a mask removes."""
        return self.heads * self.tokens**2 / CORES


FLASH_ATTENTION = (
    Latency(32, 8, 64, 2048, True, 15.4, 16.1),
    Latency(32, 32, 64, 2048, True, 16.9, 16.9),
    Latency(2, 2, 64, 512, False, 0.73, 0.73),
    Latency(12, 6, 64, 512, False, 1.22, 1.22),
    Latency(64, 8, 64, 512, False, 3.79, 3.79),
    Latency(12, 12, 64, 1024, False, 2.36, 2.61),
    Latency(32, 8, 128, 512, False, 4.38, 4.38),
    Latency(28, 4, 128, 512, False, 4.05, 4.05),
    Latency(2, 2, 64, 16384, True, 39.6, 39.6),
    Latency(2, 2, 64, 16384, False, 40.1, 40.1),
    Latency(16, 8, 128, 2048, True, 17.6, 17.6),
    Latency(14, 2, 64, 2048, True, 7.27, 7.27),
    Latency(12, 2, 128, 2048, True, 14.5, 14.5),
    Latency(16, 2, 128, 2048, True, 19.1, 19.1),
    Latency(24, 8, 128, 2048, True, 25.9, 25.9),
    Latency(32, 8, 128, 2048, True, 35.0, 35.0),
)


PAPER1, PAPER2 = "paper 1, Table II", "paper 2, Table 5"
FASTFLOWLM = "FastFlowLM 0.1.3"  # https://docs.fastflowlm.com/benchmarks/llama3_results.html
#: The context of the speeds beside the watts. No source but paper 2 ("average") says which it was.
AT = CONTEXTS[0]


@dataclass(frozen=True)
class Figure:
    """Published watts of the NPU, and of the CPU beside it, while a model runs on the NPU."""

    source: str
    platform: str
    model: str
    phase: Phase
    npu: float
    cpu: float

    @property
    def tokens(self) -> int:
        """New tokens of the work: one, or a prompt of `AT`."""
        return 1 if self.phase == "decode" else AT

    @property
    def measured_seconds(self) -> float | None:
        """The published time of a token or a prompt at `AT`, if there is one."""
        if self.phase == "decode" and self.model in FASTFLOWLM_SPEEDS:
            return 1 / FASTFLOWLM_SPEEDS[self.model][0]
        for row in ROWS:
            if (row.model, row.phase, row.hardware) == (self.model, self.phase, "NPU"):
                return 1 / row.values[0] if self.phase == "decode" else row.values[0]
        return None


KRACKAN5, KRACKAN7 = "Ryzen AI 5 340", "Ryzen AI 7 350"
FIGURES = (
    Figure(PAPER1, KRACKAN5, "llama-3.2-1b", "decode", 1.57, 0.07),
    Figure(PAPER1, KRACKAN5, "llama-3.2-3b", "decode", 1.33, 0.06),
    Figure(PAPER1, KRACKAN5, "llama-3.1-8b", "decode", 1.17, 0.07),
    Figure(FASTFLOWLM, KRACKAN5, "llama-3.2-1b", "prefill", 0.90, 0.31),
    Figure(FASTFLOWLM, KRACKAN5, "llama-3.2-3b", "prefill", 0.90, 0.20),
    Figure(FASTFLOWLM, KRACKAN5, "llama-3.1-8b", "prefill", 0.86, 0.23),
    Figure(PAPER2, KRACKAN7, "gemma3-1b", "decode", 1.8, 2.8),
    Figure(PAPER2, KRACKAN7, "gemma3-4b", "decode", 1.6, 2.9),
    # Table 5 prints the second number under GPU, with 0.0 for the CPU. A run on the NPU does not
    # use the GPU, and the text's gains divide by the sum.
    Figure(PAPER2, KRACKAN7, "gemma3-1b", "prefill", 1.2, 3.1),
    Figure(PAPER2, KRACKAN7, "gemma3-4b", "prefill", 1.1, 3.4),
)


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
