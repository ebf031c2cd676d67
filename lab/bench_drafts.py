"""What onnxruntime-genai's n-gram drafts gain on a model: bench_drafts.py COMPILED [K,K ...]

Completes the beginnings of held-out modules of Python's standard library, greedily, without drafts
and with up to K drafted tokens a round, in interleaved rounds. Prints the decoding speed over all
prompts in tokens per second (without the prompt itself), and its ratio with 95 % bounds from a
bootstrap over prompts. It also prints the share of verified drafts that were right, the tokens for
each call of the model, and the number of texts that are the same.
COMPILED needs a tokenizer and all logits: genai refuses drafts with `compile --last-logits`.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from importlib import metadata

import numpy as np
import onnxruntime_genai as genai

from ort_aie_ep.cli.console import bar
from ort_aie_ep.models import corpus
from ort_aie_ep.progress import Count

PROMPT, NEW, PROMPTS, ROUNDS, NGRAM = 512, 128, 12, 3, 3
RESAMPLES = 2000


@dataclass(frozen=True)
class Text:
    """A completion.

    Attributes:
        tokens: the new tokens.
        seconds: time for all new tokens except the first.
        right, verified: numbers of drafted tokens.
        calls: calls of the model, after the one for the prompt.
    """

    tokens: tuple[int, ...]
    seconds: float
    right: int
    verified: int
    calls: int


def complete(model: genai.Model, prompt: np.ndarray, draft: int) -> Text:
    """Greedy text after a prompt."""
    parameters = genai.GeneratorParams(model)
    parameters.set_search_options(
        max_length=len(prompt) + NEW, min_length=len(prompt) + NEW, do_sample=False
    )
    if draft:
        parameters.set_speculative_options(ngram_size=NGRAM, max_draft_tokens=draft)
    generator = genai.Generator(model, parameters)
    generator.append_tokens(prompt)
    generator.generate_next_token()
    start = time.perf_counter()
    while not generator.is_done():
        generator.generate_next_token()
    seconds = time.perf_counter() - start
    tokens = tuple(generator.get_sequence(0)[len(prompt) :].tolist())
    told = generator.get_speculative_stats()
    calls = told["target_forward_passes"] + told["standard_fallback_steps"]
    return Text(
        tokens,
        seconds,
        told["draft_tokens_accepted"],
        told["draft_tokens_evaluated"],
        calls if draft else len(tokens) - 1,
    )


def main() -> None:
    """Measures and prints a table in Markdown."""
    folder = sys.argv[1]
    sizes = [0, *(int(k) for k in (sys.argv[2] if len(sys.argv) > 2 else "1,2,4,8").split(","))]
    model = genai.Model(folder)
    tokenizer = genai.Tokenizer(model)
    encoded = (np.asarray(tokenizer.encode(text)) for _, text in corpus.held_out_text())
    prompts = [tokens[:PROMPT] for tokens in encoded if len(tokens) >= PROMPT][:PROMPTS]
    texts: dict[int, list[list[Text]]] = {k: [[] for _ in prompts] for k in sizes}
    with bar("bench", "completions") as progress:
        count = Count(progress, (ROUNDS + 1) * len(prompts) * len(sizes))
        for turn in range(ROUNDS + 1):
            for index, prompt in enumerate(prompts):
                for k in sizes:
                    count.begin(f"round {turn} of {ROUNDS}, drafts of {k}")
                    made = complete(model, prompt, k)
                    if turn:
                        texts[k][index].append(made)
                    count.step()
    # For each draft size and prompt, the seconds of the median round.
    seconds = np.array([[np.median([t.seconds for t in made]) for made in texts[k]] for k in sizes])
    new = np.array([len(made[0].tokens) - 1 for made in texts[0]])
    picks = np.random.default_rng(0).integers(0, len(prompts), (RESAMPLES, len(prompts)))
    version = metadata.version("onnxruntime-genai")
    print(
        f"onnxruntime-genai {version}, {len(prompts)} prompts of {PROMPT} tokens, {NEW} new ones, "
        f"ngram_size {NGRAM}, medians of {ROUNDS} rounds\n"
    )
    print("| drafted | tok/s | ratio (95 %) | drafts right | tokens a call | same text |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for k, row in zip(sizes, seconds, strict=True):
        ratios = seconds[0][picks].sum(axis=1) / row[picks].sum(axis=1)
        low, high = np.percentile(ratios, (2.5, 97.5))
        first = [made[0] for made in texts[k]]
        right, verified = sum(t.right for t in first), sum(t.verified for t in first)
        same = sum(a.tokens == b[0].tokens for a, b in zip(first, texts[0], strict=True))
        print(
            f"| {k or 'none'} | {new.sum() / row.sum():.0f} "
            f"| {seconds[0].sum() / row.sum():.2f} ({low:.2f}–{high:.2f}) "
            f"| {f'{right / verified:.0%}' if verified else ''} "
            f"| {new.sum() / sum(t.calls for t in first):.2f} | {same} of {len(first)} |"
        )


if __name__ == "__main__":
    main()
