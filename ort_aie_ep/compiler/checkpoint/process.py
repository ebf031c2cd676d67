"""A child process whose output goes to a log, and is read line by line meanwhile."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ort_aie_ep.errors import AieError

# Lines of the log in an error, and characters of each.
_LINES, _CHARACTERS = 6, 300
_SECONDS_TO_END = 10.0


def run_logged(
    command: Sequence[str | Path],
    log: Path,
    what: str,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    line: Callable[[str], None] | None = None,
) -> None:
    """Runs a command to its end, and ends it if this is interrupted.

    Args:
        command: the program and its arguments.
        log: the file that the command and all its output are appended to.
        what: what the command does, for errors.
        folder: its working directory.
        environment: variables to set in addition to this process's own.
        line: called with each line of its output.

    Raises:
        AieError: it cannot be started or fails; with the last lines and the log's path.
    """
    words = [str(word) for word in command]
    try:
        with log.open("ab") as file:
            file.write(f"$ {shlex.join(words)}\n".encode())
            file.flush()
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
            )
            try:
                assert process.stdout is not None
                for raw in process.stdout:
                    file.write(raw)
                    file.flush()
                    if line is not None:
                        line(raw.decode("utf-8", "replace").rstrip())
                code = process.wait()
            finally:
                _end(process)
    except OSError as error:
        raise AieError(f"{what} failed: {error}") from error
    if code != 0:
        raise AieError(f"{what} failed ({_ending(code)}).{_last_lines(log)}")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdout is not None:
        process.stdout.close()
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    memory = "; the system may have run out of memory" if code == -signal.SIGKILL else ""
    return f"ended by {signal.Signals(-code).name}{memory}"


def _last_lines(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace")
    last = [line[:_CHARACTERS] for line in text.splitlines() if line.strip()][-_LINES:]
    return "\n".join([" Its last lines:", *(f"  {line}" for line in last), f"All of it: {log}"])
