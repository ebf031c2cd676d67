"""Make tests/data/pictures: a tiny Gemma 3 with pictures, and what transformers computes of one.

    python -m venv models && models/bin/pip install -r lab/requirements-models.txt
    models/bin/python lab/make_picture_model.py tests/data/pictures

The weights are random and seeded, rounded to bfloat16 as in published checkpoints. The vision tower
has a head of 72 channels, as SigLIP's are. Its 32 x 32 patches become the 256 tokens that
onnxruntime-genai expects of each picture. The folder must not exist.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

import numpy as np
import torch
from export_gemma3 import export
from genai_builder import save_tokenizer, train_tokenizer
from PIL import Image
from tokenizers import AddedToken
from transformers import Gemma3Config, Gemma3ForConditionalGeneration

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ort_aie_ep.models import corpus

SEED, VOCABULARY, SIDE, TOKENS = 7, 280, 64, 6
BEGIN, IMAGE, END = "<start_of_image>", "<image_soft_token>", "<end_of_image>"
PROMPT = f"A picture: {BEGIN} What is it?"
TWO = f"One {BEGIN} and two {BEGIN}?"  # the second is the first, turned


def make_config(ids: dict[str, int], vocabulary: int) -> Gemma3Config:
    """A text model of a local and a global layer, and a tower of two."""
    return Gemma3Config(
        text_config={
            "vocab_size": vocabulary,
            "hidden_size": 64,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "sliding_window": 100,  # less than a picture
            "layer_types": ["sliding_attention", "full_attention"],
            "max_position_embeddings": 1024,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "pad_token_id": 0,
            "initializer_range": 0.1,
        },
        vision_config={
            "hidden_size": 72,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 1,
            "image_size": SIDE,
            "patch_size": 2,
            "vision_use_head": False,
        },
        tie_word_embeddings=False,  # a tied one would repeat its input
        mm_tokens_per_image=256,
        boi_token_index=ids[BEGIN],
        eoi_token_index=ids[END],
        image_token_index=ids[IMAGE],
    )


def randomise(model: Gemma3ForConditionalGeneration, unwritten: list[int]) -> None:
    """Random weights, of which each counts, in numbers that bfloat16 has."""
    torch.manual_seed(SEED)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                start = 1.0 if "layer_norm" in name and name.endswith("weight") else 0.0
                parameter.copy_(start + 0.1 * torch.randn(parameter.shape))
            elif "position_embedding" in name:
                parameter.copy_(0.5 * torch.randn(parameter.shape))
            else:
                parameter.copy_(0.12 * torch.randn(parameter.shape))
        # Embeddings times the root of the hidden size would drown the layers.
        model.get_input_embeddings().weight.mul_(0.5)
        model.model.language_model.norm.weight.add_(4.0)
        assert model.lm_head.weight is not model.get_input_embeddings().weight
        model.lm_head.weight[unwritten] = 0.0
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16().float())


def make_picture() -> np.ndarray:
    """(height, width, 3): a disc before a gradient, with noise."""
    y, x = np.mgrid[:SIDE, :SIDE] / SIDE
    channels = [x, y, np.hypot(x - 0.4, y - 0.6) < 0.25]
    noise = np.random.default_rng(SEED).integers(0, 4, (SIDE, SIDE, 3)) / 16
    return (255 * (0.8 * np.stack(channels, -1) + noise)).astype(np.uint8)


def main() -> None:
    """Make, export, and run in transformers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True)
    tokenizer = train_tokenizer(itertools.islice(corpus.training_text(), 40), VOCABULARY)
    names = (BEGIN, IMAGE, END)
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in names])
    ids = {name: tokenizer.token_to_id(name) for name in names}
    save_tokenizer(tokenizer, folder, 1024)
    model = Gemma3ForConditionalGeneration(make_config(ids, tokenizer.get_vocab_size())).eval()
    text = (tokenizer.decode([i]) for i in range(tokenizer.get_vocab_size()))
    # Special tokens decode to nothing, and parts of characters to no character.
    randomise(model, [i for i, x in enumerate(text) if not (x.isascii() and x.isprintable() and x)])
    export(model, folder)

    pictures = [make_picture(), make_picture()[::-1, ::-1]]
    for name, picture in zip(("picture", "turned"), pictures, strict=True):
        Image.fromarray(picture).save(folder / f"{name}.png")

    def ids_of(prompt: str) -> torch.Tensor:
        expanded = prompt.replace(BEGIN, f"\n\n{BEGIN}{256 * IMAGE}{END}\n\n")
        return torch.tensor([tokenizer.encode(expanded).ids])

    def logits(tokens: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
        types = (tokens == ids[IMAGE]).to(torch.int64)
        return model(
            input_ids=tokens, pixel_values=pixels, token_type_ids=types, use_cache=False
        ).logits[0]

    both = torch.from_numpy(np.stack(pictures).astype(np.float32) / 255 * 2 - 1).permute(0, 3, 1, 2)
    tokens, pixels = ids_of(PROMPT), both[:1]
    both_ways, causal = [], None
    with torch.no_grad():
        features = model.get_image_features(pixels).pooler_output
        for _ in range(TOKENS):
            out = logits(tokens, pixels)
            if causal is None:
                causal = model(input_ids=tokens, pixel_values=pixels, use_cache=False).logits[0]
                prompt, whole = tokens, out
            both_ways.append(out[-1])
            tokens = torch.cat([tokens, out[-1].argmax()[None, None]], 1)
        of_two = logits(ids_of(TWO), both)
    np.savez_compressed(
        folder / "reference.npz",
        prompt=PROMPT,
        input_ids=prompt.numpy(),
        image_features=features.numpy().reshape(-1, features.shape[-1])[::16],
        logits=torch.stack(both_ways).numpy(),
        prompt_logits=whole.numpy()[::16],
        tokens=tokens[0, prompt.shape[1] :].numpy(),
        two_pictures=TWO,
        two_logits=of_two.numpy()[::48],
    )
    apart = (whole - causal).norm() / whole.norm()
    print(f"logits with causal image tokens differ by {apart:.3f} of their norm", file=sys.stderr)


if __name__ == "__main__":
    main()
