"""`ort-aie bench --batch`: what several rows in a call cost ort_aie_ep and ONNX Runtime."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import ModelFolder
from ort_aie_ep.models.interface import context_length
from ort_aie_ep.progress import Count, Progress
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.runtime.sessions import Options, open_session
from ort_aie_ep.tools.bench.bench import SETTLE_SECONDS
from ort_aie_ep.tools.bench.statistics import Interval, ratio

OURS, CPU_EP = "ort_aie_ep", "ORT CPU EP"
# What a call can have n of: a token of each of n sequences, or n tokens of one to verify.
SEQUENCES, TOKENS = SHAPES = ("sequences", "tokens of one")
# Tokens in each sequence before a call, and consecutive calls, whose mean counts.
CONTEXT, CALLS = 64, 4


@dataclass(frozen=True)
class Batches:
    """Seconds of a call in each run, by engine, by shape, by n."""

    seconds: dict[str, dict[str, dict[int, list[float]]]]

    def cost(self, engine: str, shape: str, n: int) -> Interval:
        """Of a call with n rows relative to one row, within runs."""
        runs = self.seconds[engine][shape]
        return ratio(runs[n], runs[1])


def measure(
    compiled: ModelFolder,
    source: ModelFolder,
    options: Options,
    sizes: tuple[int, ...],
    runs: int,
    progress: Progress | None = None,
) -> Batches:
    """Measures all sizes, 1 among them, and both sessions, alternating, after a run that is not
    counted. `progress` counts runs.

    Raises:
        AieError: a session fails, or a model has no room for the context, or prunes logits.
    """
    # If nothing says how much room there is, the session decides.
    longest, room = _capacity(max(sizes)), context_length(source, default=2**31)
    if longest > room:
        raise AieError(
            f"a batch of {max(sizes)} needs a context of {longest} tokens; the model's is {room}"
        )
    folders = {OURS: compiled, CPU_EP: source}
    plain = Options(threads=options.threads)
    sessions = {
        OURS: open_session(compiled.model, options),
        CPU_EP: open_session(source.model, plain, library=False),
    }
    seconds: dict[str, dict[str, dict[int, list[float]]]] = {
        name: {shape: {n: [] for n in sizes} for shape in SHAPES} for name in folders
    }
    count = Count(progress, (runs + 1) * len(sizes) * len(SHAPES) * len(folders))
    for run in range(runs + 1):
        for n in sizes:
            for shape in SHAPES:
                for name, folder in folders.items():
                    count.begin(f"{n} {shape}: {name}")
                    sequences, tokens = (n, 1) if shape == SEQUENCES else (1, n)
                    decoder = Decoder(sessions[name], folder, _capacity(tokens), sequences)
                    time.sleep(SETTLE_SECONDS)
                    taken = _call(decoder, sequences, tokens)
                    if run:
                        seconds[name][shape][n].append(taken)
                    count.step()
    return Batches(seconds)


def _capacity(tokens: int) -> int:
    """Tokens of a sequence that gets `tokens` in a call."""
    return CONTEXT + (CALLS + 1) * tokens


def _call(decoder: Decoder, sequences: int, tokens: int) -> float:
    """Seconds of a call, the mean of CALLS, counting only time in ONNX Runtime."""
    logits = decoder.forward(np.ones((sequences, CONTEXT), np.int64))
    if len(logits) != sequences * CONTEXT:
        raise AieError(
            "a model returns logits only for the last position, and verifying drafted tokens "
            "needs all: pass a source that has them, or compile it without --last-logits"
        )
    # Different tokens, because equal ones would choose the same experts and read fewer weights.
    rows = np.arange(1, sequences * tokens + 1, dtype=np.int64).reshape(sequences, tokens)
    seconds = 0.0
    for call in range(CALLS + 1):
        decoder.forward(rows)
        seconds += decoder.run_seconds if call else 0.0
    return seconds / CALLS
