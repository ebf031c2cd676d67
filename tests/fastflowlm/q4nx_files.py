"""`.q4nx` files made from the tiny models in tests/data, and the models that they should equal."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import numpy_q4nx as q4nx
import onnx_ir as ir

import ort_aie_ep
from ort_aie_ep.models.builder.weights import rotary_frequencies, rotary_rows
from ort_aie_ep.models.shapes import SHAPES, Shape

DATA = Path(__file__).parent.parent / "data"
TOOL_TEMPLATE = "additional_chat_templates/tool_use.jinja"
TINY: dict[str, Shape] = {
    name: SHAPES[f"tiny-{name}"] for name in ("llama", "qwen2", "qwen3", "gemma3")
}

Array = npt.NDArray[Any]
Tensors = dict[str, tuple[str, Array]]
"""The dtype in the file and the content, by name."""


def sizes_of_one_layer(shape: Shape) -> dict[str, tuple[int, int]]:
    """(out-features, in-features) of each matrix of a model with one layer, by name."""
    place = "model.layers.0"
    return {
        "lm_head": (shape.vocab, shape.hidden),
        f"{place}.self_attn.q_proj": (shape.queries, shape.hidden),
        f"{place}.self_attn.k_proj": (shape.keys, shape.hidden),
        f"{place}.self_attn.v_proj": (shape.keys, shape.hidden),
        f"{place}.self_attn.o_proj": (shape.hidden, shape.queries),
        f"{place}.mlp.gate_proj": (shape.ffn, shape.hidden),
        f"{place}.mlp.up_proj": (shape.ffn, shape.hidden),
        f"{place}.mlp.down_proj": (shape.hidden, shape.ffn),
    }


def config_of(shape: Shape) -> dict[str, Any]:
    """The config.json that FastFlowLM and transformers 4 write."""
    gemma = shape.family == "gemma3_text"
    config: dict[str, Any] = {
        "model_type": shape.family,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.epsilon,
        "rope_theta": shape.rope_theta,
        "hidden_act": "silu",
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
    }
    if gemma:
        del config["hidden_act"]
        config |= {
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": shape.head_dim,
            "sliding_window": shape.window,
            "sliding_window_pattern": shape.global_every,
            "rope_local_base_freq": shape.local_rope_theta,
        }
    return config


def write_container(
    path: Path,
    tensors: Tensors,
    *,
    header: dict[str, Any] | None = None,
    shapes: dict[str, list[int]] | None = None,
) -> None:
    """A safetensors file; `header` replaces entries of the tensors' header, `shapes` only their
    shapes."""
    entries: dict[str, Any] = {}
    offset = 0
    for name, (dtype, content) in tensors.items():
        end = offset + content.nbytes
        shape = (shapes or {}).get(name, list(content.shape))
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries | (header or {})).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, content in tensors.values():
            file.write(np.ascontiguousarray(content).tobytes())


def with_signed_codes(blocks: Array) -> Array:
    """Q4NX blocks with minima of -8 times the scale, as the converter packs Q4_0."""
    signed = blocks.copy()
    signed[..., q4nx.MINIMA_BYTES : 2 * q4nx.MINIMA_BYTES] = 0
    signed[..., 2 * q4nx.MINIMA_BYTES :] ^= 0x88
    return signed


@dataclass(frozen=True)
class Imported:
    """A `.q4nx` file with its configuration, and the same model compiled."""

    source: Path
    compiled: Path
    tensors: Tensors


def make(name: str, work: Path, *, signed: bool = False) -> Imported:
    """Writes the test model `name` as work/q4nx/model.q4nx, and compiled as work/compiled.

    Values that a `.q4nx` file rounds to bfloat16 are rounded in both: embedding, norms and biases.
    One function makes the rotary tables, which the file does not have, for both.
    """
    shape = TINY[name]
    model = ir.load(DATA / name / "model.onnx")
    floats = _round_vectors(model)
    _set_rotary_tables(model, shape)
    # A projection's blocks, as compiling packs them; the lm_head's blocks give the embedding too.
    blocks = _packed(DATA / name, work / "packed")
    table = floats.get("model.embed_tokens.weight")
    if table is None:
        table = q4nx.dequantize(blocks["lm_head"], shape.vocab, shape.hidden)
        if shape.family == "gemma3_text":
            table = table * np.sqrt(shape.hidden)
    table = table.astype(ml_dtypes.bfloat16)
    _replace_embedding(model, table.astype(np.float32))
    reference = work / "reference"
    shutil.copytree(DATA / name, reference, ignore=shutil.ignore_patterns("model.onnx*"))
    ir.save(model, reference / "model.onnx", external_data="model.onnx.data")
    ort_aie_ep.compile(reference, work / "compiled")

    tensors = _file_tensors(shape, floats, blocks, table)
    if signed:
        tensors = {
            key: (dtype, with_signed_codes(content) if dtype == "I8" else content)
            for key, (dtype, content) in tensors.items()
        }
    source = work / "q4nx"
    source.mkdir()
    write_container(source / "model.q4nx", tensors)
    (source / "config.json").write_text(json.dumps(config_of(shape)))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DATA / name / file, source)
    (source / "additional_chat_templates").mkdir()
    (source / TOOL_TEMPLATE).write_text("{{ tools }}")
    return Imported(source, work / "compiled", tensors)


def _round_vectors(model: ir.Model) -> dict[str, Array]:
    """Float initializers by name; norms and biases rounded to bfloat16, in the model as well."""
    floats = {}
    for key, value in model.graph.initializers.items():
        if value.dtype != ir.DataType.FLOAT:
            continue
        assert value.const_value is not None
        content = value.const_value.numpy()
        if "norm" in key or key.endswith(".bias"):
            content = content.astype(ml_dtypes.bfloat16).astype(np.float32)
            value.const_value = ir.tensor(content, name=key)
        floats[key] = content
    return floats


def _set_rotary_tables(model: ir.Model, shape: Shape) -> None:
    """The builder's tables may differ from ort_aie_ep's in the last bits."""
    for key, value in model.graph.initializers.items():
        if not key.startswith(("cos_cache", "sin_cache")):
            continue
        theta = shape.local_rope_theta if key.endswith("_local") else shape.rope_theta
        function = np.cos if key.startswith("cos") else np.sin
        fill = rotary_rows(function, rotary_frequencies(shape.head_dim, theta))
        table = fill(np.random.default_rng(0), 0, shape.context)
        assert value.const_value is not None
        np.testing.assert_allclose(table, value.const_value.numpy(), atol=4e-5)
        value.const_value = ir.tensor(table, name=key)


def _packed(source: Path, work: Path) -> dict[str, Array]:
    """Blocks (N / 32, K / 256, 5120) by projection, as "model.layers.0.attn.qkv_proj"."""
    ort_aie_ep.compile(source, work, fuse=False, q4nx_compatible=True)
    return {
        key.partition(".MatMul")[0]: value.const_value.numpy()
        for key, value in ir.load(work / "model.onnx").graph.initializers.items()
        if key.endswith("_q4nx") and value.const_value is not None
    }


def _replace_embedding(model: ir.Model, table: Array) -> None:
    """Makes the graph gather rows of `table`, whatever it did before."""
    nodes = {node.name: node for node in model.graph}
    old = next(
        nodes[name]
        for kind in ("Mul", "GatherBlockQuantized", "Gather")
        if (name := f"/model/embed_tokens/{kind}") in nodes
    )
    value = ir.Value(
        name="table",
        type=ir.TensorType(ir.DataType.FLOAT),
        shape=ir.Shape(table.shape),
        const_value=ir.tensor(table, name="table"),
    )
    model.graph.register_initializer(value)
    ids = next(entry for entry in model.graph.inputs if entry.name == "input_ids")
    gather = ir.node("Gather", [value, ids], {"axis": 0}, name="embedding")
    gather.outputs[0].type, gather.outputs[0].shape = old.outputs[0].type, old.outputs[0].shape
    gather.outputs[0].name = "embedding"
    model.graph.insert_before(old, gather)
    ir.convenience.replace_all_uses_with(old.outputs[0], gather.outputs[0])


def _file_tensors(
    shape: Shape, floats: dict[str, Array], blocks: dict[str, Array], table: Array
) -> Tensors:
    def vector(key: str) -> tuple[str, Array]:
        return "BF16", floats[key].astype(ml_dtypes.bfloat16)

    def flat(content: Array) -> tuple[str, Array]:
        return "I8", content.reshape(-1, q4nx.BLOCK_BYTES)

    gemma = shape.family == "gemma3_text"
    norms = ["input", "post_attention"]
    if gemma:
        norms += ["pre_feedforward", "post_feedforward"]
    tensors: Tensors = {
        "model.embed_tokens.weight": ("BF16", table),
        "lm_head.weight": flat(blocks["lm_head"]),
        "model.norm.weight": vector(f"model.layers.{shape.layers}.final_norm_layernorm.weight"),
    }
    for layer in range(shape.layers):
        place = f"model.layers.{layer}"
        for norm in norms:
            key = f"{place}.{norm}_layernorm.weight"
            tensors[key] = vector(key)
        if gemma or shape.family == "qwen3":
            for one in "qk":
                key = f"{place}.attn.{one}_norm.layernorm.weight"
                tensors[f"{place}.self_attn.{one}_norm.weight"] = vector(key)
        rows = np.cumsum([shape.queries, shape.keys])
        parts = np.split(blocks[f"{place}.attn.qkv_proj"], rows // q4nx.BLOCK_ROWS)
        for one, part in zip("qkv", parts, strict=True):
            tensors[f"{place}.self_attn.{one}_proj.weight"] = flat(part)
        if shape.family == "qwen2":
            _, biases = vector(f"{place}.attn.qkv_proj.Add.bias")
            for one, part in zip("qkv", np.split(biases, rows), strict=True):
                tensors[f"{place}.self_attn.{one}_proj.bias"] = ("BF16", part)
        tensors[f"{place}.self_attn.o_proj.weight"] = flat(blocks[f"{place}.attn.o_proj"])
        for one in ("gate", "up", "down"):
            tensors[f"{place}.mlp.{one}_proj.weight"] = flat(blocks[f"{place}.mlp.{one}_proj"])
    return tensors
