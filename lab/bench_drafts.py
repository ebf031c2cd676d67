"""What drafts make of texts: bench_drafts.py COMPILED [--draft-model DIR] [--beside 1] [--rounds 5]

    python lab/bench_drafts.py ort_aie_ep/demo_model
    python lab/make_smollm2.py SMOL && ort-aie compile SMOL COMPILED --quantize q4nx
    python lab/bench_drafts.py COMPILED

Two kinds of text, of the standard library's modules that no demonstration model was trained on:
`new` goes on with the beginning of a module, `again` with one that stands in the prompt twice, the
second time its first lines only, as when a program is to be changed. They are written, `--beside`
at a time, with and without drafts in turns; printed are the medians of tokens per second, once all
are written, their ratio, and the share of guesses that were right; then what a call with 1 to 8
rows takes, which bounds all of it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np

from ort_aie_ep.errors import AieError
from ort_aie_ep.models import corpus
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.models.tokenizer import load_tokenizer
from ort_aie_ep.running.loop import Loop, open_loop
from ort_aie_ep.running.slots import open_slots
from ort_aie_ep.running.turns import Sampling, Turn
from ort_aie_ep.runtime.sessions import Options

MODULE, BEGINNING, ANSWER, TEXTS, CONTEXT = 300, 40, 128, 4, 1024


def step(loop: Loop) -> None:
    """One of the loop."""
    for _, event in loop.step():
        if isinstance(event, AieError):
            raise event


def write(loop: Loop, prompts: list[list[int]]) -> tuple[int, float, int, int]:
    """Writes texts beside each other: tokens since all were begun, what those took, and how many
    guesses were right, of how many."""
    turns = [Turn(p, max_tokens=ANSWER, sampling=Sampling(), ignore_end=True) for p in prompts]
    texts = [loop.add(turn) for turn in turns]
    while not all(text.written for text in texts):
        step(loop)
    begun, start = sum(text.written for text in texts), time.perf_counter()
    while loop.texts:
        step(loop)
    seconds = time.perf_counter() - start
    guesses = [text.drafting for text in texts if text.drafting is not None]
    return (
        sum(text.written for text in texts) - begun,
        seconds,
        sum(text.taken for text in guesses),
        sum(text.drafted for text in guesses),
    )


def main() -> None:
    """Measures, and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--draft", type=int, default=8)
    parser.add_argument("--draft-model", type=Path)
    parser.add_argument("--beside", type=int, default=1)
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
                loop = open_loop(
                    folder, Options(), given.beside, CONTEXT, draft=draft, drafter=drafter
                )
                parts = [
                    write(loop, texts[first : first + given.beside])
                    for first in range(0, len(texts), given.beside)
                ]
                tokens, seconds, right, guessed = map(sum, zip(*parts, strict=True))
                taken, drafted = taken + right, drafted + guessed
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
