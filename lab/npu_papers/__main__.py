"""Tables of what others published of models and kernels on NPUs, beside predictions.

    python lab/npu_papers papers        # two papers of 2025: every cell, the fit, goals, power
    python lab/npu_papers mlir-air      # every published cell of 2026, and this library beside them
    python lab/npu_papers kernels       # kernels of this project beside measured ones
    python lab/npu_papers attention     # published attention, divided into launches and scores
    python lab/npu_papers fit           # whether the fitted constants are still those of the fit
    python lab/npu_papers model gemma3-4b --contexts 1024,8192    # the papers' program for a model

`--json` prints the first three and a model as data, `--plot FILE` draws the papers' cells, or a
model. `fit` exits with 1 if a constant is not what the fit gives. These programs are for `npu2`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

if __package__ == "":  # run as a folder
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import RenderableType

from npu_papers import (
    constants,
    judgement,
    kernels,
    mlir_air,
    model,
    plot,
    print_attention,
    print_kernels,
    print_later,
    print_model,
    print_papers,
)
from ort_aie_ep.cli import console
from ort_aie_ep.errors import AieError
from ort_aie_ep.npu.terms.eras import ERAS

PREDICTED = (
    "Predictions are not measured: nothing of this project has run on an NPU yet. Watts are "
    "inferred from what others published."
)


def main(words: Sequence[str] | None = None) -> int:
    """Prints what `words` name; returns the exit code."""
    options = _options(words)
    try:
        if options.plot is not None:
            plot.check_plot()
        return _TABLES[options.table](options)
    except AieError as error:
        console.fail(str(error))
        return 1


def _papers(options: argparse.Namespace) -> int:
    judged = judgement.judge()
    _show(options, judged, print_papers.judgement_tables(judged), PREDICTED, device=model.DEVICE)
    return _plot(options, {name: model.points_of(name) for name in judged.models})


def _mlir_air(options: argparse.Namespace) -> int:
    swept = mlir_air.sweep()
    tables = None if options.json else print_later.sweep_tables(swept)
    _show(options, swept, tables, PREDICTED, device=model.DEVICE)
    return 0


def _kernels(options: argparse.Namespace) -> int:
    compared = kernels.beside()
    _show(options, compared, print_kernels.kernel_table(compared), PREDICTED)
    return 0


def _attention(_: argparse.Namespace) -> int:
    print_attention.print_tables()
    return 0


def _fit(_: argparse.Namespace) -> int:
    return 0 if constants.check() else 1


def _model(options: argparse.Namespace) -> int:
    with console.bar("predict", "tokens") as progress:
        simulation = model.simulate(options.name, options.contexts, progress, ERAS[options.era])
    closing = f"*: a constant was fitted to this value. {PREDICTED}"
    _show(options, simulation, print_model.simulation_tables(simulation), closing)
    return _plot(options, {options.name: simulation.points})


_TABLES: dict[str, Callable[[argparse.Namespace], int]] = {
    "papers": _papers, "mlir-air": _mlir_air, "kernels": _kernels, "attention": _attention,
    "fit": _fit, "model": _model,
}  # fmt: skip


def _show(
    options: argparse.Namespace, report: Any, tables: RenderableType | None, closing: str,
    **settings: object,
) -> None:  # fmt: skip
    if options.json:
        console.print_json(report, **settings)
        return
    console.out.print(tables)
    console.heading(closing)


def _plot(options: argparse.Namespace, drawn: Mapping[str, Sequence[model.Point]]) -> int:
    if options.plot is not None:
        plot.plot(drawn, options.plot)
        console.note(f"written: {options.plot}")
    return 0


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="npu_papers", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    tables = parser.add_subparsers(dest="table", required=True)
    of = {name: tables.add_parser(name) for name in _TABLES}
    for name in ("papers", "mlir-air", "kernels", "model"):
        of[name].add_argument("--json", action="store_true")
    for name in ("papers", "model"):
        of[name].add_argument("--plot", type=Path, metavar="FILE")
    of["model"].add_argument("name")
    of["model"].add_argument("--era", choices=ERAS, default="papers")
    of["model"].add_argument("--contexts", type=_tokens, metavar="N,N")
    parser.set_defaults(plot=None)
    return parser.parse_args(words)


def _tokens(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
