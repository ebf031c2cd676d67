"""Small checkpoints and adapters, and a Python whose model builder is a stand-in."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

HERE = Path(__file__).parent
STANDIN = HERE / "builder_standin"
LLAMA = HERE.parent / "data" / "llama"
Array = npt.NDArray[Any]
LAYER = "model.layers.0.self_attn"


def save_tensors(tensors: Mapping[str, Array], path: Path) -> None:
    """Writes a safetensors file."""
    names = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16", np.dtype(np.int8): "I8"}
    header, at = {}, 0
    for name, values in tensors.items():
        offsets = [at, at := at + values.nbytes]
        header[name] = {
            "dtype": names[values.dtype], "shape": values.shape, "data_offsets": offsets,
        }  # fmt: skip
    text = json.dumps(header).encode()
    content = b"".join(values.tobytes() for values in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + content)


def weights(*shape: int, seed: int = 0, dtype: type = np.float32) -> Array:
    """Seeded normal values."""
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def checkpoint(folder: Path, **config: object) -> Path:
    """A checkpoint of two layers in two files, whose tensors have a few elements."""
    folder.mkdir()
    content = {"model_type": "llama", "num_hidden_layers": 2, "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(content | config))
    (folder / "tokenizer.json").write_text("{}")
    shards = {
        "model-00001-of-00002.safetensors": {
            "model.embed_tokens.weight": weights(9, 6, seed=1),
            f"{LAYER}.q_proj.weight": weights(8, 6, seed=2),
            f"{LAYER}.q_proj.bias": weights(8, seed=3),
        },
        "model-00002-of-00002.safetensors": {
            f"{LAYER}.o_proj.weight": weights(6, 8, seed=4, dtype=np.float16),
            "lm_head.weight": weights(9, 6, seed=5),
        },
    }
    for name, tensors in shards.items():
        save_tensors(tensors, folder / name)
    index = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder


def adapter(
    folder: Path, tensors: Mapping[str, Array] | None = None, prefix: str = "base_model.model.",
    **config: object,
) -> Path:  # fmt: skip
    """An adapter of rank 2, by default of the queries; a field that is ... is left out."""
    folder.mkdir()
    content = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]} | config
    content = {name: value for name, value in content.items() if value is not ...}
    (folder / "adapter_config.json").write_text(json.dumps(content))
    if tensors is None:
        tensors = halves("q_proj", 8, 6)
    named = {prefix + name: values for name, values in tensors.items()}
    save_tensors(named, folder / "adapter_model.safetensors")
    return folder


def halves(module: str, n: int, k: int, rank: int = 2, seed: int = 10) -> dict[str, Array]:
    """lora_A and lora_B of a projection in the first layer."""
    return {
        f"{LAYER}.{module}.lora_A.weight": weights(rank, k, seed=seed),
        f"{LAYER}.{module}.lora_B.weight": weights(n, rank, seed=seed + 1),
    }


def python_with_builder(file: Path, **environment: object) -> Path:
    """An interpreter with the stand-ins, and with variables of the environment."""
    file.parent.mkdir(parents=True, exist_ok=True)
    variables = {"PYTHONPATH": STANDIN, "STANDIN_MODEL": LLAMA, **environment}
    lines = [f"export {name}='{value}'" for name, value in variables.items()]
    file.write_text("\n".join(["#!/bin/sh", *lines, f'exec "{sys.executable}" "$@"', ""]))
    file.chmod(0o755)
    return file
