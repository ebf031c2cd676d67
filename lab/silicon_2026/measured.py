"""What others measured on XDNA2 in 2026: prompts and tokens of whole models.

Nothing here was measured by this project. `PROMPTS` is the table by which `program` is judged:
Xilinx/mlir-air, branch perf-history, prefill_sweep_history.ndjson at 15f33a3b, nightly run of
2026-09-14 (mlir-air ff95a9b3, Peano 22.0.0.2026090201), verify pass in all cells.
"""

from __future__ import annotations

from dataclasses import dataclass

KRACKAN = "Ryzen AI 5 PRO 340 (Krackan)"
STRIX = "Ryzen AI 9 HX 370 (Strix)"
LENGTHS = (512, 1024, 2048, 4096)

#: Milliseconds to the first token of a prompt of `LENGTHS` tokens.
PROMPTS: dict[str, tuple[float, ...]] = {
    "llama-3.2-1b": (292, 483, 925, 2150),
    "llama-3.2-3b": (646, 1146, 2531, 6124),
    "phi4-mini": (748, 1320, 2907, 7008),
    "llama-3.1-8b": (1351, 2517, 5962, 13276),
    "qwen2.5-7b": (2117, 3972, 8029, 19085),
    "qwen3-8b": (1836, 3523, 7131, 15256),
    "gemma3-4b": (1036, 1856, 3639, 7624),
}

#: The same table's hybrid, whose convolutions are not composed here. Its 4k cell (81.9 s) is of
#: another path and is left out, as in the table of 31.
HYBRID: dict[str, tuple[float, ...]] = {"lfm2-1.2b": (399, 617, 1087)}

#: Prompts on another machine: pull requests #1910 (2026-08-26, the same program) and #1996 (the
#: program of bfloat16 weights), in milliseconds.
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


@dataclass(frozen=True)
class Cell:
    """A measured prompt: `tokens`, seconds to the first token."""

    model: str
    tokens: int
    seconds: float


def cells(table: dict[str, tuple[float, ...]]) -> tuple[Cell, ...]:
    """The cells of a table of prompts, model by model."""
    return tuple(
        Cell(model, tokens, value / 1e3)
        for model, row in table.items()
        for tokens, value in zip(LENGTHS, row, strict=False)
    )
