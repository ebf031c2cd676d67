"""Make the demonstration model: train it, and export it to an int4 genai folder.

    python -m venv models && models/bin/pip install -r lab/requirements-models.txt
    models/bin/python lab/make_demo_model.py --work WORK --out ort_aie_ep/demo_model

The script trains a byte-level BPE tokenizer and a Llama-style model of 4.5 million parameters. The
text is the source code of the running Python's standard library (`ort_aie_ep.models.corpus`),
without the modules held out by name. Training takes about half an hour on two cores, and
continues from its last checkpoint in WORK. `ort-aie accuracy` measures the result.

The last part of the training uses the weights as the exporter will round them (quantisation-aware
training with a straight-through gradient). Otherwise a model this small would lose a visible part
of its quality to four bits.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from genai_builder import END_OF_TEXT, build_genai_folder, save_tokenizer, train_tokenizer
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ort_aie_ep.models import corpus


@dataclass(frozen=True)
class Recipe:
    """Everything that the weights depend on, except the versions in requirements-models.txt."""

    vocab: int = 4096
    hidden: int = 256
    layers: int = 5
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 32
    # A multiple of the quantisation block (32) but not of 256, so that padding of K is exercised.
    intermediate: int = 672
    max_positions: int = 2048

    seed: int = 1
    steps: int = 3600
    warmup: int = 150
    tokens_per_step: int = 4096
    context: int = 256
    # The last steps use the whole range of positions.
    long_context: int = 2048
    long_steps: int = 400
    quantised_steps: int = 1200
    learning_rate: float = 2e-3
    final_learning_rate: float = 5e-5
    weight_decay: float = 0.1


def token_stream(tokenizer: Tokenizer, texts: Iterator[tuple[str, str]]) -> np.ndarray:
    """All texts in one row of token ids, int64, each text preceded by the end-of-text token."""
    end: int = tokenizer.token_to_id(END_OF_TEXT)
    ids: list[int] = []
    for _, text in texts:
        ids.append(end)
        ids.extend(tokenizer.encode(text).ids)
    return np.asarray(ids, dtype=np.int64)


def make_model(recipe: Recipe) -> LlamaForCausalLM:
    """The untrained model."""
    torch.manual_seed(recipe.seed)
    config = LlamaConfig(
        vocab_size=recipe.vocab,
        hidden_size=recipe.hidden,
        intermediate_size=recipe.intermediate,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        head_dim=recipe.head_dim,
        max_position_embeddings=recipe.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def rounded_to_int4(weight: torch.Tensor, block: int = 32) -> torch.Tensor:
    """The values of (N, K) float32 weights after the builder's symmetric int4 quantiser.

    The value of largest magnitude of each block of K becomes code 0 (that is −8 · scale).
    """
    blocks = weight.reshape(weight.shape[0], -1, block)
    extreme = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
    scale = extreme / -8.0
    safe = torch.where(scale == 0, torch.ones_like(scale), scale)
    return ((blocks / safe).round().clamp(-8, 7) * scale).reshape(weight.shape)


@contextlib.contextmanager
def rounded_weights(model: LlamaForCausalLM, enabled: bool) -> Iterator[None]:
    """Inside, the matrices hold their int4 values; outside, the values the optimiser moves.

    Gradients computed inside are applied outside: the straight-through estimator.
    """
    if not enabled:
        yield
        return
    matrices = [p for p in model.parameters() if p.ndim == 2]
    kept = [p.detach().clone() for p in matrices]
    with torch.no_grad():
        for parameter in matrices:
            parameter.copy_(rounded_to_int4(parameter))
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, original in zip(matrices, kept, strict=True):
                parameter.copy_(original)


def learning_rate(recipe: Recipe, step: int) -> float:
    """A recipe's learning rate at a step: a linear warm-up, then a cosine."""
    if step < recipe.warmup:
        return recipe.learning_rate * (step + 1) / recipe.warmup
    done = (step - recipe.warmup) / (recipe.steps - recipe.warmup)
    low, high = recipe.final_learning_rate, recipe.learning_rate
    return low + (high - low) * 0.5 * (1.0 + math.cos(math.pi * done))


