"""What others published for XDNA2, beside what `ort-aie predict` says of this library's plans.

    python lab/npu_papers.py                 # every cell up to 8k
    python lab/npu_papers.py --longest 32768
    python lab/npu_papers.py layers          # a token by whole layers, and operator by operator

Their programs are others, on machines of 2025 and 2026; the predictions have the one set of
constants of `npu/terms/costs.py`. docs/npu-model.md quotes it.
Nothing here was measured by this project.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median

from rich.console import Console
from rich.table import Table

from ort_aie_ep.prediction.composition import Composition, compose
from ort_aie_ep.prediction.ranges import Phase
from ort_aie_ep.prediction.report import in_k, new_table
from ort_aie_ep.prediction.shapes import MODELS, plans_of, shape_of

#: Context lengths of every table's columns, from the left.
CONTEXTS = tuple(1024 << i for i in range(8))
LENGTHS = (512, 1024, 2048, 4096)  # of mlir-air's prompts

Rows = dict[str, tuple[float, ...]]


@dataclass(frozen=True)
class Source:
    """A table: tokens per second, or seconds to the first token, by model at `contexts`."""

    name: str
    phase: Phase
    rows: Rows
    contexts: tuple[int, ...] = CONTEXTS


def _seconds(rates: Rows) -> Rows:
    """Prompts that are published as tokens per second."""
    return {
        model: tuple(tokens / rate for tokens, rate in zip(CONTEXTS, row, strict=False))
        for model, row in rates.items()
    }


def _from_milliseconds(rows: Rows) -> Rows:
    return {model: tuple(value / 1e3 for value in row) for model, row in rows.items()}


#: "paper 1" is *Efficient LLM Decoding on Ryzen AI NPUs* (Ryzen AI 5 340), "paper 2" *Mapping
#: Gemma3 onto an Edge Dataflow Architecture* (Ryzen AI 7 350); both are Krackan with DDR5-5600.
#: FastFlowLM 0.1.3 is https://docs.fastflowlm.com/benchmarks/llama3_results.html; its tables of
#: January 2026 are docs/docs/benchmarks/ of its repository at 8b8399c (Ryzen AI 7 350, power mode
#: "performance"; 0.9.30 for the llamas, 0.9.31 for the others). mlir-air's are of its branch
#: perf-history, on a Ryzen AI 5 PRO 340 (Krackan): nightly sweeps of 2026-08-22 (commit e972f294)
#: and 2026-09-14 (15f33a3b: mlir-air ff95a9b3, Peano 22.0.0.2026090201, verify pass in all cells).
#: Those on a Ryzen AI 9 HX 370 (Strix) are pull requests #1910 (the same program) and #1996 (that
#: of bfloat16 weights).
SOURCES = (
    Source("paper 1, Table III", "token", {
        "qwen3-0.6b": (50.4, 45.3, 36.0, 25.7, 16.4, 9.6),
        "qwen3-1.7b": (27.8, 26.1, 22.7, 18.3, 13.1, 8.3),
        "qwen3-4b": (14.0, 13.3, 11.9, 10.1, 7.7, 5.3),
        "qwen3-8b": (8.1, 7.9, 7.4, 6.6, 5.5, 4.1),
    }),
    Source("paper 2, Tables 3 and 4", "token", {
        "gemma3-1b": (34.3, 33.7, 32.6, 31.4, 28.3, 23.1),
        "gemma3-4b": (14.4, 14.4, 14.1, 13.7, 13.0, 11.9, 10.8, 9.2),
    }),
    Source("paper 2, Tables 1 and 2", "prompt", {
        "gemma3-1b": (1.02, 1.64, 2.7, 4.9, 9.74, 21),
        "gemma3-4b": (1.98, 3.27, 5.82, 11.1, 22.9, 50.9),
    }),
    Source("FastFlowLM 0.1.3", "token", {
        "llama-3.2-1b": (36.7, 35.8, 33.2, 29.6, 24.0, 17.7, 11.5, 6.8),
        "llama-3.2-3b": (16.1, 15.4, 14.3, 12.4, 9.9, 7.0, 4.4, 2.6),
        "llama-3.1-8b": (7.6, 7.4, 7.1, 6.5, 5.7, 4.4, 3.1, 2.0),
    }),
    Source("FastFlowLM, January 2026", "token", {
        "llama-3.2-1b": (64.5, 62.2, 58.9, 53.9, 45.5, 35.0, 24.1, 13.6),
        "llama-3.2-3b": (26.3, 25.5, 24.1, 21.7, 18.0, 13.6, 9.0),
        "llama-3.1-8b": (12.8, 12.6, 12.2, 11.5, 10.2, 8.5),
        "qwen3-0.6b": (66.5, 57.5, 44.5, 31.0, 19.6, 14.1),
        "qwen3-1.7b": (40.2, 35.8, 30.8, 23.7, 16.4, 12.5),
        "qwen3-4b": (19.6, 18.1, 16.3, 13.7, 10.6, 8.5),
        "qwen3-8b": (11.9, 11.5, 11.1, 10.4, 8.7, 7.2),
        "gemma3-1b": (41.1, 40.5, 39.5, 37.3, 33.6, 27.9),
        "gemma3-4b": (18.2, 18.0, 17.8, 17.3, 16.3, 14.8, 13.2, 11.2),
    }),
    Source("FastFlowLM, January 2026", "prompt", _seconds({
        "llama-3.2-1b": (1686, 2136, 2339, 2212, 1706, 1157),
        "llama-3.2-3b": (766, 910, 991, 933, 721, 500),
        "llama-3.1-8b": (403, 472, 495, 467, 381, 281),
        "qwen3-0.6b": (1494, 2003, 2165, 1981, 1485, 907),
        "qwen3-1.7b": (956, 1263, 1434, 1411, 1143, 768),
        "qwen3-4b": (509, 582, 615, 576, 448, 303),
        "qwen3-8b": (357, 435, 457, 442, 367, 260),
        "gemma3-1b": (1004, 1321, 1546, 1720, 1785, 1755),
        "gemma3-4b": (528, 654, 771, 881, 936, 926),
    })),
    Source("mlir-air, 2026-08-22", "token", {
        "gemma3-4b": (20.65, 19.27, 17.00, 13.73, 9.94, 6.41, 3.74, 2.04),
    }),
    Source("mlir-air, 2026-09-14", "token", {
        "llama-3.2-1b": (68.44, 63.49, 54.79, 43.15, 30.43, 19.05, 10.92, 5.89),
        "llama-3.2-3b": (28.15, 25.77, 22.09, 17.16, 11.88, 7.36, 4.18, 2.24),
        "llama-3.1-8b": (13.2, 12.57, 11.4, 9.69, 7.44, 5.08, 3.11, 1.75),
        "qwen3-4b": (20.9, 19.13, 16.39, 12.75, 8.83, 5.47, 3.11, 1.67),
        "qwen3-8b": (12.68, 12.03, 10.86, 9.11, 6.91, 4.65, 2.81, 1.57),
    }),
    Source("mlir-air, 2026-09-14", "prompt", _from_milliseconds({
        "llama-3.2-1b": (292, 483, 925, 2150),
        "llama-3.2-3b": (646, 1146, 2531, 6124),
        "llama-3.1-8b": (1351, 2517, 5962, 13276),
        "qwen3-8b": (1836, 3523, 7131, 15256),
        "gemma3-4b": (1036, 1856, 3639, 7624),
    }), LENGTHS),
    Source("mlir-air on a Strix", "prompt", _from_milliseconds({
        "llama-3.2-1b": (311, 520, 978),
        "qwen3-4b": (1711, 2861, 5886, 13077),
    }), LENGTHS),
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """A published value, and the predicted one in the same unit."""

    model: str
    context: int
    published: float
    predicted: float


@cache
def predicted(model: str, phase: Phase, context: int, layers: bool = True) -> Composition:
    """A token, or a prompt, of a model's plan."""
    tokens = 1 if phase == "token" else context
    return compose(plans_of(shape_of(model)), tokens, context, fused_layers=layers)


