"""An answer in a terminal as it comes: Markdown as rich shows it, and thoughts dim.

What is typed meanwhile is not echoed into it, and waits for the next prompt.
"""

from __future__ import annotations

import os
import re
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment
from rich.text import Text

from ort_aie_ep.cli.console import visible

# As rich has it, but for HTML, which it would leave out: a model's tags are text.
_PARSER = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")
_FENCE = re.compile(r" {0,3}(```|~~~)")
# What keys send besides characters: arrows, and the marks around a paste.
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|O.|.)?")


class Answer:
    """Shows pieces of an answer: paragraphs that are complete stay, and the last one is drawn anew.

    with Answer(console) as answer:
        answer.add("Some **words**", thought=False)
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._text, self._thought, self._begun = "", False, False
        # Drawn by its own thread a few times a second, so that tokens need not wait for it.
        self._live = Live(
            console=console, get_renderable=lambda: _End(self._shown(self._text)),
            refresh_per_second=8, transient=True, redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip

    def __enter__(self) -> Self:
        if not self._console.is_dumb_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()
        self._keep(self._text)

    def add(self, text: str, *, thought: bool) -> None:
        """Adds a piece of the answer, or of what is thought before it."""
        if thought is not self._thought:
            self._keep(self._text)
            self._thought = thought
        self._text += visible(text)
        if end := finished(self._text):
            self._keep(self._text[:end])

    def _keep(self, text: str) -> None:
        """Prints the beginning of what is drawn, for good."""
        self._text = self._text[len(text) :]
        if text.strip():
            if self._begun:
                self._console.print()
            self._console.print(self._shown(text))
            self._begun = True

    def _shown(self, text: str) -> RenderableType:
        if self._thought:
            return Text(text.strip("\n"), style="dim")
        shown = Markdown("", code_theme="ansi_dark", hyperlinks=False)
        # A model breaks lines where it wants them broken.
        shown.parsed = _PARSER.parse(re.sub(r"(?<!\n)\n(?!\n)", "  \n", text))
        return shown


class _End:
    """The last lines of what is taller than the terminal."""

    def __init__(self, content: RenderableType) -> None:
        self._content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._content, options, pad=False)
        for line in lines[-max(1, console.height - 2) :]:
            yield from line
            yield Segment.line()


def finished(text: str) -> int:
    """How much of a beginning of Markdown is whole blocks, whatever follows: up to the last line
    after an empty one that is not indented, and not in a block of code."""
    at = end = 0
    fenced = after_empty = False
    for line in text.splitlines(keepends=True):
        if after_empty and not fenced and line.strip() and not line[0].isspace():
            end = at
        if _FENCE.match(line):
            fenced = not fenced
        after_empty = not line.strip()
        at += len(line)
    return end


class Typed:
    """What was typed while an answer came."""

    def __init__(self) -> None:
        self._bytes = b""

    def add(self, some: bytes) -> None:
        """Notes what a terminal has read."""
        self._bytes += some

    def forget(self) -> None:
        """As Ctrl-C does with what waits."""
        self._bytes = b""

    def take(self) -> str:
        """The text, without keys that are no text; then there is none."""
        text = _ESCAPES.sub("", self._bytes.decode(errors="ignore")).replace("\r", "\n")
        self.forget()
        return visible(text, "").strip("\n")


@contextmanager
def unechoed(typed: Typed) -> Iterator[None]:
    """Reads what is typed while the block runs, so that it is not echoed, and so that Ctrl-C is
    heard however long a paste is: a terminal that is not read takes 4,096 characters."""
    try:
        import termios
    except ImportError:  # Windows
        yield
        return
    file = sys.stdin.fileno()
    before, quiet = termios.tcgetattr(file), termios.tcgetattr(file)
    quiet[3] &= ~(termios.ECHO | termios.ICANON)
    # A read waits for nothing: Ctrl-C takes what `select` has seen.
    quiet[6][termios.VMIN] = quiet[6][termios.VTIME] = 0
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            if select.select([file], [], [], 0.05)[0]:
                if some := os.read(file, 4096):
                    typed.add(some)
                else:
                    done.wait(0.05)

    reader = threading.Thread(target=read, name="typed", daemon=True)
    termios.tcsetattr(file, termios.TCSADRAIN, quiet)
    reader.start()
    try:
        yield
    finally:
        done.set()
        reader.join()
        termios.tcsetattr(file, termios.TCSADRAIN, before)
