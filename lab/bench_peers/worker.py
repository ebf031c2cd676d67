"""One engine in its own process: requests come on stdin, answers go to stdout, a line each.

`process.py` starts it. A request is "open" or "run" with its arguments; libraries' output goes to
stderr.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench_peers.engines import KINDS, Engine, Model, Settings


def main() -> None:
    """Answers until stdin ends; an engine's failure is the answer {"error": text}."""
    for ending in (signal.SIGINT, signal.SIGTERM):  # sent to the group: the run ends this process
        signal.signal(ending, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    engine: Engine | None = None
    for line in sys.stdin:
        method, given = json.loads(line)
        try:
            if method == "open":
                engine, answer = _open(**given)
            else:
                assert engine is not None
                answer = asdict(engine.run(**given)) | {"peak_bytes": peak_memory()}
        except Exception as error:  # every engine has its own exceptions
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")


def _open(
    engine: str, model: dict[str, Any], settings: dict[str, Any]
) -> tuple[Engine, dict[str, Any]]:
    kind = KINDS[engine]
    for name in kind.imports:
        import_module(name)
    start = time.perf_counter()
    opened = kind.open(Model(**(model | {"path": Path(model["path"])})), Settings(**settings))
    seconds = time.perf_counter() - start
    return opened, {"load_seconds": seconds, "settings": opened.description}


def peak_memory() -> int:
    """Bytes that this process had at most, mapped files included (VmHWM); 0 if unknown."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM")), 0)


if __name__ == "__main__":
    main()
