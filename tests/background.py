"""Signals of tests that a shell has put into the background."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike

# What runs between would have the process id that the test signals, so it becomes the command.
_EXECUTE = """\
import os, signal, sys
for one in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(one, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, [])
os.execv(sys.argv[1], sys.argv[1:])
"""


def with_default_signals(*command: str | PathLike[str]) -> list[str | PathLike[str]]:
    """The command, started so that each signal has its default effect.

    A shell without job control starts background jobs with SIGINT ignored, nohup with SIGHUP, and
    children inherit that. A test that sends a signal to a child needs it.
    """
    return [sys.executable, "-c", _EXECUTE, *command]


@contextmanager
def ignored(*signals: signal.Signals) -> Iterator[None]:
    """Ignores signals, so that children inherit that, as those of a background job do."""
    before = {one: signal.signal(one, signal.SIG_IGN) for one in signals}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
