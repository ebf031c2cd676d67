"""One engine in a process of its own: requests in on stdin, answers out on stdout, a line each.

Started by `runner.py` as `python -m ort_aie_ep.peers.worker`. The first request says what to open;
every further one is a context length to prefill and a number of tokens to decode from there. What
libraries print goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ort_aie_ep.peers.engine import Engine, Model, Settings
from ort_aie_ep.peers.engines import kind

_SEED = 0


def main() -> None:
    """Answers until stdin ends; an engine's failure is the answer {"error": text}."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    engine: Engine | None = None
    tokens: list[int] = []
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if engine is None:
                engine, answer = _open(request)
                generator = np.random.default_rng(_SEED)
                capacity = request["settings"]["capacity"]
                tokens = generator.integers(0, request["vocabulary"], capacity).tolist()
            else:
                answer = _measure(engine, tokens, request["length"], request["new_tokens"])
        except Exception as error:  # every engine has kinds of its own
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")


def _open(request: dict[str, Any]) -> tuple[Engine, dict[str, Any]]:
    model = Model(**(request["model"] | {"path": Path(request["model"]["path"])}))
    chosen = kind(request["engine"])
    for name in chosen.imports:
        import_module(name)
    start = time.perf_counter()
    engine = chosen.open(model, Settings(**request["settings"]))
    seconds = time.perf_counter() - start
    return engine, {"load_seconds": seconds, "settings": engine.describe()}


def _measure(engine: Engine, tokens: list[int], length: int, new_tokens: int) -> dict[str, Any]:
    """Seconds of the prefill and of all decoded tokens together, and the peak memory so far."""
    run = engine.run(tokens[:length], new_tokens)
    return {
        "prefill_seconds": run.prefill_seconds,
        "decode_seconds": run.decode_seconds,
        "peak_bytes": peak_bytes(),
    }


def peak_bytes() -> int:
    """VmHWM of this process: the most memory it ever had, mapped files included; 0 if unknown."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    sizes = (int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
    return next(sizes, 0)


if __name__ == "__main__":
    main()
