"""The application that all commands register with, and what they have in common."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ort_aie_ep import __version__
from ort_aie_ep.cli import console
from ort_aie_ep.disk import ROOM
from ort_aie_ep.errors import AieError
from ort_aie_ep.requirements import RUNTIME, install_line

# As `--help` lists them: in each group, in the order in which a new user needs them.
_GROUPS = {
    "Every day": ("demo", "chat", "run", "serve", "batch", "compile", "explain", "doctor"),
    "Models": ("pull", "list", "show", "rm", "cache", "import-q4nx", "export-q4nx", "synth"),
    "Measuring": ("bench", "accuracy", "tune", "predict"),
    "NPU developers": ("kernels", "validate", "package-overlay"),
}
_GROUP_OF = {command: group for group, commands in _GROUPS.items() for command in commands}
# Earlier names, which still work, and those that other programs have.
_RENAMED = {"simulate": "predict", "ls": "list"}


class _Commands(TyperGroup):
    """Turns a user's mistake, and what the system refuses, into one line and exit code 1."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **settings: Any) -> Any:
        # A terminal's encoding may lack characters of tables and of models' texts, and no encoding
        # has those of file names that are not UTF-8.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            for word in sys.argv[1:] if args is None else args:
                _require_utf8(word)
            return super().main(args, *rest, **settings)
        except AieError as error:
            message = str(error)
        except OSError as error:
            message = refused(error)
        except UnicodeError as error:
            message = f"a text or a file is not UTF-8: {error}"
        with contextlib.suppress(OSError):  # stderr may be what is full
            console.fail(message)
        sys.exit(1)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, _RENAMED.get(cmd_name, cmd_name))
        if command is not None:
            command.rich_help_panel = _GROUP_OF[str(command.name)]  # type: ignore[attr-defined]
        return _without_flag_types(command, ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _without_flag_types(self, ctx)
        super().format_help(ctx, formatter)

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=list(_GROUP_OF).index)

    def invoke(self, ctx: Any) -> Any:
        try:
            with _plain_words():
                result = super().invoke(ctx)
            sys.stdout.flush()  # what it refuses is told here, not by Python at its end
            return result
        except AieError as error:
            console.fail(str(error))
        except ModuleNotFoundError as error:
            if error.name != RUNTIME:
                raise
            get = install_line([RUNTIME])
            console.fail(f"this command needs ONNX Runtime, which is not installed: {get}")
        raise typer.Exit(1)


@contextlib.contextmanager
def _plain_words() -> Iterator[None]:
    """Says of an option's value what is wrong with it, and not how pydantic does."""
    try:
        yield
    except typer.BadParameter as error:
        words = error.message.removeprefix("Value error, ").removeprefix("Input ")
        for kind, plain in (("integer", "a whole number"), ("number", "a number")):
            if f"should be a valid {kind}" in words:
                words = f"should be {plain}"
        error.message = words
        raise


def _without_flag_types(command: Any, ctx: Any) -> Any:
    """The command, whose help does not show a flag as `--json <bool>`: it takes no value."""
    for each in (command, *getattr(command, "commands", {}).values()):
        for param in each.get_params(ctx) if each is not None else ():
            if getattr(param, "is_flag", False) and param.metavar is None:
                param.metavar = ""
    return command


def _require_utf8(word: str) -> None:
    """Refuses an argument whose bytes Python could not decode: ONNX's names and paths are UTF-8."""
    try:
        word.encode()
    except UnicodeEncodeError:
        shown = word.encode(errors="backslashreplace").decode()
        raise AieError(
            f"the argument '{shown}' is not UTF-8: type the text again, or rename the file"
        ) from None


def refused(error: OSError) -> str:
    """What the system refused, of which file, and what to do."""
    where = error.filename if error.filename is not None else error.filename2
    reason = error.strerror or str(error)
    try:
        sys.stdout.flush()
    except OSError:
        # What was not written would fail again when Python ends.
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
        return f"stdout cannot be written: {reason}"
    # A file's error has its name when it is opened, but not when it is written.
    what = "stdout, or a file, cannot be written" if where is None else os.fsdecode(where)
    told = f"{what}: {reason}" if where is not None or error.errno in _WRITING else reason
    return f"{told}; {ROOM}" if error.errno in _FULL or "temporary directory" in reason else told


_FULL = (errno.ENOSPC, errno.EDQUOT)
_WRITING = (*_FULL, errno.EIO, errno.EFBIG)

app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
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

    Start with `ort-aie demo`, with a model's name on Hugging Face, or with a GGUF file:

    ```
    ort-aie chat OWNER/REPO
    ort-aie chat MODEL.gguf "What is an NPU?"
    ort-aie bench MODEL.gguf
    ```

    A model folder of onnxruntime-genai's builder, too, is compiled when it is first used;
    `ort-aie compile MODEL COMPILED` has all options.

    `ort-aie COMMAND --help` explains each command. Exit codes: 0 for success, 1 for an error that
    the command reports, 2 for wrong usage. Results go to stdout. Progress, notes and errors go to
    stderr.
    """
