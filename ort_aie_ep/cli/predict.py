"""The command `predict`: predicts speed on the NPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ort_aie_ep.cli import console
from ort_aie_ep.cli.application import app
from ort_aie_ep.cli.model import ready
from ort_aie_ep.cli.options import EraName, Json
from ort_aie_ep.errors import AieError
from ort_aie_ep.hub.names import find_name

if TYPE_CHECKING:
    from ort_aie_ep.npu.terms.eras import Era
    from ort_aie_ep.prediction.simulation import PlanSimulation

_PREDICTED = (
    "Predictions are not measured: nothing of this project has run on an NPU yet. Watts are "
    "inferred from what others published."
)
#: The program of a checkout that prints what others published, and its name for an era's tables.
_PAPERS = Path(__file__).resolve().parents[2] / "lab" / "npu_papers"
_TABLES = {"papers": "papers", "mlir-air": "mlir-air", "silicon-2026": "mlir-air"}


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
            metavar="N,N", help="Context lengths in tokens. Default: 1024,2048,4096,8192."
        ),
    ] = None,
    papers: Annotated[
        bool,
        typer.Option("--papers", help="In a checkout: the published cells of the era instead."),
    ] = False,
    kernels: Annotated[
        bool,
        typer.Option("--kernels", help="In a checkout: kernels beside published ones instead."),
    ] = False,
    era: Annotated[
        EraName | None,
        typer.Option(
            help="Whose measured costs: of the papers (2025), or of mlir-air on a host in the "
            "profile performance (2026), silicon-2026 with the clock and kernels that its prompts "
            "imply. Default: silicon-2026; for --papers the papers."
        ),
    ] = None,
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
    same for a model of that shape:

    ```
    ort-aie predict compiled/llama
    ort-aie predict llama-3.2-1b
    ort-aie predict gemma3-4b --contexts 1024,32768
    ort-aie predict llama-3.2-1b --era papers
    ort-aie predict llama-3.2-1b --group 128 --symmetric
    ```
    """
    from ort_aie_ep import prediction as performance
    from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
    from ort_aie_ep.npu.terms.eras import ERAS

    if [model is not None, papers, kernels].count(True) != 1:
        raise typer.BadParameter("give MODEL, --papers or --kernels")
    if model is None and contexts is not None:
        raise typer.BadParameter("--contexts belongs to MODEL: --papers uses the papers' contexts")
    form = BlockForm(4, group, not symmetric)
    given = model is not None and model not in performance.MODELS
    compiled = given and (Path(str(model)).exists() or find_name(str(model)) is not None)
    if form != SHIPPING and (model is None or compiled):
        raise typer.BadParameter(
            "--group and --symmetric belong to a name: compiled models have their own forms"
        )
    chosen = ERAS[(era or (EraName.papers if model is None else EraName.silicon_2026)).value]
    performance.machine(device, chosen)  # checks the device
    if model is None:
        _print_published("kernels" if kernels else _TABLES[chosen.name], json=json)
    elif compiled:
        _predict_compiled(Path(model), device, contexts, chosen, json=json)
    else:
        with console.bar("predict", "tokens") as progress:
            simulation = performance.simulate(
                model, device, _tokens(contexts), progress, chosen, form
            )
        _show(simulation, json=json)


def _print_published(table: str, *, json: bool) -> None:
    """Lets the program of lab print what others published, and ends with its exit code."""
    if not _PAPERS.is_dir():
        raise AieError(
            "--papers and --kernels need this project's sources: an installed package does not "
            "have lab/npu_papers, which prints these tables"
        )
    words = [sys.executable, str(_PAPERS), table, *(["--json"] if json else [])]
    raise typer.Exit(subprocess.run(words, check=False).returncode)


def _predict_compiled(
    path: Path, device: str, contexts: str | None, era: Era, *, json: bool
) -> None:
    from ort_aie_ep import prediction as performance
    from ort_aie_ep.prediction.compiled import read_plans

    with ready(path) as model, console.bar("predict", "tokens", "reading the model") as progress:
        read = read_plans(model)
        simulation = performance.simulate_plans(
            read.model, read.plans, read.positions, device, _tokens(contexts), progress, era
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
