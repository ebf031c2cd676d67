"""An engine in its own process, and how to communicate with it."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench_peers.engines import Model, Settings
from ort_aie_ep.errors import AieError

LIMIT_SECONDS = 300.0
"""Seconds for an answer; the slowest one, a long prompt on a slow peer, takes a tenth of it."""

# Time for a process to end after its pipe is closed.
_END_SECONDS = 10


class EngineError(AieError):
    """An engine cannot continue; `reason` is one line that continues the engine's name."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} {reason}")
        self.reason = reason


class Worker:
    """A process with one engine, which has `limit` seconds for an answer.

    Methods that ask it raise EngineError if it fails, ends, or takes longer.
    """

    def __init__(self, name: str, limit: float = LIMIT_SECONDS) -> None:
        self.name, self.limit = name, limit
        # The output of the engine's libraries, for the message of a failure; close() closes it.
        self.log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("worker.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
        )  # fmt: skip

    def close(self) -> None:
        """Ends the process; a second time does nothing."""
        if not self.log.closed:
            self.process.kill()
            self.process.communicate()
            self.log.close()

    def open(self, model: Model, settings: Settings) -> dict[str, Any]:
        """Opens the engine's model: {"load_seconds": float, "settings": {name: value}}."""
        of_model = asdict(model) | {"path": str(model.path)}
        return self._ask("open", engine=self.name, model=of_model, settings=asdict(settings))

    def run(self, prompt: Sequence[int], new_tokens: int) -> dict[str, Any]:
        """Prefills and decodes: what `Run` has, and {"peak_bytes": int}."""
        return self._ask("run", prompt=prompt, new_tokens=new_tokens)

    def _ask(self, method: str, **given: Any) -> dict[str, Any]:
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin
        assert stdout
        try:
            stdin.write(json.dumps([method, given]) + "\n")
            stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        # An answer is one line, so that no part of the next one is ever buffered.
        if not select.select([stdout], [], [], self.limit)[0]:
            self.process.kill()
            raise EngineError(self.name, f"did not answer within {self.limit:.0f} s")
        line = stdout.readline()
        if not line:
            raise self._ended()
        answer = json.loads(line)
        assert isinstance(answer, dict)
        if "error" in answer:
            raise EngineError(self.name, f"failed: {one_line(answer['error'])}")
        return answer

    def _ended(self) -> EngineError:
        """How the process ended, and the last line it printed."""
        try:
            code = self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return EngineError(self.name, "closed its output without ending")
        how = f"exit code {code}" if code >= 0 else f"signal {-code} ({signal.Signals(-code).name})"
        self.log.seek(0)
        lines = (line.strip() for line in self.log.read().splitlines())
        words = [line for line in lines if any(map(str.isalpha, line))]  # skips bars of dots
        last = words[-1] if words else "it printed nothing"
        return EngineError(self.name, f"ended with {how}: {one_line(last)}")


def one_line(text: str, most: int = 300) -> str:
    """The text as one line that fits in a table."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most]} ..."
