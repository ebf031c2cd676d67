"""The command `predict`: predicts speed on the NPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ort_aie_ep.cli import console
from ort_aie_ep.cli.application import app
from ort_aie_ep.cli.model import ready
from ort_aie_ep.cli.options import Json
from ort_aie_ep.hub.names import find_name

if TYPE_CHECKING:
    from ort_aie_ep.prediction.simulation import PlanSimulation

_PREDICTED = "Predictions are not measured: nothing of this project has run on an NPU yet."


@app.command("predict")
def predict_command(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A compiled model, or a shape such as llama-3.2-1b."),
    ],
    contexts: Annotated[
        str | None,
        typer.Option(
            metavar="N,N", help="Context lengths in tokens. Default: 1024,2048,4096,8192."
        ),
    ] = None,
    group: Annotated[
        int,
        typer.Option(
            help="In-features that share a scale: 32, 64, 128 or 256. Only if MODEL is a shape."
        ),
    ] = 32,
    symmetric: Annotated[
        bool, typer.Option("--symmetric", help="Weights without minima. Only if MODEL is a shape.")
    ] = False,
    json: Json = False,
) -> None:
    """Predict speed on an NPU of 8 columns (npu2) from the costs of the designs.

    You do not need an NPU. The command predicts the submissions, runs, bytes and seconds of the
    steps of a compiled model, or of a model of a known shape:

    ```
    ort-aie predict compiled/llama
    ort-aie predict llama-3.2-1b
    ort-aie predict gemma3-4b --contexts 1024,32768
    ort-aie predict llama-3.2-1b --group 128 --symmetric
    ```
    """
    from ort_aie_ep import prediction as performance
    from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm

    form = BlockForm(4, group, not symmetric)
    known = model in performance.MODELS
    compiled = not known and (Path(model).exists() or find_name(model) is not None)
    if form != SHIPPING and compiled:
        raise typer.BadParameter(
            "--group and --symmetric are for shapes: a compiled model has its own form of weights"
        )
    if compiled:
        _predict_compiled(Path(model), contexts, json=json)
    else:
        with console.bar("predict", "tokens") as progress:
            simulation = performance.simulate(model, _tokens(contexts), progress, form)
        _show(simulation, json=json)


def _predict_compiled(path: Path, contexts: str | None, *, json: bool) -> None:
    from ort_aie_ep import prediction as performance
    from ort_aie_ep.prediction.compiled import read_plans

    with (
        ready(path, target="xrt") as model,
        console.bar("predict", "tokens", "reading the model") as progress,
    ):
        read = read_plans(model)
        simulation = performance.simulate_plans(
            read.model, read.plans, read.positions, _tokens(contexts), progress
        )
    _show(simulation, json=json)


def _show(simulation: PlanSimulation, *, json: bool) -> None:
    from ort_aie_ep.prediction.report import plan_tables

    if json:
        console.print_json(simulation)
    else:
        console.out.print(plan_tables(simulation))
        console.heading(_PREDICTED)


def _tokens(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a list of token counts such as 1024,2048"
        ) from None
