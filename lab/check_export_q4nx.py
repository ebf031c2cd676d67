"""Check the way from a checkpoint to FastFlowLM's file and back, with the real model builder.

    python -m venv models && models/bin/pip install -r lab/requirements-models.txt
    models/bin/python lab/check_export_q4nx.py --ort-aie .venv/bin/ort-aie

Each checkpoint is tiny and random. `ort-aie compile` runs the builder in this Python, `export-q4nx`
writes the file from what was compiled, and `import-q4nx` reads it. Prints a line for each family,
and exits with 1 if a projection's blocks or a norm differ between the two models.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import torch
import transformers
from onnx import numpy_helper

transformers.utils.logging.disable_progress_bar()
TOKENIZER = Path(__file__).parent.parent / "tests" / "data" / "llama"
SEED = 7
# The builder takes any Linear with as many out-features as the vocabulary for the lm_head.
SIZES = {
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "initializer_range": 0.1,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 128,
}
CONFIGS = {
    "llama": transformers.LlamaConfig(**SIZES, tie_word_embeddings=True, rope_parameters=LLAMA3),
    "mistral": transformers.MistralConfig(**SIZES, sliding_window=None),
    "qwen2": transformers.Qwen2Config(**SIZES),
    "qwen3": transformers.Qwen3Config(**SIZES, head_dim=64, tie_word_embeddings=True),
    "gemma3": transformers.Gemma3TextConfig(
        **SIZES, head_dim=64, sliding_window=64, query_pre_attn_scalar=64
    ),
}


def make(config: transformers.PreTrainedConfig, folder: Path) -> None:
    """A random checkpoint, with norms and biases that are not all the same."""
    torch.manual_seed(SEED)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1:
                noise = torch.randn_like(weight) * 0.1
                weight.copy_((weight + noise).bfloat16().float() if "bias" not in name else noise)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / name, folder)


def weights(folder: Path) -> dict[str, np.ndarray]:
    """Blocks, norms and biases by name."""
    model = onnx.load(folder / "model.onnx")
    tables = ("cos_cache", "sin_cache", "model.embed_tokens")
    tensors = (t for t in model.graph.initializer if not t.name.startswith(tables))
    return {t.name: numpy_helper.to_array(t) for t in tensors}


def main() -> None:
    """Checks each family."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ort-aie", type=Path, required=True)
    command = parser.parse_args().ort_aie
    failed = False
    for name, config in CONFIGS.items():
        with tempfile.TemporaryDirectory() as scratch:
            work = Path(scratch)
            make(config, work / "checkpoint")
            (work / "out").mkdir()
            for words in (
                ("compile", "checkpoint", "compiled", "--builder-python", sys.executable),
                ("export-q4nx", "compiled", "out/model.q4nx"),
                ("import-q4nx", "out/model.q4nx", "imported"),
            ):
                done = subprocess.run(
                    [command.absolute(), *words], cwd=work, capture_output=True, text=True
                )
                if done.returncode:
                    sys.exit(f"{name}: {words[0]}: {done.stderr}")
            one, other = weights(work / "compiled"), weights(work / "imported")
            size = (work / "out" / "model.q4nx").stat().st_size
            differ = sorted(
                key
                for key in one.keys() | other.keys()
                if key not in one or key not in other or not np.array_equal(one[key], other[key])
            )
            # A file holds bfloat16.
            wrong = [
                key
                for key in differ
                if key not in one
                or key not in other
                or one[key].dtype != np.float32
                or np.abs(one[key] - other[key]).max() > 2**-8 * np.abs(one[key]).max()
            ]
            failed = failed or bool(wrong)
            print(
                f"{name}: {size} bytes, {len(one)} weights; {len(differ)} norms or biases rounded "
                f"to bfloat16; wrong: {wrong or 'none'}"
            )
    sys.exit(failed)


if __name__ == "__main__":
    main()
