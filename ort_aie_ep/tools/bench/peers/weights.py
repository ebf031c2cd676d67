"""A Llama's int4 weights as codes and scales, from the ONNX folder that the model builder wrote.

Only one layer at a time is in memory: tensors are mapped, and slices of them are views.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.checked_json import Field
from ort_aie_ep.models.folder import GENAI_CONFIG, ModelFolder
from ort_aie_ep.models.onnx_file import load_model

BLOCK = 32
"""Values of K that share a scale, in every engine's format here."""

_LAYER = re.compile(r"/layers\.(\d+)/")
_NORMS = ("SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization")

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Int4Matrix:
    """A symmetric matrix (N, K): weight = (code − 8) · scale.

    Attributes:
        codes: (N, K/32, 16) uint8; byte i of a block holds code 2i low and 2i + 1 high.
        scales: (N, K/32) float32, of either sign.
    """

    codes: npt.NDArray[np.uint8]
    scales: Floats

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return self.codes.shape[0], self.codes.shape[1] * BLOCK

    def rows(self, first: int, last: int) -> Int4Matrix:
        """Rows first to last − 1."""
        return Int4Matrix(self.codes[first:last], self.scales[first:last])

    def unpacked(self) -> npt.NDArray[np.uint8]:
        """Codes (N, K/32, 32), one in a byte."""
        n, blocks, _ = self.codes.shape
        both = np.stack([self.codes & 15, self.codes >> 4], axis=-1)
        return both.reshape(n, blocks, BLOCK)

    def dequantised(self) -> Floats:
        """(N, K) float32."""
        values = (self.unpacked().astype(np.float32) - 8) * self.scales[:, :, None]
        return values.reshape(self.shape)


@dataclass(frozen=True)
class LlamaLayer:
    """One layer: norms (hidden,), matrices as the model applies them, x · Wᵀ."""

    attention_norm: Floats
    q: Int4Matrix
    k: Int4Matrix
    v: Int4Matrix
    o: Int4Matrix
    ffn_norm: Floats
    gate: Int4Matrix
    up: Int4Matrix
    down: Int4Matrix


@dataclass(frozen=True)
class LlamaSizes:
    """The sizes that a Llama's graph depends on.

    Attributes:
        inverse_frequencies: (head size / 2,) float64 radians a position, including any scaling.
        epsilon: epsilon of the RMS norms.
    """

    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    context: int
    epsilon: float
    inverse_frequencies: npt.NDArray[np.float64]

    def describe(self) -> str:
        """The sizes in words."""
        return (
            f"{self.layers} layers of {self.hidden}, FFN {self.ffn}, {self.heads} heads of "
            f"{self.head_size} on {self.kv_heads}, vocabulary {self.vocabulary}"
        )


