"""The passes in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir
from onnx_ir.passes import common as common_passes
from onnxscript.optimizer import basic_constant_propagation

from ort_aie_ep.graph_passes.attention.exported.rewrite import fuse_exported_attention
from ort_aie_ep.graph_passes.attention.mha import MultiHeadAttentionToFlow
from ort_aie_ep.graph_passes.attention.onnx_attention import AttentionToFlow
from ort_aie_ep.graph_passes.attention.rotary import explain_rotations
from ort_aie_ep.graph_passes.attention.shapes import spread_hidden_shapes
from ort_aie_ep.graph_passes.attention.spelled_out import SpelledOutAttention
from ort_aie_ep.graph_passes.base import DOMAIN, NO_OPERATOR, Report
from ort_aie_ep.graph_passes.bodies import body_labels, parts, put_back, take_out
from ort_aie_ep.graph_passes.float16_models import keep_float16_digits
from ort_aie_ep.graph_passes.hidden_shapes import read_shapes_off_tokens
from ort_aie_ep.graph_passes.planning import fuse_steps, replace_sources
from ort_aie_ep.graph_passes.projection.dequantize import DequantizedToQ4NX
from ort_aie_ep.graph_passes.projection.float_matmul import FloatMatMul, check_patterns
from ort_aie_ep.graph_passes.projection.norm import flatten_weights
from ort_aie_ep.graph_passes.projection.spelled_out import collapse_gelus, collapse_norms
from ort_aie_ep.graph_passes.unique_names import name_nodes, name_values
from ort_aie_ep.graph_passes.value_types import (
    infer_types,
    remove_idle_nodes,
    remove_unread_nodes,
)
from ort_aie_ep.graph_passes.walk import node_label
from ort_aie_ep.graph_passes.weights.expert_weights import PackedExperts
from ort_aie_ep.graph_passes.weights.float_weights import Quantising
from ort_aie_ep.graph_passes.weights.packed import PackedWeights
from ort_aie_ep.graph_passes.weights.vectors import fold_vectors
from ort_aie_ep.graph_passes.work import work_of


def run_passes(
    model: ir.Model,
    *,
    fuse: bool = True,
    quantize: Quantising | None = None,
    keep: Sequence[str] = (),
    q4nx_compatible: bool = False,
) -> Report:
    """Rewrites `model` in place. Weights are packed when they are read, not here.

    Without `fuse` each node gets its own replacement. `quantize` says what float weights become,
    except for nodes whose names match a pattern of `keep`. With `q4nx_compatible`, weights are
    packed as `.q4nx` files have them, else in the smallest form that holds their source. Bodies of
    If, Loop and Scan are treated like the main graph.

    Raises:
        AieError: a node to be replaced is malformed; a pattern matches nothing.
    """
    report, experts = Report(), PackedExperts()
    packed = PackedWeights(q4nx_compatible=q4nx_compatible)
    name_nodes(model)
    name_values(model)
    bodies = body_labels(model)
    works = {node_label(node): work_of(node) for node in model.graph.all_nodes()}
    check_patterns(model, keep)
    if fuse:
        infer_types(model)
    holders = take_out(model)
    _run_on_graph(model, report, packed, experts, fuse, quantize, keep)
    for part in parts(holders):
        _run_on_graph(part, report, packed, experts, fuse, quantize, keep)
    put_back(model, holders)
    name_values(model)
    for node in model.graph.all_nodes():
        label = node_label(node)
        # Nodes that no pass examined and whose weights a token reads.
        unseen = label in works and label not in report.outcomes and node.domain != DOMAIN
        if unseen and works[label].token_bytes:
            report.left(node, NO_OPERATOR)
    # Nodes that a pass made temporarily are not nodes of the model.
    report.outcomes = {
        label: replace(
            outcome,
            body=bodies.get(label, ""),
            weight_bytes=works[label].weight_bytes,
            token_bytes=works[label].token_bytes,
        )
        for label, outcome in report.outcomes.items()
        if label in works
    }
    common_passes.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    if any(node.domain == DOMAIN for node in model.graph.all_nodes()):
        model.graph.opset_imports.setdefault(DOMAIN, 1)
    return report


def _run_on_graph(
    model: ir.Model,
    report: Report,
    packed: PackedWeights,
    experts: PackedExperts,
    fuse: bool,
    quantize: Quantising | None,
    keep: Sequence[str],
) -> None:
    """Runs the passes on the main graph or on a body that was taken out."""
    remove_unread_nodes(model)
    if fuse:
        remove_idle_nodes(model)
        fold_vectors(model)
        AttentionToFlow(report).apply(model)
        MultiHeadAttentionToFlow(report).apply(model)
        SpelledOutAttention(report).apply(model)
        DequantizedToQ4NX(report, packed).apply(model)
        collapse_norms(model)
        collapse_gelus(model)
        if fuse_exported_attention(model, report):
            spread_hidden_shapes(model)
        read_shapes_off_tokens(model)
    # After attention, which is recognised among ONNX's own operators.
    FloatMatMul(report, quantize, keep).apply(model)
    basic_constant_propagation(model.graph)
    replace_sources(model, report, packed, experts)
    if fuse:
        flatten_weights(model)
        fuse_steps(model, report)
        keep_float16_digits(model)
    common_passes.RemoveUnusedNodesPass()(model)
    explain_rotations(model, report)
