"""What drafts make of texts: bench_drafts.py COMPILED [--draft-model DIR] [--beside 1] [--rounds 5]

    python lab/bench_drafts.py ort_aie_ep/demo_model
    python lab/make_smollm2.py SMOL && ort-aie compile SMOL COMPILED --quantize q4nx
    python lab/bench_drafts.py COMPILED

Two kinds of text, of the standard library's modules that no demonstration model was trained on:
`new` goes on with the beginning of a module, `again` with one that stands in the prompt twice, the
second time its first lines only, as when a program is to be changed. They are written, `--beside`
at a time, in turns without drafts, with copies, and with copies and the smaller model; printed are
the medians of tokens per second, once all are written, the ratios to those without, and the share
of guesses that were right, of copies and of the model's; then what a call with 1 to 8 rows takes,
which bounds all of it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from pathlib import Path

import numpy as np

from ort_aie_ep.errors import AieError
from ort_aie_ep.models import corpus
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.models.tokenizer import load_tokenizer
from ort_aie_ep.running.drafts import Drafted, Drafting, Drafts
from ort_aie_ep.running.loop import Loop, open_loop
from ort_aie_ep.running.slots import Slots, open_slots
from ort_aie_ep.running.turns import Turn
from ort_aie_ep.runtime.sessions import Options

MODULE, BEGINNING, ANSWER, TEXTS, CONTEXT = 300, 40, 128, 4, 1024


def step(loop: Loop) -> None:
    """One of the loop."""
    for _, event in loop.step():
        if isinstance(event, AieError):
            raise event


class Watched(Drafts):
    """Counts guesses, and those that were right, by whether the smaller model made them."""

    def __init__(self, drafts: Drafts, guesses: Counter[bool], right: Counter[bool]) -> None:
        self.__dict__, self._guesses, self._right = drafts.__dict__, guesses, right

    def judge(self, text: Drafting, guesses: Drafted, taken: int) -> None:
        """See `Drafts`."""
        by_model = guesses.weights is not None
        self._guesses[by_model] += len(guesses.tokens)
        self._right[by_model] += taken
        super().judge(text, guesses, taken)


def write(loop: Loop, prompts: list[list[int]]) -> tuple[int, float]:
    """Writes texts beside each other: tokens since all were begun, and what those took."""
    turns = [
        Turn(p, max_tokens=ANSWER, sampling={"temperature": 0.0}, ignore_end=True) for p in prompts
    ]
    texts = [loop.add(turn) for turn in turns]
    while not all(text.written for text in texts):
        step(loop)
    begun, start = sum(text.written for text in texts), time.perf_counter()
    while loop.texts:
        step(loop)
    return sum(text.written for text in texts) - begun, time.perf_counter() - start


def call_seconds(slots: Slots, prompt: list[int], rows: int) -> float:
    """The median of what a call with so many rows takes after a prompt."""
    slots.run(np.array([prompt]), np.array([0]), 0)
    times = []
    for _ in range(20):
        start = time.perf_counter()
        slots.run(np.array([prompt[:rows]]), np.array([len(prompt)]), 0)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


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
        ways = {"without": (0, None), "copies": (given.draft, None)}
        if drafter is not None:
            ways["copies and model"] = given.draft, drafter
        speeds: dict[str, list[float]] = {way: [] for way in ways}
        counts: dict[str, tuple[Counter[bool], Counter[bool]]] = {
            way: (Counter(), Counter()) for way in ways
        }
        for _ in range(given.rounds):
            for way, (draft, model) in ways.items():
                loop = open_loop(
                    folder, Options(), given.beside, CONTEXT, draft=draft, drafter=model
                )
                if loop.drafts is not None:
                    loop.drafts = Watched(loop.drafts, *counts[way])
                parts = [
                    write(loop, texts[first : first + given.beside])
                    for first in range(0, len(texts), given.beside)
                ]
                tokens, seconds = map(sum, zip(*parts, strict=True))
                speeds[way].append(tokens / seconds)
        for way, found in speeds.items():
            ratios = [b / a for a, b in zip(speeds["without"], found, strict=True)]
            shares = [
                f"{right[by_model] / guesses[by_model]:.0%} of {guesses[by_model]} "
                f"guesses {'by the model ' * by_model}right"
                for guesses, right in [counts[way]]
                for by_model in guesses
            ]
            print(
                f"{name}, {way}: {statistics.median(found):.1f} tokens/s, "
                f"{statistics.median(ratios):.2f} x ({min(ratios):.2f} to {max(ratios):.2f})",
                *shares,
                sep="; ",
            )
    slots = open_slots(folder, Options(), 1, CONTEXT)
    for rows in (1, 2, 4, 8):
        print(f"a call with {rows} rows: {call_seconds(slots, modules[0], rows) * 1e3:.2f} ms")
    if drafter is not None:
        slots = open_slots(drafter, Options(), 1, CONTEXT)
        print(f"a guess by the model: {call_seconds(slots, modules[0], 1) * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
