"""The terminal: results on stdout, everything about them on stderr."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TextIO

from rich.console import Console

from ort_aie_ep.cli.progress import Bar, shown
from ort_aie_ep.requirements import runtime_version


def _width(stream: TextIO) -> int | None:
    """None is the terminal's own; a file or a pipe gets wide tables, none of them cut."""
    return None if stream.isatty() else int(os.environ.get("COLUMNS", "120"))


out = Console(width=_width(sys.stdout))
err = Console(stderr=True, width=_width(sys.stderr))


def fail(message: str) -> None:
    """A user's mistake: the message in red, no traceback."""
    err.print(f"error: {message}", style="red", markup=False, highlight=False, soft_wrap=True)


def heading(text: str) -> None:
    """A line before a table of results."""
    out.print(text, markup=False, highlight=False, soft_wrap=True)


def note(message: str) -> None:
    """Something worth knowing that is no result."""
    err.print(message, style="dim", markup=False, highlight=False, soft_wrap=True)


def next_command(*words: object) -> None:
    """What to type next."""
    note(f"next: {shlex.join(map(str, words))}")


def next_lines(lines: Iterable[str]) -> None:
    """What to write in Python next."""
    note("\n    ".join(["next, in Python:", *lines]))


def write_text(text: str) -> None:
    """A model's text, at once and as it is: it may hold anything that looks like markup."""
    sys.stdout.write(text)
    sys.stdout.flush()


@contextmanager
def bar(title: str, unit: str = "", what: str = "") -> Iterator[Bar]:
    """A bar, or a line now and then: see `progress`.

    It is a `Progress` that counts `unit`, a plural, and shows `title` and, until it is told more,
    `what`. Nothing may be written to stdout meanwhile. Without a unit it shows the time alone.
    """
    with shown(err, title, unit, what) as shown_bar:
        yield shown_bar


@dataclasses.dataclass
class Completion:
    """What a model does with a prompt, as `run` shows it: a bar, then the text."""

    prompt: str
    _bars: ExitStack
    _reading: Bar | None = None
    _begun: bool = False

    def progress(self, done: int, total: int, what: str) -> None:
        """So many tokens of the prompt are read."""
        if self._reading is None:
            self._bars.close()
            self._reading = self._bars.enter_context(bar("read the prompt", "tokens"))
        self._reading(done, total, what)

    def write(self, text: str) -> None:
        """A piece of the text: shows the prompt on stderr before the first."""
        if not self._begun:
            self._begun = True
            self._bars.close()
            err.print(
                self.prompt, style="bold", end="", markup=False, highlight=False, soft_wrap=True
            )
        write_text(text)


@contextmanager
def completion(prompt: str) -> Iterator[Completion]:
    """Shows how a prompt is completed; until it is read, a bar says that work goes on."""
    with ExitStack() as bars:
        bars.enter_context(bar("open the model"))
        yield Completion(prompt, bars)


def print_json(report: Any, **settings: object) -> None:
    """A report (a dataclass), its settings, and what it was measured with, as JSON on stdout."""
    content = {
        **dataclasses.asdict(report),
        "settings": settings,
        "environment": environment(),
    }
    write_text(json.dumps(content, indent=2, default=str) + "\n")


def environment() -> dict[str, str]:
    """What a measurement depends on besides the model."""
    import ort_aie_ep
    from ort_aie_ep.explain.machine import cpu_model
    from ort_aie_ep.runtime.kernels import chosen_kernels, kernels_line

    return {
        "ort_aie_ep": ort_aie_ep.__version__,
        "onnxruntime": runtime_version() or "not installed",
        "python": platform.python_version(),
        "cpu": cpu_model(),
        "kernels": kernels_line(chosen_kernels()),
    }
