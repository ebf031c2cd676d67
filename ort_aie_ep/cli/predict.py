"""The command `predict`: predicts speed on the NPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ort_aie_ep.cli import console
from ort_aie_ep.cli.application import app
from ort_aie_ep.cli.model import ready
from ort_aie_ep.cli.options import Era, EraName, Json
from ort_aie_ep.errors import AieError
from ort_aie_ep.hub.names import find_name

if TYPE_CHECKING:
    from ort_aie_ep.npu.vocabulary.eras import Era as Constants

_PREDICTED = (
    "Predictions are not measured: nothing of this project has run on an NPU yet. Watts are "
    "inferred from what others published."
)


@app.command("predict")
def predict_command(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A compiled model, or a shape such as llama-3.2-1b."),
    ] = None,
    device: Annotated[str, typer.Option(help="The NPU, with 8 columns of AIE2P.")] = "npu2",
    contexts: Annotated[
        str | None,
        typer.Option(
            metavar="N,N", help="Context lengths in tokens. Default: 1k, 2k, 4k and so on."
        ),
    ] = None,
    papers: Annotated[
        bool, typer.Option("--papers", help="Predict every published cell of the era instead.")
    ] = False,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Compare kernels with published ones instead.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the prediction to this file (.png, .svg or .pdf)."),
    ] = None,
    era: Era = EraName.papers,
    group: Annotated[
        int,
        typer.Option(
            help="In-features that share a scale, for MODEL as a name: 32, 64, 128 or 256."
        ),
    ] = 32,
    symmetric: Annotated[
        bool, typer.Option("--symmetric", help="Weights without minima, for MODEL as a name.")
    ] = False,
    json: Json = False,
) -> None:
    """Predict speed on an NPU from the costs of the designs.

    You do not need an NPU. If MODEL is a compiled model, the command reads its plan and predicts
    the submissions, runs, bytes and seconds of its steps. If MODEL is a name, the command does the
    same for a model of that shape. It then predicts the programs of two papers, and shows the
    papers' measurements and the error of each prediction:

    ```
    ort-aie predict compiled/llama
    ort-aie predict llama-3.2-1b
    ort-aie predict gemma3-4b --device npu2 --contexts 1024,32768
    ort-aie predict llama-3.2-1b --era mlir-air
    ort-aie predict llama-3.2-1b --group 128 --symmetric
    ort-aie predict --papers --plot npu-model.png
    ort-aie predict --papers --era mlir-air
    ort-aie predict --kernels
    ```
    """
    from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
    from ort_aie_ep.npu import speed as performance
    from ort_aie_ep.npu.vocabulary.eras import ERAS

    if [model is not None, papers, kernels].count(True) != 1:
        raise typer.BadParameter("give MODEL, --papers or --kernels")
    if model is None and contexts is not None:
        raise typer.BadParameter("--contexts belongs to MODEL: --papers uses the papers' contexts")
    if kernels and plot is not None:
        raise typer.BadParameter("--plot draws speeds, not --kernels")
    chosen = ERAS[era.value]
    if plot is not None:
        from ort_aie_ep.npu.speed.plot import check_plot

        check_plot()
    from ort_aie_ep.npu.speed import report as tables

    performance.machine(device, chosen)  # checks the device
    if kernels:
        compared = performance.beside()
        if json:
            console.print_json(compared)
        else:
            console.out.print(tables.kernel_table(compared))
            console.heading(_PREDICTED)
        return
    form = BlockForm(4, group, not symmetric)
    given = model is not None and model not in performance.MODELS
    compiled = given and (Path(str(model)).exists() or find_name(str(model)) is not None)
    if form != SHIPPING and (model is None or compiled):
        raise typer.BadParameter(
            "--group and --symmetric belong to a name: compiled models have their own forms"
        )
    if model is not None and compiled:
        if plot is not None:
            raise typer.BadParameter(
                "--plot works with a name or with --papers, not with a compiled model"
            )
        _simulate_compiled(Path(model), device, contexts, chosen, json=json)
        return
    if model is None and era == EraName.mlir_air:
        if plot is not None:
            raise typer.BadParameter("--plot draws a model, or the cells of the papers' era")
        swept = performance.sweep()
        if json:
            console.print_json(swept, device=device)
        else:
            console.out.print(tables.sweep_tables(swept))
            console.heading(_PREDICTED)
        return
    if model is None:
        with console.bar("predict"):
            judged = performance.judge(device)
            drawn = {name: performance.points_of(name, device) for name in judged.models}
        if json:
            console.print_json(judged, device=device)
        else:
            console.out.print(tables.judgement_tables(judged))
            console.heading(_PREDICTED)
    else:
        with console.bar("predict", "tokens") as progress:
            simulation = performance.simulate(
                model, device, _tokens(contexts), progress, chosen, form
            )
        drawn = {model: simulation.points}
        if json:
            console.print_json(simulation)
        else:
            console.out.print(tables.simulation_tables(simulation))
            console.heading(f"*: a constant was fitted to this value. {_PREDICTED}")
            console.next_command("ort-aie", "predict", "--papers")
    if plot is not None:
        from ort_aie_ep.npu.speed.plot import plot as draw

        try:
            draw(drawn, plot)
        except (OSError, ValueError) as error:
            raise AieError(f"{plot} cannot be written: {error}") from None
        console.note(f"written: {plot}")


def _simulate_compiled(
    path: Path, device: str, contexts: str | None, era: Constants, *, json: bool
) -> None:
    from ort_aie_ep.explain.plan_steps import read_plans
    from ort_aie_ep.npu import speed as performance
    from ort_aie_ep.npu.speed import report as tables

    with ready(path) as model, console.bar("predict", "tokens", "reading the model") as progress:
        read = read_plans(model)
        simulation = performance.simulate_plans(
            read.model, read.plans, read.positions, device, _tokens(contexts), progress, era
        )
    if json:
        console.print_json(simulation)
    else:
        console.out.print(tables.plan_tables(simulation))
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
