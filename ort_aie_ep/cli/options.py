"""Options that several commands share, and commands whose options are the fields of a class."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from ort_aie_ep.compiler.options import MissingOption
from ort_aie_ep.errors import AieError

DraftOption = Annotated[
    int,
    typer.Option(
        min=0,
        max=16,
        help="Guess up to N tokens at a time, from repetitions or with --draft-model (0: none).",
    ),
]
DraftModelOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="With --draft: folder of a smaller model with the same tokens, which guesses. "
        "Default: the model's own head for guesses, if it has one.",
    ),
]


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are chosen; what is not given is as the model's publisher says.

    Attributes:
        temperature: 0: always the most likely token; above 0: sample. Defaults of all these are the
            publisher's, else llama.cpp's for a GGUF file.
        top_p: sample from the most likely tokens whose probabilities sum to P.
        top_k: sample from the K most likely tokens (0: all).
        min_p: sample from tokens at least P times as likely as the most likely.
        repeat_penalty: divide the score of each token that is there already by this.
        seed: seed for sampling.
    """

    PANEL = "Sampling"

    temperature: float | None = field(default=None, metadata={"min": 0, "max": 2})
    top_p: float | None = field(default=None, metadata={"min": 0, "max": 1})
    top_k: int | None = field(default=None, metadata={"min": 0})
    min_p: float | None = field(default=None, metadata={"min": 0, "max": 1})
    repeat_penalty: float | None = field(default=None, metadata={"min": 0.01})
    seed: int | None = field(default=None, metadata={"min": 0})

    def given(self) -> dict[str, Any]:
        """Those that are given, as fields of `running.turns.Sampling`."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values["repetition_penalty"] = values.pop("repeat_penalty")
        return {name: value for name, value in values.items() if value is not None}

    def changed(self, name: str, text: str) -> SamplingOptions:
        """The same with a value as it is typed. Raises AieError if it cannot be that."""
        about = {each.name: each for each in fields(self)}.get(name.replace("-", "_"))
        if about is None:
            names = ", ".join(each.name for each in fields(self))
            raise AieError(f"{name!r} is not one of {names}")
        least, most = about.metadata["min"], about.metadata.get("max", math.inf)
        whole = str(about.type).startswith("int")
        try:
            value: float = int(text) if whole else float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            kind = "a whole number" if whole else "a number"
            above = f"from {least} to {most}" if most < math.inf else f"of at least {least}"
            raise AieError(f"{name} must be {kind} {above}, got {text!r}")
        changed: dict[str, Any] = {about.name: value}
        return replace(self, **changed)


SystemOption = Annotated[
    str, typer.Option(metavar="TEXT", help="System message: how the model should answer.")
]
Baseline = Annotated[
    Path | None,
    typer.Option(metavar="SRC", help="If MODEL is compiled: the model it was compiled from."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Makes options of the fields of those of a command's parameters that are dataclasses.

    The help of an option is what the class's docstring says of the field, as the help of a command
    is its docstring. One that is on by default becomes --no-NAME, with the help after "False: ";
    one that is None by default has both flags.
    `PANEL` of the class is where `--help` shows them.
    """
    hints = get_type_hints(command, include_extras=True)
    classes: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = [
        given.replace(annotation=hints[name])
        for name, given in inspect.signature(command).parameters.items()
        if name not in classes
    ]
    for kind in classes.values():
        parameters += _parameters(kind)

    @wraps(command)
    def run(**given: Any) -> None:
        try:
            for name, kind in classes.items():
                given[name] = kind(**{each.name: _value(each, given) for each in fields(kind)})
        except MissingOption as error:
            raise typer.BadParameter(
                f"--{error.option} needs --{error.needed}: it {error.why}"
            ) from error
        command(**given)

    vars(run)["__signature__"] = inspect.Signature(parameters)
    return run


def _parameters(kind: Any) -> list[inspect.Parameter]:
    hints, lines, found = get_type_hints(kind), _lines(kind), []
    for each in fields(kind):
        hint, default, line = hints[each.name], each.default, lines[each.name]
        if default is True:
            default, line = False, line.partition("False: ")[2]
        elif default == ():
            hint, default, line = list[str] | None, None, f"{line} Repeatable."
        name = _name(each)
        flag = f"{_flag(name)}/{_flag('no_' + name)}" if hint == bool | None else _flag(name)
        shown = typer.Option(
            flag,
            help=line[0].upper() + line[1:],
            **each.metadata,
            rich_help_panel=getattr(kind, "PANEL", None),
        )
        found.append(
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default,
                annotation=Annotated[hint, shown],
            )
        )  # fmt: skip
    return found


def _lines(kind: type) -> dict[str, str]:
    """What the docstring of a dataclass says of each field, with options named as flags."""
    text = "\n".join(inspect.cleandoc(each.__doc__ or "") for each in reversed(kind.__mro__))
    return {
        name: re.sub(r"`(\w+)`", lambda other: _flag(other[1]), " ".join(line.split()))
        for name, line in re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", text, re.MULTILINE)
    }


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _name(option: Field[Any]) -> str:
    return f"no_{option.name}" if option.default is True else option.name


def _value(option: Field[Any], given: dict[str, Any]) -> Any:
    """What the command line gave for a field, which is taken out of `given`."""
    value = given.pop(_name(option))
    if option.default is True:
        return not value
    return tuple(value or ()) if option.default == () else value
