"""Runs work that a user's input may make endless, in a process that can be killed.

A chat template may loop or grow without an end, and while jinja2 renders it, nothing else of its
process runs.
"""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from ort_aie_ep.errors import AieError

SECONDS, MEBIBYTES = 5, 1024


class TooMuchError(AieError):
    """The work has not ended within the limits of time and memory."""


def bounded(work: Callable[[], str], what: str) -> str:
    """What `work` returns, computed in a fork of this process. Without forks (Windows), here.

    Raises:
        TooMuchError: it takes more than `SECONDS` or `MEBIBYTES`, or ends the process.
        RuntimeError: of `work`.
    """
    if sys.platform == "win32":
        return work()
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Python warns of a fork in a process with threads. They are ONNX Runtime's, and `work` uses
        # none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _answer(work, writer)
    os.close(writer)
    answer, end = bytearray(), time.monotonic() + SECONDS
    try:
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            while select.select([pipe], [], [], max(0.0, end - time.monotonic()))[0]:
                if not (part := pipe.read(2**16)):
                    break
                answer += part
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    # The last byte says how it ended; without one, it has not.
    text = answer[:-1].decode("utf-8", "surrogatepass")
    if answer[-1:] == b"\0":
        return text
    if answer[-1:] == b"\1":
        raise RuntimeError(text)
    raise TooMuchError(
        f"{what} takes more than {SECONDS} seconds or {MEBIBYTES} MiB, the most that it may"
    )


def _answer(work: Callable[[], str], writer: int) -> None:
    """The fork: writes the answer, and ends."""
    try:
        import resource

        faulthandler.disable()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what a library says when it gives up
        if sys.platform == "linux":
            memory = _size() + MEBIBYTES * 2**20
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        # Half a surrogate pair, which JSON may have, is the caller's to refuse.
        try:
            answer = work().encode("utf-8", "surrogatepass") + b"\0"
        except RuntimeError as error:
            answer = str(error).encode("utf-8", "surrogatepass") + b"\1"
        while answer:
            answer = answer[os.write(writer, answer) :]
    finally:
        os._exit(0)


def _size() -> int:
    """Bytes of this process's address space."""
    import resource

    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
