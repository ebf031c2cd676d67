"""RMS norms of the heads of queries and keys -> inputs of aie.FlowAttention.

Before: query = Reshape(SimplifiedLayerNormalization(Reshape(q, (..., D)), q_weight), shape of q),
        or with RMSNormalization, key likewise, and FlowAttention(query, key, value, ...)
After:  FlowAttention(q, k, value, ..., q_norm_weight, k_norm_weight), and where q, k and value are
        the parts of one Split, FlowAttention(packed QKV, , , ..., q_norm_weight, k_norm_weight)

As the model builder writes Qwen3 and Gemma 3. Six nodes less a layer, seven with the Split; norms
and Split each write queries and keys anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ort_aie_ep.graph_passes.attention.node import (
    OP_TYPE,
    is_flow_attention,
    named_input,
    set_inputs,
)
from ort_aie_ep.graph_passes.base import DOMAIN, NONE, Report
from ort_aie_ep.graph_passes.projection.norm import NORMS, Norm, read_norm
from ort_aie_ep.graph_passes.walk import attribute, input_at, made_by, only_reader

QKV, WEIGHTS = ("query", "key", "value"), ("q_norm_weight", "k_norm_weight")


@dataclass(frozen=True)
class HeadNorm:
    """The norm of each head of `source`, and its nodes from the last to the first."""

    source: ir.Value
    norm: Norm
    nodes: tuple[ir.Node, ...]


def fuse_qk_norms(model: ir.Model, report: Report) -> None:
    """Fuses the norms of each FlowAttention whose queries and keys both have one."""
    for attention in list(model.graph):
        if not is_flow_attention(attention):
            continue
        q = _read(named_input(attention, "query"), attention, "num_heads")
        k = _read(named_input(attention, "key"), attention, "kv_num_heads")
        if q is None or k is None or _weights_given(attention):
            continue
        if q.norm.epsilon != k.norm.epsilon or q.norm.weight.shape != k.norm.weight.shape:
            continue
        parts = [q.source, k.source, named_input(attention, "value")]
        given = [*parts, q.norm.weight, k.norm.weight]
        set_inputs(attention, dict(zip(QKV + WEIGHTS, given, strict=True)))
        attention.attributes.add(ir.AttrFloat32("qk_norm_epsilon", q.norm.epsilon))
        _remove((*q.nodes, *k.nodes), report)
        split = _split_of_qkv(parts)
        if split is not None:
            set_inputs(attention, dict(zip(QKV, (split.inputs[0], None, None), strict=True)))
            _remove((split,), report)


def _remove(nodes: tuple[ir.Node, ...], report: Report) -> None:
    for node in nodes:
        report.fused(node, f"{DOMAIN}.{OP_TYPE}")
        assert isinstance(node.graph, ir.Graph)
        node.graph.remove(node, safe=True)


def _weights_given(attention: ir.Node) -> bool:
    given = [named_input(attention, name) for name in WEIGHTS]
    return any(value is not None and value.name != NONE for value in given)


def _read(value: ir.Value | None, attention: ir.Node, heads: str) -> HeadNorm | None:
    """The norm behind an input of `attention`, or None where there is none of each head alone."""
    flat = _only_result_of(value, "Reshape")
    normed = _only_result_of(flat.inputs[0], *NORMS) if flat else None
    norm = read_norm(normed) if normed else None
    split = _only_result_of(norm.a, "Reshape") if norm else None
    source = split.inputs[0] if split else None
    if flat is None or normed is None or norm is None or split is None or source is None:
        return None
    dim = split.outputs[0].shape[-1] if split.outputs[0].shape is not None else None
    shape = input_at(split, 1)
    if shape is not None and shape.const_value is not None:
        dim = int(shape.const_value.numpy()[-1])
    if not isinstance(dim, int) or norm.weight.const_value is None:
        return None
    # Rows of `dim` elements are heads where the last dimension of `source` is made of them.
    channels = attribute(attention, heads, 0) * dim
    if norm.weight.shape != (dim,) or source.shape is None or source.shape[-1] != channels:
        return None
    if len(source.shape) != 3 or flat.outputs[0].shape != source.shape:
        return None
    if any(source.shape.is_unknown_dim(axis) for axis in (0, 1)):
        return None  # unknown dimensions count as equal
    return HeadNorm(source, norm, (flat, normed, split))


def _only_result_of(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The node that computes `value` for one reader alone."""
    node = made_by(value, *op_types)
    return node if value is not None and only_reader(value) is not None else None


def _split_of_qkv(parts: list[ir.Value | None]) -> ir.Node | None:
    """The Split along the channels whose outputs are `parts`, for this attention alone."""
    split = made_by(parts[0], "Split")
    if split is None or list(split.outputs) != parts or attribute(split, "axis", 0) not in (-1, 2):
        return None
    return split if all(only_reader(value) is not None for value in split.outputs) else None
