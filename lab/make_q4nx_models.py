"""Make the `.q4nx` files in tests/data with FastFlowLM's public converter, from tiny random models.

    python -m venv models && models/bin/pip install -r lab/requirements-models.txt
    models/bin/pip install gguf==0.19.0 einops==0.8.2
    git clone https://github.com/FastFlowLM/FLM_Q4NX_Converter
    models/bin/python lab/make_q4nx_models.py FLM_Q4NX_Converter tests/data

The script writes a model as GGUF, with tensors of kinds Q4_1 and Q4_0, and the converter makes a
`.q4nx` file of it. expected.npz beside the file has tokens and the logits that transformers
computes in float32 with the file's own weights, and the error of its bfloat16.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quantize
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, PreTrainedConfig

from ort_aie_ep import _native
from ort_aie_ep.compiler.fastflowlm.container import read_container
from ort_aie_ep.formats import q4nx

SEED = 11
TOKENS = 48
VOCAB = 128
# The other tensors are Q4_1.
Q4_0 = ("self_attn.v_proj", "mlp.up_proj")
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
    "initializer_range": 0.1,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}
MODELS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(
        **COMMON,
        head_dim=32,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
    "gemma3": Gemma3TextConfig(
        **COMMON,
        head_dim=32,
        query_pre_attn_scalar=32,
        sliding_window=32,
        layer_types=["sliding_attention", "full_attention"],
    ),
}
# The converter's configs/*.json map these to the names of a `.q4nx` file.
GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def make_model(name: str) -> Any:
    """A random model whose norms are not all ones."""
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(MODELS[name], dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape))
        if name == "gemma3":
            # Otherwise embeddings times √hidden would drown the layers, and a tied model would
            # repeat its input.
            model.get_input_embeddings().weight.mul_(0.1)
            model.base_model.norm.weight.add_(8.0)
    return model


def gguf_name(name: str, parameter: str) -> tuple[str, str]:
    """A parameter's name in GGUF, and its role."""
    role = parameter.removeprefix("model.").removesuffix(".weight")
    if role == "embed_tokens":
        return "token_embd.weight", role
    if role == "norm":
        return "output_norm.weight", role
    _, layer, role = role.split(".", 2)
    names = GGUF_NAMES | (GEMMA_NAMES if name == "gemma3" else {})
    return f"blk.{layer}.{names[role]}.weight", role


def write_gguf(name: str, model: Any, path: Path) -> None:
    """Writes GGUF as llama.cpp does: adjacent rotary pairs (Llama), norms as 1 + weight (Gemma)."""
    config = model.config
    writer = GGUFWriter(str(path), name)
    writer.add_name(name)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_rope_dimension_count(config.head_dim)
    for parameter, value in model.named_parameters():
        content = value.detach().numpy()
        gguf, role = gguf_name(name, parameter)
        if content.ndim == 1:
            writer.add_tensor(gguf, content + np.float32(name == "gemma3"))
            continue
        if name == "llama" and role in ("self_attn.q_proj", "self_attn.k_proj"):
            halves = content.reshape(-1, 2, config.head_dim // 2, content.shape[1])
            content = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(content.shape))
        kind = GGMLQuantizationType.Q4_0 if role in Q4_0 else GGMLQuantizationType.Q4_1
        writer.add_tensor(gguf, quantize(content, kind), raw_dtype=kind)
    if name == "llama":
        exponents = np.arange(0, config.head_dim, 2) / config.head_dim
        plain = config.rope_parameters["rope_theta"] ** -exponents
        scaled = model.model.rotary_emb.inv_freq.numpy()
        writer.add_tensor("rope_freqs.weight", (plain / scaled).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def convert(converter: Path, gguf: Path, folder: Path, name: str) -> None:
    """Runs the converter, which must run in its own folder."""
    code = (
        "import sys; from q4nx import create_converter; gguf, folder, name = sys.argv[1:]; "
        "create_converter(gguf, name).convert(q4nx_path=folder)"
    )
    command = [sys.executable, "-c", code, str(gguf.absolute()), str(folder.absolute()), name]
    subprocess.run(command, cwd=converter, check=True, capture_output=True)


def load_file(name: str, model: Any, path: Path) -> None:
    """Gives the model the weights in the file."""
    tensors = read_container(path)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
    with torch.no_grad():
        for parameter, value in model.named_parameters():
            stored = tensors[parameter]
            content = np.concatenate([*stored.chunks(stored.nbytes)])
            if stored.dtype == "BF16":
                weights = content.view(q4nx.bfloat16).astype(np.float32).reshape(stored.shape)
                if name == "gemma3":  # 1 + weight, and embeddings multiplied by √hidden
                    root = np.float32(model.config.hidden_size**0.5)
                    weights = weights / root if "embed" in parameter else weights - 1
            else:
                signed = any(role in parameter for role in Q4_0)
                weights = dequantize(content, tuple(value.shape), signed)
            value.copy_(torch.from_numpy(np.ascontiguousarray(weights)))


def dequantize(content: np.ndarray, size: tuple[int, int], signed: bool) -> np.ndarray:
    """Weights of `size` from blocks: scale · code + min, or scale · signed code."""
    blocks = content.reshape(q4nx.blocks_shape(*size))
    codes, *factors = _native.unpack(blocks, *size)
    values = codes.astype(np.float32)
    if signed:
        values = np.where(values > 7, values - 16, values)
    floats = (part.view(q4nx.bfloat16).astype(np.float32) for part in factors)
    spread = [part.repeat(q4nx.GROUP, axis=1) for part in floats]
    return spread[0][:, : size[1]] * values + spread[1][:, : size[1]]


def make(name: str, converter: Path, destination: Path) -> None:
    """Writes the folder of one model."""
    model = make_model(name)
    shutil.rmtree(destination, ignore_errors=True)
    destination.mkdir()
    with tempfile.TemporaryDirectory() as scratch:
        gguf = Path(scratch, f"{name}.gguf")
        write_gguf(name, model, gguf)
        convert(converter, gguf, Path(scratch, "out"), name)
        shutil.copyfile(Path(scratch, "out", "model.q4nx"), destination / "model.q4nx")
    model.config.save_pretrained(destination)
    load_file(name, model, destination / "model.q4nx")
    tokens = torch.randint(1, VOCAB, (1, TOKENS))
    with torch.no_grad():
        exact = model(tokens).logits[0]
        rounded = model.to(torch.bfloat16)(tokens).logits[0].float()
    np.savez(
        destination / "expected.npz",
        tokens=tokens.numpy(),
        logits=exact.numpy(),
        bfloat16_error=(rounded - exact).abs().max().numpy(),
    )


def main() -> None:
    """Make all folders."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("converter", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    for name in MODELS:
        destination = arguments.folder / f"q4nx_{name}"
        make(name, arguments.converter, destination)
        size = sum(file.stat().st_size for file in destination.iterdir())
        print(f"{destination.name}: {size / 1e6:.2f} MB", flush=True)


if __name__ == "__main__":
    main()
