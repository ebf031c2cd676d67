"""MatMul and Gemm with float weights -> aie.Q4NXMatMul or aie.GEMM, with `--quantize`.

Before: MatMul(A, B) or Gemm(A, B, C?), B a constant (K, N), perhaps behind Identity and Transpose
After:  Q4NXMatMul(A, W, C?) with q4nx, q2nx, q8nx and mixed, GEMM(A, W, C?) with bf16

A node is left alone if a user's pattern matches its name, or if `why_not_float_matmul` has a
reason. Without a form, nothing is replaced: the report says what could be.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import onnx_ir as ir

from ort_aie_ep import _native
from ort_aie_ep.errors import AieError
from ort_aie_ep.graph_passes.base import Attribute, NodeRule, Report
from ort_aie_ep.graph_passes.walk import (
    attribute,
    before,
    before_transpose,
    input_at,
    is_op,
    made_by,
    node_label,
)
from ort_aie_ep.graph_passes.weights.float_weights import (
    FloatLayers,
    FloatWeights,
    Quantising,
    WeightForm,
)

OPS = ("MatMul", "Gemm")
UNASKED = "its weights are {}: compile --quantize q4nx or bf16 replaces it"


class FloatMatMul(NodeRule):
    """Replaces each MatMul and Gemm with float weights; their errors go into `report.layers`."""

    def __init__(
        self, report: Report, quantising: Quantising | None, keep: Sequence[str] = ()
    ) -> None:
        super().__init__(report)
        self.quantising = quantising
        self.keep = keep
        if quantising is not None and report.layers is None:
            report.layers = FloatLayers(quantising)

    def apply(self, model: ir.Model) -> None:  # noqa: D102
        super().apply(model)
        if self.quantising is not None:
            _note_embeddings(model.graph, self.report)

    def takes(self, node: ir.Node) -> bool:  # noqa: D102
        return _is_product(node) and (self.quantising is not None or weights_of(node) is not None)

    def becomes_of(self, node: ir.Node) -> str:  # noqa: D102
        weights = weights_of(node)
        assert weights is not None
        assert self.quantising is not None
        return "GEMM" if self.quantising.form_of(weights) is WeightForm.BF16 else "Q4NXMatMul"

    def why_not(self, node: ir.Node) -> str:  # noqa: D102
        weights = weights_of(node)
        reason = _why_not(node, weights)
        if reason:
            return reason
        assert weights is not None
        if self.quantising is None:
            return UNASKED.format(weights.tensor.dtype.name)
        return _why_kept(node, self.keep)

    def replacement(self, node: ir.Node) -> tuple[list[ir.Value | None], dict[str, Attribute]]:  # noqa: D102
        weights, layers = weights_of(node), self.report.layers
        assert weights is not None
        assert layers is not None
        result, bias = node.outputs[0], input_at(node, 2)
        if result.type is None:
            result.type = ir.TensorType(weights.tensor.dtype)
        k, n = weights.shape
        attributes: dict[str, Attribute] = {"K": k, "N": n}
        attributes |= layers.quantising.form_of(weights).attributes()
        inputs = [node.inputs[0], layers.value(node, weights)]
        return inputs if bias is None else [*inputs, bias], attributes


def quantisable(model: ir.Model, keep: Sequence[str]) -> list[tuple[ir.Node, FloatWeights]]:
    """The products that `FloatMatMul` replaces, in bodies too, with their weights."""
    found = []
    for node in model.graph.all_nodes():
        weights = weights_of(node) if _is_product(node) else None
        if weights is not None and not _why_not(node, weights) and not _why_kept(node, keep):
            found.append((node, weights))
    return found


def _why_kept(node: ir.Node, keep: Sequence[str]) -> str:
    matching = [name for name in keep if _matches(node_label(node), name)]
    return f"kept by --keep '{matching[0]}'" if matching else ""


def matching_patterns(model: ir.Model, keep: Sequence[str]) -> list[str]:
    """The patterns of `keep` that match a node of the model."""
    labels = _labels(model)
    return [name for name in keep if any(_matches(label, name) for label in labels)]


def check_patterns(model: ir.Model, keep: Sequence[str]) -> None:
    """Raises AieError if a pattern of `keep` matches no MatMul or Gemm."""
    labels = _labels(model)
    for name in keep:
        if not any(_matches(label, name) for label in labels):
            example = f"; one is named '{labels[-1]}'" if labels else ""
            raise AieError(f"--keep '{name}' matches no MatMul or Gemm of the model{example}")


def _labels(model: ir.Model) -> list[str]:
    return [node_label(node) for node in model.graph.all_nodes() if _is_product(node)]


def _is_product(node: ir.Node) -> bool:
    return is_op(node, *OPS)


def _matches(label: str, pattern: str) -> bool:
    """Whether a name matches a pattern of * and ?; brackets, which names contain, are literal."""
    return fnmatchcase(label, pattern.replace("[", "[[]"))


def _constant(value: ir.Value | None) -> ir.Value | None:
    """The initializer, or a Constant's output, that a value is, perhaps through Identity nodes."""
    source = None if value is None else before(value, "Identity")
    if source is None or source.const_value is not None:
        return None if source is None or source.is_graph_input() else source
    node = made_by(source, "Constant")
    if node is None or "value" not in node.attributes:
        return None
    return ir.Value(name=source.name, const_value=node.attributes["value"].as_tensor())


def _matrix(value: ir.Value | None) -> FloatWeights | None:
    """The constant that a value is, perhaps transposed, as `rows_are_outputs` says."""
    source, transposed = before_transpose(value) or (None, False)
    constant = _constant(source)
    return None if constant is None else FloatWeights(constant, transposed)


def weights_of(node: ir.Node) -> FloatWeights | None:
    """The weights of a MatMul or Gemm; None if its second input is not constant."""
    matrix = _matrix(input_at(node, 1))
    if matrix is None or node.op_type != "Gemm" or attribute(node, "transB", 0) == 0:
        return matrix
    return FloatWeights(matrix.value, not matrix.rows_are_outputs)


def _why_not(node: ir.Node, weights: FloatWeights | None) -> str:
    gemm = node.op_type == "Gemm"
    bias = input_at(node, 2) if gemm else None
    fits = bias is None or (weights is not None and _is_bias(bias, weights))
    return _native.why_not_float_matmul(
        constant_weights=weights is not None,
        weights=() if weights is None else weights.shape,
        type="" if weights is None else weights.tensor.dtype.name,
        trans_a=attribute(node, "transA", 0) if gemm else 0,
        alpha=attribute(node, "alpha", 1.0) if gemm else 1.0,
        beta=attribute(node, "beta", 1.0) if gemm and bias is not None else 1.0,
        bias_fits=fits,
    )


def _is_bias(value: ir.Value | None, weights: FloatWeights) -> bool:
    """Whether a value is a constant (N) of the weights' type."""
    constant = _constant(value)
    tensor = None if constant is None else constant.const_value
    return (
        tensor is not None
        and tensor.dtype == weights.tensor.dtype
        and tuple(tensor.shape.numpy()) == weights.shape[-1:]
    )


def _note_embeddings(graph: ir.Graph, report: Report) -> None:
    """Rows of float matrices are gathered as they are, even if a product shares the matrix."""
    for node in graph:
        if not is_op(node, "Gather"):
            continue
        matrix = _matrix(input_at(node, 0))
        tensor = matrix.tensor if matrix is not None else None
        if tensor is not None and len(tensor.shape) == 2 and tensor.dtype.is_floating_point():
            report.left(node, f"its rows are {tensor.dtype.name} and stay so")
