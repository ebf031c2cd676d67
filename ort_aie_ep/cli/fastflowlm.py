"""Commands for FastFlowLM's files: import-q4nx, export-q4nx."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ort_aie_ep.cli import console
from ort_aie_ep.cli.application import app
from ort_aie_ep.cli.model import HELP, local, ready
from ort_aie_ep.cli.models import tell
from ort_aie_ep.cli.options import takes_options
from ort_aie_ep.compiler.options import GraphOptions


@app.command("import-q4nx")
@takes_options
def import_q4nx_command(
    source: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="model.q4nx from FastFlowLM, or its name on a hub."),
    ],
    destination: Annotated[
        Path, typer.Argument(metavar="DST", help="The new folder; it must not exist yet.")
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="CONFIG", help="The model's config.json. Default: the one beside FILE."
        ),
    ] = None,
    *,
    options: GraphOptions,
) -> None:
    """Turn FastFlowLM weights into a compiled model.

    The command keeps the quantised blocks of the file, and copies the tokenizer's files from
    beside config.json.

    ```
    ort-aie import-q4nx Llama-3.2-1B-NPU2/model.q4nx Llama-3.2-1B-aie
    ort-aie run Llama-3.2-1B-aie "Once upon a time"
    ```
    """
    from ort_aie_ep.compiler.fastflowlm import import_q4nx

    source = local(source).path
    with console.bar("import-q4nx", "bytes", "reading the file") as progress:
        result = import_q4nx(source, destination, config=config, progress=progress, **vars(options))
    tell(result)


@app.command("export-q4nx")
def export_q4nx_command(
    source: Annotated[Path, typer.Argument(metavar="SRC", help=HELP)],
    destination: Annotated[
        Path, typer.Argument(metavar="FILE", help="The new .q4nx file; it must not exist yet.")
    ],
    config: Annotated[
        Path | None,
        typer.Option(metavar="CONFIG", help="The model's config.json. Default: the one in SRC."),
    ] = None,
    quantize: Annotated[
        str | None,
        typer.Option(metavar="q4nx", help="Convert float weights of a source, as compile does."),
    ] = None,
) -> None:
    """Write a model with 4-bit weights as a .q4nx file for FastFlowLM.

    The command keeps the quantised blocks of a compiled model, and copies config.json and the
    tokenizer's files beside the new file, unless they exist there.

    ```
    ort-aie export-q4nx COMPILED MyLlama/model.q4nx --config Llama-3.2-1B/config.json
    ```
    """
    from ort_aie_ep.compiler.fastflowlm import export_q4nx

    with (
        ready(source, compiles=False) as path,
        console.bar("export-q4nx", "bytes", "reading the model") as progress,
    ):
        result = export_q4nx(path, destination, config=config, quantize=quantize, progress=progress)
    console.out.print(
        f"{result.path}: {result.tensors} tensors, {result.bytes / 1e6:.1f} MB",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    if result.beside:
        console.note(f"beside it: {', '.join(result.beside)}")
    if result.kept:
        console.note(f"already there, and left as they are: {', '.join(result.kept)}")
