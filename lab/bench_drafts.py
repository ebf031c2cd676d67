"""What drafts make of one text: bench_drafts.py COMPILED [--draft-model DIR] [--rounds 5]

    python lab/bench_drafts.py ort_aie_ep/demo_model
    python lab/make_smollm2.py SMOL && ort-aie compile SMOL COMPILED --quantize q4nx
    python lab/bench_drafts.py COMPILED

Two kinds of text, of the standard library's modules that no demonstration model was trained on:
`new` goes on with the beginning of a module, `again` with one that stands in the prompt twice, the
second time its first lines only, as when a program is to be changed. Each is written with and
without drafts in turns; printed are the medians of tokens per second, their ratio, and the share of
guesses that were right; then what a call with 1 to 8 rows takes, which bounds all of it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np

from ort_aie_ep.models import corpus
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.models.tokenizer import load_tokenizer
from ort_aie_ep.running.loop import open_loop
from ort_aie_ep.running.slots import open_slots
from ort_aie_ep.running.turns import Sampling, Turn
from ort_aie_ep.running.writing import Writing
from ort_aie_ep.runtime.sessions import Options

MODULE, BEGINNING, ANSWER, TEXTS, CONTEXT = 300, 40, 128, 4, 1024


def main() -> None:
    """Measures, and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--draft", type=int, default=8)
    parser.add_argument("--draft-model", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    folder = find_model(given.model)
    drafter = None if given.draft_model is None else find_model(given.draft_model)
    tokenizer = load_tokenizer(folder)
    modules = [tokenizer.encode(text).ids[:MODULE] for _, text in corpus.held_out_text()]
    modules = [ids for ids in modules if len(ids) == MODULE][:TEXTS]
    prompts = {
        "new": [ids[: MODULE - ANSWER] for ids in modules],
        "again": [[*ids, *ids[:BEGINNING]] for ids in modules],
    }
    for name, texts in prompts.items():
        speeds: dict[int, list[float]] = {0: [], given.draft: []}
        taken = drafted = 0
        for _ in range(given.rounds):
            for draft, found in speeds.items():
                loop = open_loop(folder, Options(), 1, CONTEXT, draft=draft, drafter=drafter)
                tokens, seconds = 0, 0.0
                for ids in texts:
                    turn = Turn(ids, max_tokens=ANSWER, sampling=Sampling(), ignore_end=True)
                    writing = Writing(loop, turn)
                    for _ in writing:
                        pass
                    timing = writing.timing
                    tokens, seconds = (
                        tokens + timing.new_tokens - 1,
                        seconds + timing.decode_seconds,
                    )
                    if timing.drafted is not None:
                        taken, drafted = taken + timing.drafted[0], drafted + timing.drafted[1]
                found.append(tokens / seconds)
        ratios = [b / a for a, b in zip(*speeds.values(), strict=True)]
        without, with_them = (statistics.median(found) for found in speeds.values())
        print(
            f"{name}: {without:.1f} tokens/s, with drafts {with_them:.1f}, "
            f"{statistics.median(ratios):.2f} x ({min(ratios):.2f} to {max(ratios):.2f}); "
            f"{taken / max(1, drafted):.0%} of {drafted} guesses right"
        )
    slots = open_slots(folder, Options(), 1, CONTEXT)
    slots.run(np.array([modules[0]]), np.array([0]), 0)
    for rows in (1, 2, 4, 8):
        times = []
        for _ in range(20):
            start = time.perf_counter()
            slots.run(np.array([modules[0][:rows]]), np.array([MODULE]), 0)
            times.append(time.perf_counter() - start)
        print(f"a call with {rows} rows: {statistics.median(times) * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
