"""Names of tensors: those of the model builder's graph, and those of a `.q4nx` file that they are
made of. Both directions use these tables."""

from __future__ import annotations

from ort_aie_ep.models.folder import GENERATION_CONFIG, MORE_TEMPLATES
from ort_aie_ep.models.shapes import Shape

EMBEDDING, ROPE_FACTORS = "model.embed_tokens.weight", "rope_freqs.weight"
BIAS, HEAD_NORM = ".Add.bias", "_norm.layernorm.weight"
CODES, SCALES, COMPILED = ".MatMul.weight_Q4", ".MatMul.weight_scales", "_q4nx"
ROTARY_TABLES = ("cos_cache", "sin_cache")
# For some models, the converter pads the feed-forward width with zeros to a multiple of this.
FFN_MULTIPLE = 512
# Other files of a model's folder that hosts read.
CARRIED_OVER = (
    "config.json",
    GENERATION_CONFIG,
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    f"{MORE_TEMPLATES}/tool_use.jinja",
)


def matrices(basename: str, shape: Shape) -> tuple[dict[str, int], int]:
    """The file's names of the matrices that make up a projection, each with its N, and their K.

    `basename` is the projection's in the builder, such as "model.layers.0.attn.qkv_proj".
    """
    place, _, role = basename.replace(".attn.", ".self_attn.").rpartition(".")
    rows, k = {
        "qkv_proj": (
            {"q_proj": shape.queries, "k_proj": shape.keys, "v_proj": shape.keys},
            shape.hidden,
        ),
        "o_proj": ({"o_proj": shape.hidden}, shape.queries),
        "gate_proj": ({"gate_proj": shape.ffn}, shape.hidden),
        "up_proj": ({"up_proj": shape.ffn}, shape.hidden),
        "down_proj": ({"down_proj": shape.hidden}, shape.ffn),
        "lm_head": ({"lm_head": shape.vocab}, shape.hidden),
    }[role]
    prefix = f"{place}." if place else ""
    return {f"{prefix}{name}.weight": n for name, n in rows.items()}, k


def vectors(name: str, shape: Shape) -> dict[str, int]:
    """The file's names of what makes up a bias or a norm's weight, each with its length, given its
    name in the builder."""
    if name.endswith(BIAS):
        rows_of, _ = matrices(name.removesuffix(BIAS), shape)
        return {key.removesuffix(".weight") + ".bias": n for key, n in rows_of.items()}
    if name == f"model.layers.{shape.layers}.final_norm_layernorm.weight":
        return {"model.norm.weight": shape.hidden}
    if name.endswith(HEAD_NORM):
        stem = name.removesuffix(HEAD_NORM).replace(".attn.", ".self_attn.")
        return {f"{stem}_norm.weight": shape.head_dim}
    return {name: shape.hidden}