def cells(source: Source, longest: int) -> Iterator[Cell]:
    """The cells of a table up to a context, of models that the predictions cover."""
    for model, row in source.rows.items():
        for context, value in zip(source.contexts, row, strict=False):
            if model in MODELS and context <= min(longest, shape_of(model).context):
                seconds = predicted(model, source.phase, context).timing.seconds
                yield Cell(
                    model, context, value, 1 / seconds if source.phase == "token" else seconds
                )


def table_of(source: Source, found: Sequence[Cell]) -> Table:
    """A table with, for each model, what is published, what is predicted, and the difference."""
    unit = "tokens/s" if source.phase == "token" else "seconds to the first token"
    contexts = sorted({cell.context for cell in found})
    table = new_table("model", "", *map(in_k, contexts), title=f"{source.name}: {unit}")
    for model in dict.fromkeys(cell.model for cell in found):
        row = {cell.context: cell for cell in found if cell.model == model}

        def values(
            name: str, words: dict[int, str], first: str = "", contexts: list[int] = contexts
        ) -> tuple[str, ...]:
            return (first, name, *(words.get(context, "") for context in contexts))

        table.add_row(
            *values("published", {c: f"{x.published:.3g}" for c, x in row.items()}, model)
        )
        table.add_row(*values("predicted", {c: f"{x.predicted:.3g}" for c, x in row.items()}))
        table.add_row(
            *values("", {c: f"{x.predicted / x.published - 1:+.0%}" for c, x in row.items()})
        )
    return table


def print_published(console: Console, longest: int) -> None:
    """Every table, then their differences."""
    summary = new_table(
        "source", "of", "cells", "median difference", "least", "most",
        title="predicted against published: relative differences",
    )  # fmt: skip
    for source in SOURCES:
        found = list(cells(source, longest))
        console.print(table_of(source, found))
        differences = [cell.predicted / cell.published - 1 for cell in found]
        ends = (median(differences), min(differences), max(differences))
        of = "tokens" if source.phase == "token" else "prompts"
        summary.add_row(source.name, of, str(len(found)), *(f"{value:+.0%}" for value in ends))
    console.print(summary)


def print_layers(console: Console) -> None:
    """What a token at 1k gains by running on the overlay `fused_layer`."""
    table = new_table(
        "model", "fused_layer, tokens/s", "runs", "decode, tokens/s", "runs", "less",
        title="a token at 1k by whole layers, and operator by operator",
    )  # fmt: skip
    for model in MODELS:
        whole, apart = (predicted(model, "token", 1024, layers) for layers in (True, False))
        if whole.layers_refused:
            table.add_row(model, "–", "–", f"{1 / apart.timing.seconds:.1f}",
                          str(apart.timing.runs), "–")  # fmt: skip
            continue
        less = 1 - whole.timing.seconds / apart.timing.seconds
        table.add_row(
            model,
            *(
                value
                for one in (whole, apart)
                for value in (f"{1 / one.timing.seconds:.1f}", str(one.timing.runs))
            ),
            f"{less:.1%}",
        )
    console.print(table)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="?", choices=["published", "layers"], default="published")
    parser.add_argument("--longest", type=int, default=8192, help="context (default: 8192)")
    options = parser.parse_args()
    console = Console(width=120)
    if options.what == "layers":
        print_layers(console)
    else:
        print_published(console, options.longest)


if __name__ == "__main__":
    main()
