"""The terminal: results on stdout, everything about them on stderr, progress bars."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

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
def completion(prompt: str) -> Iterator[Callable[[str], None]]:
    """Something to call with pieces of text: shows the prompt on stderr before the first.

    Until then, a spinner says that work goes on.
    """
    begun = False
    spinner = err.status("loading the model and reading the prompt", spinner_style="dim")

    def write(text: str) -> None:
        nonlocal begun
        if not begun:
            begun = True
            spinner.stop()
            err.print(prompt, style="bold", end="", markup=False, highlight=False, soft_wrap=True)
        write_text(text)

    if err.is_terminal:
        spinner.start()
    try:
        yield write
    finally:
        spinner.stop()


@contextmanager
def activity() -> Iterator[Callable[[str], None]]:
    """Something to call with what is being done: a line that changes, or a line each in a file."""
    if not err.is_terminal:
        yield note
        return
    with err.status("", spinner_style="dim") as status:
        yield lambda text: status.update(escape(text))


@contextmanager
def bytes_bar(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """A bar for writing weights, driven by (bytes done, bytes in all, name of the next tensor)."""
    with _bar(title, DownloadColumn()) as (progress, task):

        def update(done: int, total: int, name: str) -> None:
            progress.update(task, completed=done, total=total, what=name)

        yield update


@contextmanager
def steps_bar(title: str, total: int | None = None) -> Iterator[StepsBar]:
    """A bar over a known number of steps, or one that is told later."""
    with _bar(title, MofNCompleteColumn()) as (progress, task):
        progress.update(task, total=total)
        yield StepsBar(progress, task)


@dataclasses.dataclass(frozen=True)
class StepsBar:
    """What moves a bar of `steps_bar`."""

    progress: Progress
    task: Any

    def total(self, steps: int) -> None:
        """Says how many steps there will be."""
        self.progress.update(self.task, total=steps)

    def step(self, what: str) -> None:
        """One step is done."""
        self.progress.update(self.task, advance=1, what=what)


@contextmanager
def _bar(title: str, count: ProgressColumn) -> Iterator[tuple[Progress, Any]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        count,
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[what]}", markup=True),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        yield progress, progress.add_task(title, total=None, what="")


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
