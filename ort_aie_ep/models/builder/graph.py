"""The operators that a decoder consists of, as the model builder writes and names them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ort_aie_ep.formats.file_forms import FileForm
from ort_aie_ep.models.builder.weights import (
    BLOCK,
    Coding,
    Fill,
    Stored,
    Weight,
    code_rows,
    normal_rows,
    rotary_frequencies,
    rotary_rows,
    scale_rows,
)
from ort_aie_ep.models.shapes import Shape

__all__ = ["EMBEDDING", "MICROSOFT", "Attributes", "Codings", "Graph"]

AIE, MICROSOFT = "aie", "com.microsoft"
EMBEDDING = "model.embed_tokens.weight"
Attributes = dict[str, int | float | str]
_BIAS_DEVIATION = 0.02

Codings = Callable[[str], Stored | None]
"""How the matrix of a projection is stored, by the projection's name, such as
"model.layers.0.attn.qkv_proj"; None for one that is three, q_proj, k_proj and v_proj, or two,
gate_proj and up_proj."""


class Graph:
    """A graph under construction. Operators return their output values, with the builder's names.

    The builder first builds the float graph and then quantises it, so in its files the quantised
    weights follow all others; `first` and `last` keep the two apart. `block` values of K share a
    scale. `table` is the type of an embedding that is not tied.
    """

    def __init__(
        self,
        shape: Shape,
        codings: Codings,
        block: int = BLOCK,
        table: ir.DataType | FileForm = ir.DataType.FLOAT,
    ) -> None:
        self.shape = shape
        self.codings = codings
        self.block = block
        self.table = table
        self.nodes: list[ir.Node] = []
        self.first: list[Weight] = []
        self.last: list[Weight] = []
        self._weights: dict[str, ir.Value] = {}
        self._constants: dict[str, ir.Value] = {}

    def node(
        self,
        op: str,
        inputs: Sequence[ir.Value | None],
        outputs: Sequence[ir.Value],
        name: str,
        domain: str = "",
        **attributes: int | float | str | list[int] | ir.TensorProtocol,
    ) -> None:
        """Appends a node."""
        self.nodes.append(
            ir.node(op, inputs, attributes, domain=domain, outputs=outputs, name=name)
        )

    def op(
        self,
        op: str,
        inputs: Sequence[ir.Value | None],
        name: str,
        dims: Sequence[int | str] | None,
        dtype: ir.DataType = ir.DataType.FLOAT,
        domain: str = "",
        **attributes: int | float | str | list[int],
    ) -> ir.Value:
        """A node with one output, `name`/output_0."""
        output = ir.val(f"{name}/output_0", dtype, dims)
        self.node(op, inputs, [output], name, domain, **attributes)
        return output

    def aie(
        self, op: str, inputs: Sequence[ir.Value], name: str, attributes: Attributes
    ) -> ir.Value:
        """An aie operator whose output is as wide as the hidden state, float32."""
        output = ir.val(f"{name}/output_0", ir.DataType.FLOAT, self.hidden())
        self.node(op, inputs, [output], name, AIE, **attributes)
        return output

    def hidden(self, width: int | None = None) -> list[int | str]:
        """The dimensions of activations."""
        return ["batch_size", "sequence_length", self.shape.hidden if width is None else width]

    def constant(self, content: int | float | list[int], dtype: ir.DataType) -> ir.Value:
        """The output of a Constant node, made at its first use."""
        name = f"/model/constants/{dtype.name}/{content}"
        if name not in self._constants:
            # The builder declares every constant a scalar, whatever its value.
            value = ir.val(name, dtype, [])
            tensor = ir.tensor(content, dtype=dtype, name=name)
            node_name = name.replace("constants", "constant_nodes")
            self.node("Constant", [], [value], node_name, value=tensor)
            self._constants[name] = value
        return self._constants[name]

    def weight(self, weight: Weight, last: bool = False) -> ir.Value:
        """The initializer with that name, made at its first use."""
        if weight.name not in self._weights:
            (self.last if last else self.first).append(weight)
            self._weights[weight.name] = ir.val(weight.name, weight.dtype, weight.shape)
        return self._weights[weight.name]

    def initializers(self, weights: Sequence[Weight]) -> list[ir.Value]:
        """The values of `weights`, in that order."""
        return [self._weights[weight.name] for weight in weights]

    def vector(self, name: str, size: int, mean: float, deviation: float) -> ir.Value:
        """(size,) float32: the weight of a norm, or a bias."""
        return self.floats(name, (size,), mean, deviation)

    def floats(self, name: str, sizes: tuple[int, ...], mean: float, deviation: float) -> ir.Value:
        """Float32 of these sizes."""
        fill = normal_rows(sizes[1:], mean, deviation)
        return self.weight(Weight(name, ir.DataType.FLOAT, sizes, fill))

    def rotary(self, suffix: str, theta: float) -> tuple[ir.Value, ir.Value]:
        """cos_cache and sin_cache, (context, rotary/2) float32."""
        width, yarn = self.shape.rotary or self.shape.head_dim, self.shape.yarn
        frequencies = rotary_frequencies(width, theta, yarn)
        magnitude = yarn.magnitude if yarn else 1.0
        cos, sin = (
            self.weight(
                Weight(
                    f"{name}_cache{suffix}",
                    ir.DataType.FLOAT,
                    (self.shape.context, width // 2),
                    rotary_rows(function, frequencies, magnitude),
                )
            )
            for name, function in (("cos", np.cos), ("sin", np.sin))
        )
        return cos, sin

    def stored(self, basename: str) -> Stored:
        """How the matrix of a projection is stored, which is one matrix."""
        stored = self.codings(basename)
        assert stored is not None, basename
        return stored

    def coding(self, basename: str) -> Coding:
        """The same of a matrix for a node of ONNX or of the model builder."""
        coding = self.stored(basename)
        assert isinstance(coding, Coding), basename
        return coding

    def blocks(self, stem: str, form: FileForm, *dims: int) -> ir.Value:
        """The blocks of a matrix (n, k), or of one of each expert (experts, n, k)."""
        *experts, n, k = dims
        shape = (*experts, *form.blocks_shape(n, k))
        weight = Weight(f"{stem}_{form.name}", ir.DataType.UINT8, shape, code_rows(shape[1:]))
        return self.weight(weight, last=True)

    def expert_blocks(self, base: str, forms: Mapping[str, FileForm]) -> list[ir.Value]:
        """Q4NXMoE's W_gate, W_down and W_up, and their biases in families that have them."""
        experts, wide, hidden = self.shape.experts, self.shape.ffn, self.shape.hidden
        sizes = {"gate": (wide, hidden), "down": (hidden, wide), "up": (wide, hidden)}
        inputs = [
            self.blocks(f"{base}.{side}_proj.weight", forms[side], experts, *size)
            for side, size in sizes.items()
        ]
        if self.shape.family == "gptoss":
            for name, n in (("gate_proj", wide), ("up_proj", wide), ("down_proj", hidden)):
                fill = normal_rows((n,), 0.0, _BIAS_DEVIATION)
                bias = Weight(f"{base}.{name}.bias", ir.DataType.FLOAT, (experts, n), fill)
                inputs.append(self.weight(bias))
        return inputs

    def matrix(
        self,
        name: str,
        rows: int,
        columns: int,
        deviation: float,
        dtype: ir.DataType = ir.DataType.FLOAT,
    ) -> ir.Value:
        """(rows, columns) floats, normally distributed. A tied lm_head follows all others."""
        fill = normal_rows((columns,), 0.0, deviation)
        weight = Weight(name, dtype, (rows, columns), fill)
        return self.weight(weight, last=self.shape.tied and name.startswith("lm_head."))

    def coded(
        self, basename: str, coding: Coding, n: int, k: int, gain: float
    ) -> tuple[ir.Value, ...]:
        """The codes (n, k/block, block · bits/8) uint8, scales (n, k/block) float32, and zero
        points if there are any, of an (n, k) matrix."""
        blocks, stem = math.ceil(k / self.block), f"{basename}.MatMul.weight_"
        width = self.block * coding.bits // 8
        parts = [
            Weight(
                f"{stem}Q{coding.bits}",
                ir.DataType.UINT8,
                (n, blocks, width),
                code_rows((blocks, width)),
            ),
            Weight(f"{stem}scales", ir.DataType.FLOAT, (n, blocks), scale_rows((blocks,), k, gain)),
        ]
        if coding.zero_points is not None:
            packed = coding.zero_points == ir.DataType.UINT8
            columns = (math.ceil(blocks * coding.bits / 8) if packed else blocks,)
            fill = code_rows(columns) if packed else normal_rows(columns, 7.5, 1.0)
            parts.append(Weight(f"{stem}zp", coding.zero_points, (n, *columns), fill))
        return tuple(self.weight(part, last=True) for part in parts)

    def experts(self, base: str, gain: float) -> list[ir.Value | None]:
        """QMoE's inputs for gate and up in turn, then for down; or MoE's, of floats.

        Each has codes (experts, n, k · bits/8) uint8, scales (experts, n, k/block) and biases
        (experts, n) float32; then come zero points (experts, n, k/block) uint8, or None, of each.
        Floats are (experts, n, k) float32, with biases. The builder quantises experts when it reads
        them, and gives those without biases zeros. `gain` is that of down.
        """
        shape = self.shape
        deviation = _BIAS_DEVIATION if shape.family == "gptoss" else 0.0

        def stack(part: str, dtype: ir.DataType, columns: tuple[int, ...], fill: Fill) -> ir.Value:
            return self.weight(Weight(f"{base}.{part}", dtype, (shape.experts, *columns), fill))

        sizes = (
            ("gate_up_proj", 2 * shape.ffn, shape.hidden, 1.0),
            ("down_proj", shape.hidden, shape.ffn, gain),
        )

        def bias(name: str, n: int) -> ir.Value:
            return stack(f"{name}.bias", ir.DataType.FLOAT, (n,), normal_rows((n,), 0.0, deviation))

        codings = [self.coding(f"{base}.{name}") for name, *_ in sizes]
        if codings[0].is_float:
            inputs: list[ir.Value | None] = []
            for name, n, k, size in sizes:
                fill = normal_rows((n, k), 0.0, size / math.sqrt(k))
                inputs += [stack(f"{name}.weight", ir.DataType.FLOAT, (n, k), fill), bias(name, n)]
            return inputs
        codes, scales = [], []
        zero_points: list[ir.Value | None] = []
        for (name, n, k, _), coding in zip(sizes, codings, strict=True):
            columns = (n, k * coding.bits // 8)
            codes.append(stack(f"{name}.qweight", ir.DataType.UINT8, columns, code_rows(columns)))
        for name, n, k, size in sizes:
            columns = (n, k // self.block)
            fill = scale_rows(columns, k, size)
            scales.append(stack(f"{name}.scales", ir.DataType.FLOAT, columns, fill))
        biases = [bias(name, n) for name, n, _, _ in sizes]
        for (name, n, k, _), coding in zip(sizes, codings, strict=True):
            columns, points = (n, k // self.block), coding.zero_points
            zero_points.append(
                None if points is None else stack(f"{name}.zp", points, columns, code_rows(columns))
            )
        each = zip(codes, scales, biases, strict=True)
        return [*(value for inputs in each for value in inputs), *zero_points]

    def float_matrix(self, basename: str, n: int, k: int, gain: float) -> ir.Value:
        """The (k, n) float32 weights of an (n, k) matrix."""
        return self.matrix(f"{basename}.MatMul.weight", k, n, gain / math.sqrt(k))

    def linear(
        self, path: str, x: ir.Value, n: int, k: int, gain: float, *, output: str | None = None
    ) -> ir.Value:
        """x · Wᵀ, plus a bias in families that have one. `path` is like /model/layers.0/mlp/fc1.

        `output` names the result when it is an output of the model.
        """
        basename = path.removeprefix("/").replace("/", ".")
        biased = self._has_bias(path)
        product_name = f"{path}/MatMul/output_0" if output is None or biased else output
        result = ir.val(product_name, ir.DataType.FLOAT, self.hidden(n))
        coding = self.stored(basename)
        if isinstance(coding, FileForm):
            self.node(
                "Q4NXMatMul",
                [x, self.blocks(f"{basename}.MatMul.weight", coding, n, k)],
                [result],
                f"{path}/MatMul",
                AIE,
                K=k,
                N=n,
                accuracy_level=4,
                **coding.attributes(),
            )
        elif coding.is_float:
            weights = self.float_matrix(basename, n, k, gain)
            self.node("MatMul", [x, weights], [result], f"{path}/MatMul")
        else:
            self.node(
                "MatMulNBits",
                [x, *self.coded(basename, coding, n, k, gain)],
                [result],
                f"{path}/MatMul_Q{coding.bits}",
                MICROSOFT,
                K=k,
                N=n,
                accuracy_level=4,
                bits=coding.bits,
                block_size=self.block,
            )
        if not biased:
            return result
        bias = self.vector(f"{basename}.Add.bias", n, 0.0, _BIAS_DEVIATION)
        total = ir.val(output or f"{path}/Add/output_0", ir.DataType.FLOAT, self.hidden(n))
        self.node("Add", [result, bias], [total], f"{path}/Add")
        return total

    def _has_bias(self, path: str) -> bool:
        match self.shape.family:
            case "phi":
                return True
            case "qwen2":
                return path.endswith(("/qkv_proj", "/q_proj", "/k_proj", "/v_proj"))
            case "gptoss":
                return path != "/lm_head"
        return False

    def norm(
        self,
        layer: int,
        place: str,
        x: ir.Value,
        branch: ir.Value | None = None,
        last: bool = False,
    ) -> tuple[ir.Value, ir.Value]:
        """(norm of x + branch, x + branch), both of the hidden state's shape.

        `place` is like "input" or "post_attention". After the `last` layer, the sum is not needed
        and has no output.
        """
        shape = self.shape
        path = f"/model/layers.{layer}/{place}_layernorm"
        basename = f"model.layers.{layer}.{place}_layernorm"
        simple = "" if shape.family == "phi" else "Simplified"
        inputs = [x] if branch is None else [x, branch]
        inputs.append(self.vector(f"{basename}.weight", shape.hidden, 1.0, 0.1))
        if not simple:
            inputs.append(self.vector(f"{basename}.bias", shape.hidden, 0.0, _BIAS_DEVIATION))
        result = ir.val(f"{path}/output_0", ir.DataType.FLOAT, self.hidden())
        if branch is None:
            self.node(
                f"{simple}LayerNormalization",
                inputs,
                [result],
                f"{path}/LayerNorm",
                epsilon=shape.epsilon,
                axis=-1,
                stash_type=1,
            )
            return result, x
        total = ir.val(f"{path}/output_3", ir.DataType.FLOAT, self.hidden())
        outputs = [result] if last else [result, ir.Value(name=""), ir.Value(name=""), total]
        self.node(
            f"Skip{simple}LayerNormalization",
            inputs,
            outputs,
            f"{path}/SkipLayerNorm",
            MICROSOFT,
            epsilon=shape.epsilon,
        )
        return result, total
