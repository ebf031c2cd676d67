"""A model's tokens on an NPU and on the host: `python -m ort_aie_ep.tools.first_token OVERLAYS`.

This is a separate process, because failures here can be outside Python: `ort-aie first-day` starts
it and survives it. The last line of its output is JSON.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.models.interface import context_length
from ort_aie_ep.models.tokenizer import load_tokenizer
from ort_aie_ep.running.generate import Decoder, Tokens
from ort_aie_ep.running.text import encode
from ort_aie_ep.runtime.counters import npu_counters
from ort_aie_ep.runtime.sessions import Options, open_session
from ort_aie_ep.tools.bench.agreement import compare
from ort_aie_ep.tools.bench.demo import MODEL, PROMPT
from ort_aie_ep.tools.bench.pair import compiled_for_now

TOKENS = 16
#: Seconds, a few of which compiling the model takes.
LIMIT = 300


def measure(
    overlays: Path, target: str = "xrt", tokens: int = TOKENS, text: str = PROMPT
) -> dict[str, Any]:
    """The fields of `Token` in `npu.validate.first_day`, for `tokens` after `text`.

    Raises AieError, also if the device fails.
    """
    with compiled_for_now(MODEL, lambda *_: None) as result:
        folder, source = result.folder, find_model(MODEL)
        prompt = encode(load_tokenizer(source), text)
        room = context_length(source)
        ours, host = (
            Decoder(open_session(folder.model, options), folder, room)
            for options in (
                Options(target=target, numerics="bf16", on_device_error="raise",
                        overlays=str(overlays)),
                Options(target="host", numerics="bf16"),
            )
        )  # fmt: skip
        agreement = compare(ours, host, prompt, tokens)
        ours_ms, submissions = _decoded(ours, prompt, agreement.continuation)
        host_ms, _ = _decoded(host, prompt, agreement.continuation)
    return {
        "tokens": tokens,
        "same": agreement.same_tokens,
        "near_tie": agreement.near_tie,
        "largest_difference": agreement.largest_difference,
        "largest_logit": agreement.largest_logit,
        "milliseconds": ours_ms,
        "host_milliseconds": host_ms,
        "submissions": submissions,
        "host_steps": dict(npu_counters().host_steps),
    }


def _decoded(
    decoder: Decoder, prompt: Tokens, continuation: tuple[int, ...]
) -> tuple[float, float]:
    """For a token after the prompt: median milliseconds, and the NPU's submissions."""
    decoder.reset()
    decoder.forward(prompt)
    before, times = npu_counters().submissions, []
    for token in continuation:
        decoder.forward(np.array([token]))
        times.append(decoder.run_seconds)
    submissions = npu_counters().submissions - before
    return 1e3 * statistics.median(times), submissions / len(continuation)


def run_apart(overlays: Path, target: str = "xrt", limit: float = LIMIT) -> dict[str, Any]:
    """`measure` in its own process. If that fails, raises AieError with its last line of output."""
    command = [sys.executable, "-P", "-m", "ort_aie_ep.tools.first_token", str(overlays), target]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired as error:
        raise AieError(f"a model's tokens did not arrive within {limit:.0f} s") from error
    if done.returncode:
        words = done.stderr.strip().splitlines() or ["nothing"]
        ended = f"signal {-done.returncode}" if done.returncode < 0 else f"code {done.returncode}"
        raise AieError(f"the model's process ended with {ended} and printed: {words[-1]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _main(overlays: str, target: str) -> int:
    try:
        found = measure(Path(overlays), target)
    except AieError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
