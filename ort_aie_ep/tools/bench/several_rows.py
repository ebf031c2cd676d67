"""`ort-aie bench --batch`: the cost of several rows in a call, in ort_aie_ep and in ONNX Runtime.

Like `Batches` in `peers/runner.py`, but without other engines, for any model, and in one process.
"""

from __future__ import annotations

import time

import numpy as np

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import ModelFolder
from ort_aie_ep.models.interface import context_length
from ort_aie_ep.progress import Count, Progress
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.runtime.sessions import Options, open_session
from ort_aie_ep.tools.bench.bench import SETTLE_SECONDS
from ort_aie_ep.tools.bench.peers.engines import CPU_EP, OURS, different_tokens
from ort_aie_ep.tools.bench.peers.results import SEQUENCES, SHAPES, Batches
from ort_aie_ep.tools.bench.peers.workload import CALLS, CONTEXT


def measure(
    compiled: ModelFolder,
    source: ModelFolder,
    options: Options,
    sizes: tuple[int, ...],
    runs: int,
    progress: Progress | None = None,
) -> Batches:
    """Measures all sizes and both sessions, alternating, after a run that is not counted.
    `progress` counts runs.

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
    rows, seconds = different_tokens(sequences, tokens), 0.0
    for call in range(CALLS + 1):
        decoder.forward(rows)
        seconds += decoder.run_seconds if call else 0.0
    return seconds / CALLS