class LlamaWeights:
    """The source of every peer's model file.

    Attributes:
        sizes: the sizes that the graph depends on.
    """

    def __init__(self, folder: ModelFolder) -> None:
        """Reads the graph; weights stay on disk.

        Raises:
            AieError: it is not a Llama in symmetric int4, block 32, by onnxruntime-genai's builder.
        """
        self._model = load_model(folder.model)
        self._name = str(folder.model)
        self._products: dict[tuple[int, str], ir.Node] = {}
        self._norms: list[ir.Node] = []
        attention: list[ir.Node] = []
        for node in self._model.graph:
            if node.op_type == "MatMulNBits":
                self._products[self._place(node)] = node
            elif node.op_type in _NORMS:
                self._norms.append(node)
            elif node.op_type == "GroupQueryAttention":
                attention.append(node)
        if folder.genai_config is None or folder.genai_config["model"].get("type") != "llama":
            raise self._refusal("its genai_config.json does not say llama")
        if not attention or len(self._norms) != 2 * len(attention) + 1:
            raise self._refusal(
                f"it has {len(attention)} GroupQueryAttention and {len(self._norms)} RMS norms"
            )
        self.sizes = self._sizes(attention, folder.genai_config)

    def layer(self, index: int) -> LlamaLayer:
        """The weights of one layer.

        Raises:
            AieError: a matrix is missing, or not symmetric int4 with block 32.
        """
        sizes = self.sizes
        packed = self._matrix(index, "qkv_proj")
        queries, keys = sizes.heads * sizes.head_size, sizes.kv_heads * sizes.head_size
        return LlamaLayer(
            attention_norm=self._norm(2 * index),
            q=packed.rows(0, queries),
            k=packed.rows(queries, queries + keys),
            v=packed.rows(queries + keys, queries + 2 * keys),
            o=self._matrix(index, "o_proj"),
            ffn_norm=self._norm(2 * index + 1),
            gate=self._matrix(index, "gate_proj"),
            up=self._matrix(index, "up_proj"),
            down=self._matrix(index, "down_proj"),
        )

    def final_norm(self) -> Floats:
        """(hidden,) float32."""
        return self._norm(len(self._norms) - 1)

    def lm_head(self) -> Int4Matrix:
        """(vocabulary, hidden)."""
        return self._matrix(-1, "lm_head")

    def embedding(self) -> Floats | None:
        """(vocabulary, hidden) float32, or None if the lm_head's rows are the embedding."""
        node = self._embedding_node
        return None if node.op_type == "GatherBlockQuantized" else self._tensor(node, 0)

    @cached_property
    def _embedding_node(self) -> ir.Node:
        for node in self._model.graph:
            fed = [value.name for value in node.inputs if value is not None]
            if node.op_type in ("Gather", "GatherBlockQuantized") and "input_ids" in fed:
                return node
        raise self._refusal("nothing looks up input_ids")

    def source_bits(self) -> float:
        """Mean bits of a weight in the source: a code and its share of a scale."""
        scales = self._tensor(self._products[-1, "lm_head"], 2)
        return 4 + scales.itemsize * 8 / BLOCK

    def product_elements(self) -> int:
        """Number of weights that multiply a decoded token: all matrices, the lm_head once."""
        nodes = self._products.values()
        return sum(int(_number(n, "N")) * int(_number(n, "K")) for n in nodes)

    def cache_bytes(self, tokens: int) -> int:
        """Bytes of the keys and values of `tokens` tokens in float16."""
        sizes = self.sizes
        return tokens * sizes.layers * 2 * sizes.kv_heads * sizes.head_size * 2

    def release(self) -> None:
        """Unmaps the files; later reads map them again."""
        for value in self._model.graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value.release()

    def _place(self, node: ir.Node) -> tuple[int, str]:
        name = node.name or ""
        match = _LAYER.search(name)
        part = name.rsplit("/", 2)[-2] if name.count("/") > 1 else name
        return (int(match[1]) if match else -1), part

    def _matrix(self, layer: int, part: str) -> Int4Matrix:
        node = self._products.get((layer, part))
        if node is None:
            where = part if layer < 0 else f"{part} of layer {layer}"
            raise self._refusal(f"it has no MatMulNBits for {where}")
        bits, block = _number(node, "bits", 4), _number(node, "block_size")
        n, k = int(_number(node, "N")), int(_number(node, "K"))
        if bits != 4 or block != BLOCK or k % BLOCK:
            raise self._refusal(f"{node.name} has {bits} bits, blocks of {block}, K {k}")
        if any(value is not None for value in node.inputs[3:]):
            raise self._refusal(f"{node.name} has zero points, a bias or an order of groups")
        codes = self._tensor(node, 1).reshape(n, k // BLOCK, BLOCK // 2)
        scales = self._tensor(node, 2).reshape(n, k // BLOCK)
        return Int4Matrix(codes, scales.astype(np.float32, copy=False))

    def _norm(self, index: int) -> Floats:
        node = self._norms[index]
        weight = self._tensor(node, 2 if node.op_type.startswith("Skip") else 1)
        return np.asarray(weight, np.float32)

    def _tensor(self, node: ir.Node, index: int) -> npt.NDArray[Any]:
        value = node.inputs[index]
        if value is None or value.const_value is None:
            raise self._refusal(f"input {index} of {node.name} is not a constant")
        return np.asarray(value.const_value.numpy())

    def _sizes(self, attention: list[ir.Node], config: dict[str, Any]) -> LlamaSizes:
        first = attention[0]
        if first.inputs[1] is not None or not _number(first, "do_rotary", 0):
            raise self._refusal(f"{first.name} has separate keys or does not rotate them")
        gate, head = self._products.get((0, "gate_proj")), self._products.get((-1, "lm_head"))
        if gate is None or head is None:
            raise self._refusal("it has no MatMulNBits for gate_proj or lm_head")
        fields = Field(config, GENAI_CONFIG)
        head_size = fields.field("model", "decoder", "head_size").integer(1)
        context = fields.field("model", "context_length").integer(1)
        cos, sin = (self._tensor(first, i)[:2].astype(np.float64) for i in (7, 8))
        if cos.shape[1] * 2 != head_size or not np.allclose(cos[0], 1):
            raise self._refusal("its rotation is partial or scaled")
        return LlamaSizes(
            hidden=int(_number(gate, "K")),
            ffn=int(_number(gate, "N")),
            layers=len(attention),
            heads=int(_number(first, "num_heads")),
            kv_heads=int(_number(first, "kv_num_heads")),
            head_size=head_size,
            vocabulary=int(_number(head, "N")),
            context=context,
            epsilon=_number(self._norms[0], "epsilon"),
            inverse_frequencies=np.arctan2(sin[1], cos[1]),
        )

    def _refusal(self, reason: str) -> AieError:
        return AieError(f"{self._name} cannot be given to other engines: {reason}")


def _number(node: ir.Node, name: str, default: float | None = None) -> float:
    attribute = node.attributes.get(name)
    if attribute is None:
        if default is None:
            raise AieError(f"{node.name} has no attribute {name}")
        return default
    value = attribute.value
    if not isinstance(value, (int, float)):
        raise AieError(f"{node.name}: attribute {name} must be a number, got {value!r}")
    return value
