"""Progress of a command, on stderr: a bar in a terminal, elsewhere a line every few seconds.

    with console.bar("compile", "bytes") as progress:
        compile_model(source, destination, progress=progress)

In a terminal the bar disappears when the work is done. Elsewhere a line every INTERVAL seconds
says how far the work is. Either way a last line says what was done and how long it took. Work that
takes less than SHORT seconds leaves nothing on stderr.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column

from ort_aie_ep.disk import UNITS

# Seconds between two lines if stderr is not a terminal.
INTERVAL = 10.0
# Work that takes fewer seconds leaves no line.
SHORT = 2.0
# Seconds over which a rate is measured, at most and at least.
_WINDOW = 10.0
_LEAST = 0.5


@dataclass
class Status:
    """How far work is.

    Attributes:
        title: the command, or a part of it.
        unit: of the amounts, a plural: "bytes", "tokens"; empty for work that cannot be counted.
        what: what is being done.
        done: amount of this stage.
        total: of this stage; 0 until it is known.
        earlier: amount of the stages before. Bytes are counted once: of a file that is read, then
            packed, the stage with the most of them.
        began: when the work began, in seconds of `time.monotonic`, like all times here.
    """

    title: str
    unit: str
    what: str = ""
    done: int = 0
    total: int = 0
    earlier: int = 0
    began: float = field(default_factory=time.monotonic)
    # (time, amount done) of this stage in the last _WINDOW seconds, and the time of the last call.
    _samples: deque[tuple[float, int]] = field(default_factory=deque)
    _told: float = 0.0

    def tell(self, done: int, total: int, what: str, now: float) -> None:
        """Notes a call of `Progress` at the time `now`."""
        if done < self.done:
            self.earlier = self._with_earlier(self.done)
            self._samples.clear()
        self.done, self.total, self.what, self._told = done, total, what, now
        if not self._samples or now - self._samples[-1][0] >= _LEAST:
            self._samples.append((now, done))
        while len(self._samples) > 2 and now - self._samples[1][0] >= _WINDOW:
            self._samples.popleft()

    def rate(self) -> float | None:
        """The recent amount per second; None until enough is done to tell."""
        if not self._samples:
            return None
        seconds, amount = self._told - self._samples[0][0], self.done - self._samples[0][1]
        return amount / seconds if amount > 0 and seconds >= _LEAST else None

    def seconds_left(self, now: float) -> float | None:
        """Seconds until this stage is done; None if unknown or overdue."""
        rate = self.rate()
        if rate is None or self.done >= self.total:
            return None
        left = (self.total - self.done) / rate - (now - self._told)
        return left if left > 0 else None

    def text(self, now: float) -> str:
        """As much as is known of "3.1 of 12.4 GB, 410 MB/s, 22 s left"."""
        if not self.unit or (self.total == 0 and self.done == 0):
            return duration(int(now - self.began))
        parts = [amount(self.done, self.total, self.unit)]
        if (rate := self.rate()) is not None:
            parts.append(rate_text(rate, self.unit))
        if (left := self.seconds_left(now)) is not None:
            parts.append(f"{duration(math.ceil(left))} left")
        return ", ".join(parts)

    def line(self, now: float) -> str:
        """The status as a line for a log."""
        what = f": {self.what}" if self.what else ""
        return f"{self.title}: {self.text(now)}{what}"

    def end(self, now: float) -> str:
        """The last line, when the work is done."""
        seconds, done = now - self.began, self._with_earlier(self.done)
        if not self.unit or not done:
            return f"{self.title}: {duration(seconds)}"
        total = self._with_earlier(self.total)
        count = amount(done, total if done < total else 0, self.unit)
        return f"{self.title}: {count} in {duration(seconds)}, " + rate_text(
            done / seconds, self.unit
        )

    def _with_earlier(self, amount: int) -> int:
        return max(self.earlier, amount) if self.unit == "bytes" else self.earlier + amount


def amount(done: int, total: int, unit: str) -> str:
    """Such as "3.1 of 12.4 GB"; without a total, "3.1 GB"."""
    if unit != "bytes":
        of = f" of {total:,}" if total else ""
        return f"{done:,}{of} {unit[:-1] if (total or done) == 1 else unit}"
    scale, name = _scale(total or done)
    digits = 0 if scale == 1 else 1
    of = f" of {total / scale:.{digits}f}" if total else ""
    return f"{done / scale:.{digits}f}{of} {name}"


def rate_text(rate: float, unit: str) -> str:
    """Such as "410 MB/s", "12 tokens/s" or "2.5 s per run"."""
    if unit == "bytes":
        scale, name = _scale(rate)
        return f"{_rounded(rate / scale)} {name}/s"
    if rate < 1:
        return f"{_rounded(1 / rate)} s per {unit[:-1]}"
    return f"{_rounded(rate)} {unit}/s"


def duration(seconds: float) -> str:
    """Such as "2.5 s", "3 min 20 s" or "1 h 5 min"; an int has no tenths."""
    if isinstance(seconds, float) and seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _scale(size: float) -> tuple[float, str]:
    return next(((scale, name) for scale, name in UNITS if size >= scale), UNITS[-1])


def _rounded(value: float) -> str:
    """A number with one decimal below 10 and none above."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


