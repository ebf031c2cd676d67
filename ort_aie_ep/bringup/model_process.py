"""A model's tokens on an NPU and on the host, in the process that `first_token` starts.

`python -m ort_aie_ep.bringup.model_process OVERLAYS TARGET`: the last line of its output is JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from typing import cast

import numpy as np

from ort_aie_ep.bringup.first_token import Token
from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.models.interface import context_length
from ort_aie_ep.models.tokenizer import load_tokenizer
from ort_aie_ep.running.generate import Decoder, Tokens
from ort_aie_ep.running.text import encode
from ort_aie_ep.runtime.counters import npu_counters
from ort_aie_ep.runtime.options import Options, Target
from ort_aie_ep.runtime.sessions import open_session
from ort_aie_ep.tools.bench.agreement import compare
from ort_aie_ep.tools.bench.demo import MODEL, PROMPT
from ort_aie_ep.tools.bench.pair import compiled_for_now

TOKENS = 16


def measure(
    overlays: Path, target: Target = "xrt", tokens: int = TOKENS, text: str = PROMPT
) -> Token:
    """The comparison of `tokens` after `text`.

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
    return Token(
        tokens=tokens,
        same=agreement.same_tokens,
        near_tie=agreement.near_tie,
        largest_difference=agreement.largest_difference,
        largest_logit=agreement.largest_logit,
        milliseconds=ours_ms,
        host_milliseconds=host_ms,
        submissions=submissions,
        host_steps=dict(npu_counters().host_steps),
    )


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


def _main(overlays: str, target: str) -> int:
    try:
        found = measure(Path(overlays), cast(Target, target))
    except AieError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(asdict(found)))
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
