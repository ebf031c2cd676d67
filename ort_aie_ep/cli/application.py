"""The application that all commands register with, and what they have in common."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ort_aie_ep import __version__
from ort_aie_ep.cli import console
from ort_aie_ep.errors import AieError
from ort_aie_ep.requirements import GET_RUNTIME, RUNTIME

# The order in which `--help` lists them, which is the order in which a new user needs them.
_ORDER = (
    "demo",
    "compile",
    "import-q4nx",
    "export-q4nx",
    "run",
    "serve",
    "batch",
    "explain",
    "bench",
    "accuracy",
    "cache",
    "doctor",
    "tune",
    "synth",
    "simulate",
    "kernels",
    "validate",
    "first-day",
    "package-overlay",
)


class _Commands(TyperGroup):
    """Turns a user's mistake into one line and exit code 1."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=_ORDER.index)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except AieError as error:
            console.fail(str(error))
        except ModuleNotFoundError as error:
            if error.name != RUNTIME:
                raise
            console.fail(f"this command needs ONNX Runtime, which is not installed: {GET_RUNTIME}")
        raise typer.Exit(1)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Compile and run int4 language models in ONNX Runtime, with aie.* operators.

    Start with `ort-aie demo`, or with a model that onnxruntime-genai's builder wrote:

    ```
    ort-aie compile MODEL COMPILED
    ort-aie run COMPILED "def main(argv):"
    ort-aie bench MODEL
    ```

    `ort-aie COMMAND --help` explains each command. Exit codes: 0 for success, 1 for an error that
    the command reports, 2 for wrong usage. Results go to stdout. Progress, notes and errors go to
    stderr.
    """