def batch_of(recipe: Recipe, stream: np.ndarray, step: int) -> torch.Tensor:
    """(rows, context) int64 windows at random places, which depend on seed and step alone."""
    context = recipe.long_context if step >= recipe.steps - recipe.long_steps else recipe.context
    rng = np.random.default_rng([recipe.seed, step])
    starts = rng.integers(0, len(stream) - context, recipe.tokens_per_step // context)
    return torch.from_numpy(np.stack([stream[s : s + context] for s in starts]))


def restored(checkpoint: Path, model: LlamaForCausalLM, optimiser: torch.optim.Optimizer) -> int:
    """The step from which training goes on, with what `keep` wrote, if it did."""
    if not checkpoint.exists():
        return 0
    state = torch.load(checkpoint, weights_only=True)
    model.load_state_dict(state["model"])
    optimiser.load_state_dict(state["optimiser"])
    print(f"continuing at step {state['step']}", flush=True)
    return int(state["step"])


def keep(
    checkpoint: Path, model: LlamaForCausalLM, optimiser: torch.optim.Optimizer, step: int
) -> None:
    """Writes what training needs to go on after so many steps."""
    temporary = checkpoint.with_suffix(".tmp")
    state = {"model": model.state_dict(), "optimiser": optimiser.state_dict(), "step": step}
    torch.save(state, temporary)
    temporary.replace(checkpoint)


def held_out_loss(model: LlamaForCausalLM, stream: np.ndarray, context: int = 512) -> float:
    """Mean negative log-likelihood (nats per token) over consecutive windows of `stream`.

    Windows share one token, so every token except the first is predicted once.
    """
    total = 0.0
    with torch.no_grad():
        for start in range(0, len(stream) - 1, context - 1):
            window = torch.from_numpy(stream[start : start + context])
            logits = model(input_ids=window[None], use_cache=False).logits[0, :-1]
            loss = torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum")
            total += loss.item()
    return total / (len(stream) - 1)


def train(recipe: Recipe, work: Path) -> None:
    """Train tokenizer and model; write an HF folder to `work/hf`."""
    hf = work / "hf"
    if (hf / "model.safetensors").exists():
        print(f"{hf} already exists; nothing to train", flush=True)
        return
    tokenizer = train_tokenizer(corpus.training_text(), recipe.vocab)
    save_tokenizer(tokenizer, hf, recipe.max_positions)
    stream = token_stream(tokenizer, corpus.training_text())
    held_out = token_stream(tokenizer, corpus.held_out_text())
    print(f"{len(stream)} training tokens, {len(held_out)} held out", flush=True)

    model = make_model(recipe)
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim != 2]
    optimiser = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": recipe.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        betas=(0.9, 0.95),
        fused=True,
    )
    checkpoint = work / "checkpoint.pt"
    first = restored(checkpoint, model, optimiser)

    model.train()
    started = time.monotonic()
    losses: list[float] = []
    for step in range(first, recipe.steps):
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(recipe, step)
        batch = batch_of(recipe, stream, step)
        quantised = step >= recipe.steps - recipe.quantised_steps
        with rounded_weights(model, quantised):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(input_ids=batch, labels=batch, use_cache=False).loss
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
        done = step + 1
        if done % 50 == 0:
            seconds = time.monotonic() - started
            rate = (done - first) * recipe.tokens_per_step / seconds
            left = (recipe.steps - done) * seconds / (done - first)
            print(
                f"step {done}/{recipe.steps} loss {np.mean(losses[-50:]):.3f} "
                f"{rate:.0f} tokens/s, {seconds:.0f} s so far, {left:.0f} s to go",
                flush=True,
            )
        if done % 500 == 0:
            model.train(False)
            loss_now = held_out_loss(model, held_out[:20480])
            model.train()
            print(f"held-out loss {loss_now:.3f}", flush=True)
            keep(checkpoint, model, optimiser, done)
    print(f"trained in {time.monotonic() - started:.0f} s", flush=True)
    model.save_pretrained(hf)


def export(work: Path, out: Path) -> None:
    """Write the int4 genai folder."""
    if out.exists():
        shutil.rmtree(out)
    build_genai_folder(work / "hf", out)
    size = sum(file.stat().st_size for file in out.iterdir())
    print(f"{out}: {size / 1e6:.2f} MB", flush=True)


def main() -> None:
    """Train and export."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="write checkpoints to this folder")
    parser.add_argument("--out", type=Path, required=True, help="write the genai folder here")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.work.mkdir(parents=True, exist_ok=True)
    train(Recipe(), arguments.work)
    export(arguments.work, arguments.out)


if __name__ == "__main__":
    main()
