"""The terminal: results go to stdout, everything else goes to stderr."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

from ort_aie_ep.cli.progress import Bar, print_note, shown
from ort_aie_ep.requirements import runtime_version


def _width(stream: TextIO) -> int | None:
    """None means the terminal's own width; a file or a pipe gets wide tables that are not cut."""
    return None if stream.isatty() else int(os.environ.get("COLUMNS", "120"))


out = Console(width=_width(sys.stdout))
err = Console(stderr=True, width=_width(sys.stderr))


def fail(message: str) -> None:
    """Prints a user's mistake in red, without a traceback."""
    err.print(f"error: {message}", style="red", markup=False, highlight=False, soft_wrap=True)


def heading(text: str) -> None:
    """Prints a line of results, such as the one before a table."""
    out.print(text, markup=False, highlight=False, soft_wrap=True)


def note(message: str) -> None:
    """Prints something worth knowing that is not a result."""
    print_note(err, message)


def next_command(program: str, *words: object) -> None:
    """Prints the command to type next."""
    print_note(err, f"next: {command(program, *words)}", to_type=True)


def command(program: str, *words: object) -> str:
    """A command to type: with the program's path if a shell does not find its name."""
    own = Path(sys.argv[0])
    if own.name == program and shutil.which(program) is None:
        program = os.path.relpath(own) if own.is_relative_to(Path.cwd()) else str(own)
    return shlex.join([program, *map(str, words)])


def next_lines(lines: Iterable[str]) -> None:
    """Prints the lines to write in Python next."""
    note("\n    ".join(["next, in Python:", *lines]))


def write_text(text: str) -> None:
    """Writes a model's text at once and unchanged: it may contain what looks like markup."""
    sys.stdout.write(text)
    sys.stdout.flush()


def visible(text: str, instead: str = "\ufffd") -> str:
    """A text for a terminal, which control characters could reprogram."""
    return text.translate(dict.fromkeys(_CONTROL, instead))


_CONTROL = [n for n in (*range(32), *range(127, 160)) if chr(n) not in "\n\t"]


def bar(title: str, unit: str = "", what: str = "") -> AbstractContextManager[Bar]:
    """Shows a bar, or a line every few seconds: see `cli/progress.py`.

    The bar is a `Progress` that counts `unit`, a plural. It shows `title`, and `what` until the
    function says what it is doing. Nothing may be written to stdout meanwhile. Without a unit the
    bar shows the time only.
    """
    return shown(err, title, unit, what)


@dataclasses.dataclass
class Completion:
    """How `run` shows a completion: a bar while the model reads the prompt, then the text."""

    prompt: str
    _bars: ExitStack
    _reading: Bar | None = None
    _begun: bool = False

    def progress(self, done: int, total: int, what: str) -> None:
        """The model has read `done` of `total` tokens of the prompt."""
        if self._reading is None:
            self._bars.close()
            self._reading = self._bars.enter_context(bar("read the prompt", "tokens"))
        self._reading(done, total, what)

    def write(self, text: str) -> None:
        """Writes a piece of the text; before the first piece, shows the prompt on stderr."""
        if not self._begun:
            self._begun = True
            self._bars.close()
            err.print(
                self.prompt, style="bold", end="", markup=False, highlight=False, soft_wrap=True
            )
        write_text(text)


@contextmanager
def completion(prompt: str) -> Iterator[Completion]:
    """Shows how a model completes `prompt`, with a bar until the first new text."""
    with ExitStack() as bars:
        bars.enter_context(bar("open the model"))
        yield Completion(prompt, bars)


def print_json(report: Any, **settings: object) -> None:
    """Prints a report (a dataclass), its settings and the environment as JSON on stdout."""
    content = {
        **dataclasses.asdict(report),
        "settings": settings,
        "environment": environment(),
    }
    write_text(json.dumps(content, indent=2, default=str) + "\n")


def environment() -> dict[str, str]:
    """What a measurement depends on besides the model."""
    import ort_aie_ep
    from ort_aie_ep.machine import cpu_model
    from ort_aie_ep.runtime.kernels import chosen_kernels, kernels_line, tried_kernels

    return {
        "ort_aie_ep": ort_aie_ep.__version__,
        "onnxruntime": runtime_version() or "not installed",
        "python": platform.python_version(),
        "cpu": cpu_model(),
        "kernels": kernels_line(chosen_kernels(), tried_kernels()),
    }
