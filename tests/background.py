"""Signal handling for tests that a shell runs in the background."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike

# The test signals this process id, so this script replaces itself with the command.
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
    children inherit that. Tests that send a signal to a child need this.
    """
    return [sys.executable, "-c", _EXECUTE, *command]


@contextmanager
def ignored(*signals: signal.Signals) -> Iterator[None]:
    """Ignores signals, so that children inherit this, as children of a background job do."""
    before = {one: signal.signal(one, signal.SIG_IGN) for one in signals}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
