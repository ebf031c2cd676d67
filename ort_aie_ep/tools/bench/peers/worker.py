"""One engine in its own process: requests come on stdin, answers go to stdout, a line each.

`process.py` starts it as `python -m ort_aie_ep.tools.bench.peers.worker`. The first request says
what to open. Each further one is a context length to prefill and a number of tokens to decode from
there, a total length to decode at without a prefill, or a batch. Libraries' output goes to stderr.
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

from ort_aie_ep.errors import AieError
from ort_aie_ep.tools.bench.peers.engine import Batching, Engine, Model, Settings, Skipping
from ort_aie_ep.tools.bench.peers.engines import kind

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
            elif "total" in request:
                answer = _skip(engine, request["total"], request["count"])
            elif "batch_at" in request:
                answer = _batch(engine, request)
            else:
                answer = _measure(engine, tokens, request["length"], request["new_tokens"])
        except Exception as error:  # every engine has its own exceptions
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
    """Seconds of the prefill and of all decoded tokens together, and the memory used so far."""
    run = engine.run(tokens[:length], new_tokens)
    return {
        "prefill_seconds": run.prefill_seconds,
        "decode_seconds": run.decode_seconds,
        "memory": memory(),
    }


def _skip(engine: Engine, total: int, count: int) -> dict[str, Any]:
    if not isinstance(engine, Skipping):
        raise AieError(f"{type(engine).__name__} cannot decode without a prompt")
    return {"decode_seconds": engine.decode_at(total, count)}


def _batch(engine: Engine, request: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(engine, Batching):
        raise AieError(f"{type(engine).__name__} cannot take several rows in a call")
    sizes = (request[name] for name in ("batch_at", "sequences", "tokens", "count"))
    return {"batch_seconds": engine.batch_at(*sizes)}


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
