"""Make the folders in tests/data/mobius: tiny random models as mobius-onnx exports them.

    models/bin/pip install mobius-onnx  # into the environment of requirements-models.txt
    models/bin/python lab/make_mobius_models.py tests/data/mobius

mobius-onnx (Microsoft's model definitions in onnxscript) writes ONNX's own Attention,
RotaryEmbedding and RMSNormalization, or with `--ep cpu` GroupQueryAttention. A checkpoint that GPTQ
quantised becomes MatMulNBits, with a function of the model beside it that says in standard
operators what MatMulNBits does.

Without a name after the folder, the script makes all of them. It replaces a folder that exists.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import torch
from genai_builder import GENAI_FILES, randomise_vectors
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, Qwen3Config

TOKENIZER = Path(__file__).parent.parent / "tests" / "data" / "phi3"
SEED = 7
GROUP = 32

COMMON: dict[str, Any] = {
    "vocab_size": 288,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 128,
    # Wide enough that attention is far from uniform and logits are far from ties.
    "initializer_range": 0.15,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}
GEMMA3: dict[str, Any] = {
    "query_pre_attn_scalar": 32,
    "sliding_window": 16,
    "layer_types": ["sliding_attention", "full_attention"],
}


@dataclass(frozen=True)
class Export:
    """A model: its configuration, mobius's --ep, and whether GPTQ quantised it."""

    config: Callable[..., Any]
    ep: str
    gptq: bool = False


EXPORTS = {
    "gemma3": Export(lambda **common: Gemma3TextConfig(**common, **GEMMA3), "default"),
    "llama_int4": Export(LlamaConfig, "default", gptq=True),
    "qwen3_int4": Export(Qwen3Config, "cpu", gptq=True),
}


def quantise(folder: Path) -> None:
    """Replaces the layers' matrices by those of a GPTQ checkpoint: symmetric, of 4 bits."""
    state = load_file(folder / "model.safetensors")
    for key in [key for key in state if key.endswith("_proj.weight")]:
        n, k = state[key].shape
        groups = state.pop(key).reshape(n, k // GROUP, GROUP)
        scales = groups.abs().amax(-1) / 7
        codes = (groups / scales[..., None]).round().clamp(-8, 7).to(torch.int64) + 8
        nibbles = codes.reshape(n, k // 8, 8) << (4 * torch.arange(8))
        base = key.removesuffix("weight")
        # The sum is a number of 32 bits without a sign; GPTQ stores its bits as int32.
        packed = nibbles.sum(-1).T
        signed = torch.where(packed < 1 << 31, packed, packed - (1 << 32))
        state[f"{base}qweight"] = signed.to(torch.int32).contiguous()
        state[f"{base}scales"] = scales.T.contiguous()
    save_file(state, folder / "model.safetensors")
    file = folder / "config.json"
    method = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": True}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": method}))


def make(name: str, destination: Path) -> None:
    """Writes the folder of one model."""
    export = EXPORTS[name]
    with tempfile.TemporaryDirectory() as scratch:
        hf = Path(scratch)
        torch.manual_seed(SEED)
        model = AutoModelForCausalLM.from_config(export.config(**COMMON))
        randomise_vectors(model)
        model.save_pretrained(hf)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(TOKENIZER / file, hf)
        if export.gptq:
            quantise(hf)
        shutil.rmtree(destination, ignore_errors=True)
        subprocess.run(
            [sys.executable, "-m", "mobius", "build", "--config", str(hf), str(destination),
             "--ep", export.ep, "--runtime", "ort-genai"],
            check=True,
        )  # fmt: skip
    model = onnx.load(destination / "model.onnx", load_external_data=False)
    model.graph.name = name  # mobius takes the path of the temporary folder
    (destination / "model.onnx").write_bytes(model.SerializeToString())
    for file in destination.iterdir():
        if file.name not in GENAI_FILES:
            file.unlink()


def main() -> None:
    """Makes the folders named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(EXPORTS))
    arguments = parser.parse_args()
    for name in arguments.names or EXPORTS:
        make(name, arguments.folder / name)
        size = sum(file.stat().st_size for file in (arguments.folder / name).iterdir())
        print(f"{name}: {size / 1e6:.2f} MB", flush=True)


if __name__ == "__main__":
    main()