class Bar:
    """Moves a bar: it is a `Progress`, and prints notes above the bar."""

    def __init__(self, console: Console, status: Status) -> None:
        self._console, self._status = console, status

    def __call__(self, done: int, total: int, what: str) -> None:
        """Says that `done` of `total` is done, and `what` is being done."""
        self._status.tell(done, total, what, time.monotonic())

    def note(self, text: str) -> None:
        """Prints something worth knowing before the end."""
        print_note(self._console, text)


def print_note(console: Console, text: str, *, to_type: bool = False) -> None:
    """Prints a line that is not a result; a terminal breaks it between words unless it is one to
    type, which can then be copied."""
    whole = to_type or not console.file.isatty()
    console.print(text, style="dim", markup=False, highlight=False, soft_wrap=whole)


@contextmanager
def shown(console: Console, title: str, unit: str, what: str) -> Iterator[Bar]:
    """Shows a bar on `console`, or lines if it is not a terminal."""
    status = Status(title, unit, what)
    bar = Bar(console, status)
    # Not console.is_terminal: FORCE_COLOR asks for colours in a file, not for a bar.
    drawn = console.file.isatty() and not console.is_dumb_terminal
    with _Drawn(console, status) if drawn else _lines(console, status):
        yield bar
    now = time.monotonic()
    if now - status.began >= SHORT:
        bar.note(status.end(now))


class _Drawn(Progress):
    """A bar that reads a status four times a second, so that calls of `Progress` draw nothing."""

    def __init__(self, console: Console, status: Status) -> None:
        self._status = status
        self._task: TaskID | None = None
        rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[text]}", markup=False),
            TextColumn("{task.fields[what]}", style="dim", markup=False, table_column=rest),
            console=console,
            transient=True,
            expand=True,
            refresh_per_second=4,
            # Results on stdout stay there: rich would send them to stderr, above the bar.
            redirect_stdout=False,
        )
        self._task = self.add_task(status.title, total=None, text="", what=status.what)

    def get_renderable(self) -> RenderableType:
        status = self._status
        if self._task is not None:  # rich also calls this from the constructor
            self.update(
                self._task,
                completed=status.done,
                total=status.total or None,
                text=status.text(time.monotonic()),
                what=status.what,
            )
        return super().get_renderable()


@contextmanager
def _lines(console: Console, status: Status) -> Iterator[None]:
    done = threading.Event()

    def say() -> None:
        while not done.wait(INTERVAL):
            print_note(console, status.line(time.monotonic()))

    thread = threading.Thread(target=say, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
