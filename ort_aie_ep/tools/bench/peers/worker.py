"""One engine in its own process: requests come on stdin, answers go to stdout, a line each.

`process.py` starts it as `python -m ort_aie_ep.tools.bench.peers.worker`. A request is "open", or
a method of `Engine`, with its arguments. Libraries' output goes to stderr.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from ort_aie_ep.tools.bench.peers.engines import Engine, Model, Settings, kind


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
            if engine is None:
                engine, answer = _open(**given)
            elif method == "run":
                run = engine.run(**given)
                answer = {"prefill_seconds": run.prefill_seconds}
                answer |= {"decode_seconds": run.decode_seconds, "memory": memory()}
            else:
                answer = {"seconds": getattr(engine, method)(**given)}
        except Exception as error:  # every engine has its own exceptions
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")


def _open(
    engine: str, model: dict[str, Any], settings: dict[str, Any]
) -> tuple[Engine, dict[str, Any]]:
    chosen = kind(engine)
    for name in chosen.imports:
        import_module(name)
    start = time.perf_counter()
    opened = chosen.open(Model(**(model | {"path": Path(model["path"])})), Settings(**settings))
    seconds = time.perf_counter() - start
    return opened, {"load_seconds": seconds, "settings": opened.description}


def memory() -> dict[str, int]:
    """Bytes of this process as the kernel reports them; 0 if it does not.

    `peak` is VmHWM, the highest value so far, including mapped files; `anonymous` and `files` are
    the current values.
    """
    names = {"VmHWM": "peak", "RssAnon": "anonymous", "RssFile": "files"}
    sizes = dict.fromkeys(names.values(), 0)
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return sizes
    for line in lines:
        name, _, value = line.partition(":")
        if name in names:
            sizes[names[name]] = int(value.split()[0]) << 10
    return sizes


if __name__ == "__main__":
    main()
