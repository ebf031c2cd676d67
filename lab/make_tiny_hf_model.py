"""Make a tiny random Llama as a Hugging Face folder, for trying quantisers and exporters.

    models/bin/python lab/make_tiny_hf_model.py TINY

Its feed-forward width is an odd number of quantisation blocks. tests/data/olive and
tests/data/quark were made from it, as docs/hosts/olive.md and docs/hosts/quark.md describe.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

TOKENIZER = Path(__file__).parent.parent / "tests" / "data" / "llama"
SEED = 7


def main() -> None:
    """Write the folder named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=500,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=128,
        initializer_range=0.15,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape))
        model.lm_head.weight[0] = 0.0  # so that no greedy text ends early
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / name, folder)


if __name__ == "__main__":
    main()
