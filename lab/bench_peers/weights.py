"""A decoder's int4 weights as codes and scales, from an ONNX folder of the model builder.

Only one layer at a time is in memory: tensors are mapped, and slices of them are views.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ort_aie_ep.errors import AieError
from ort_aie_ep.graph_passes.walk import attribute
from ort_aie_ep.models.builder.weights import BLOCK
from ort_aie_ep.models.checked_json import Field
from ort_aie_ep.models.folder import GENAI_CONFIG, ModelFolder
from ort_aie_ep.models.onnx_file import load_model
from ort_aie_ep.models.shapes import Shape

FAMILIES = ("llama", "qwen3")
"""The families that other engines can be given."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Int4Matrix:
    """A symmetric matrix (N, K): weight = (code − 8) · scale.

    Attributes:
        codes: (N, K/block, block/2) uint8; byte i of a block has code 2i low and 2i + 1 high.
        scales: (N, K/block) float32, of either sign.
    """

    codes: npt.NDArray[np.uint8]
    scales: Floats

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        n, blocks, half = self.codes.shape
        return n, blocks * half * 2

    def rows(self, first: int, last: int) -> Int4Matrix:
        """Rows first to last − 1."""
        return Int4Matrix(self.codes[first:last], self.scales[first:last])

    def in_blocks_of_32(self) -> Int4Matrix:
        """The same weights: a larger block is several, which repeat its scale."""
        codes = self.codes.reshape(len(self.codes), -1, BLOCK // 2)
        repeats = codes.shape[1] // self.scales.shape[1]
        return Int4Matrix(codes, np.repeat(self.scales, repeats, axis=1))

    def unpacked(self) -> npt.NDArray[np.uint8]:
        """Codes (N, K/block, block), one in a byte."""
        n, blocks, half = self.codes.shape
        both = np.stack([self.codes & 15, self.codes >> 4], axis=-1)
        return both.reshape(n, blocks, half * 2)


@dataclass(frozen=True)
class DecoderLayer:
    """One layer: norms (hidden,), matrices as the model applies them, x · Wᵀ; queries and keys may
    have norms (head size,)."""

    attention_norm: Floats
    q: Int4Matrix
    k: Int4Matrix
    v: Int4Matrix
    o: Int4Matrix
    head_norms: tuple[Floats, Floats] | None
    ffn_norm: Floats
    gate: Int4Matrix
    up: Int4Matrix
    down: Int4Matrix


class DecoderWeights:
    """The source of every engine's model file, and what its graph depends on.

    Attributes:
        shape: its sizes.
        block: weights that share a scale.
        frequencies: (head size / 2,) float64 radians a position, including any scaling.
    """

    def __init__(self, folder: ModelFolder) -> None:
        """Reads the graph; weights stay on disk.

        Raises:
            AieError: it is not a Llama or a dense Qwen3, in symmetric int4, in equal blocks of a
                multiple of 32, as onnxruntime-genai's builder writes it.
        """
        self._model = load_model(folder.model)
        self._name = str(folder.model)
        config = folder.genai_config
        if config is None or config["model"].get("type") not in FAMILIES:
            raise self._refusal(f"its genai_config.json does not say {' or '.join(FAMILIES)}")
        self._products = self._nodes("MatMulNBits")
        if not self._products or self._nodes("QMoE"):
            raise self._refusal("it has no int4 matrices, or it has experts")
        self.block = attribute(self._products[0], "block_size", BLOCK)
        for node in self._products:
            bits, block = attribute(node, "bits", 4), attribute(node, "block_size", 0)
            k = attribute(node, "K", 0)
            if bits != 4 or block != self.block or block % BLOCK or k % block:
                raise self._refusal(f"{node.name} has {bits} bits, blocks of {block}, K {k}")
            if any(value is not None for value in node.inputs[3:]):
                raise self._refusal(f"{node.name} has zero points, a bias or an order of groups")
        self.shape, self.frequencies = self._read_shape(config)

    def layer(self, index: int) -> DecoderLayer:
        """The weights of one layer; AieError if some are missing."""
        shape, at = self.shape, f"model.layers.{index}"
        packed = self._matrix(f"{at}.attn.qkv_proj")
        queries, keys = shape.queries, shape.keys
        head_norms = None
        if shape.family == "qwen3":
            q_norm, k_norm = (f"{at}.attn.{x}_norm.layernorm.weight" for x in "qk")
            head_norms = self._floats(q_norm), self._floats(k_norm)
        return DecoderLayer(
            attention_norm=self._floats(f"{at}.input_layernorm.weight"),
            q=packed.rows(0, queries),
            k=packed.rows(queries, queries + keys),
            v=packed.rows(queries + keys, queries + 2 * keys),
            o=self._matrix(f"{at}.attn.o_proj"),
            head_norms=head_norms,
            ffn_norm=self._floats(f"{at}.post_attention_layernorm.weight"),
            gate=self._matrix(f"{at}.mlp.gate_proj"),
            up=self._matrix(f"{at}.mlp.up_proj"),
            down=self._matrix(f"{at}.mlp.down_proj"),
        )

    def final_norm(self) -> Floats:
        """(hidden,) float32."""
        return self._floats(f"model.layers.{self.shape.layers}.final_norm_layernorm.weight")

    def lm_head(self) -> Int4Matrix:
        """(vocabulary, hidden)."""
        return self._matrix("lm_head")

    def embedding(self) -> Floats | None:
        """(vocabulary, hidden) float32, or None if the lm_head's rows are the embedding."""
        return None if self.shape.tied else self._floats("model.embed_tokens.weight")

    def source_bits(self) -> float:
        """Mean bits of a weight in the source: a code and its share of a scale."""
        return 4 + self._tensor("lm_head.MatMul.weight_scales").itemsize * 8 / self.block

    def product_elements(self) -> int:
        """Number of weights that multiply a token, the lm_head once."""
        return sum(attribute(n, "N", 0) * attribute(n, "K", 0) for n in self._products)

    def describe(self) -> str:
        """The family and its sizes in words."""
        shape = self.shape
        blocks = f", blocks of {self.block}" if self.block != BLOCK else ""
        return (
            f"{shape.family} with {shape.layers} layers of {shape.hidden}, FFN {shape.ffn}, "
            f"{shape.heads} heads of {shape.head_dim} on {shape.kv_heads}, "
            f"vocabulary {shape.vocab}{blocks}"
        )

    def _nodes(self, op_type: str) -> list[ir.Node]:
        return [node for node in self._model.graph if node.op_type == op_type]

    def _find(self, name: str) -> npt.NDArray[Any] | None:
        value = self._model.graph.initializers.get(name)
        return None if value is None or value.const_value is None else value.const_value.numpy()

    def _tensor(self, name: str) -> npt.NDArray[Any]:
        found = self._find(name)
        if found is None:
            raise self._refusal(f"it has no {name}")
        return found

    def _floats(self, name: str) -> Floats:
        return np.asarray(self._tensor(name), np.float32)

    def _matrix(self, name: str) -> Int4Matrix:
        if self._find(f"{name}.Add.bias") is not None:
            raise self._refusal(f"{name} has a bias")
        codes = self._tensor(f"{name}.MatMul.weight_Q4")
        blocks = codes.reshape(len(codes), -1, self.block // 2)
        scales = self._floats(f"{name}.MatMul.weight_scales").reshape(blocks.shape[:2])
        return Int4Matrix(blocks, scales)

    def _read_shape(self, config: dict[str, Any]) -> tuple[Shape, npt.NDArray[np.float64]]:
        family, fields = str(config["model"]["type"]), Field(config, GENAI_CONFIG)
        attention = self._nodes("GroupQueryAttention")
        rotating = [attribute(node, "do_rotary", 0) for node in attention]
        windows = [attribute(node, "local_window_size", -1) for node in attention]
        if not rotating or not all(rotating) or max(windows) > 0:
            raise self._refusal("it has attention that does not rotate, or that has a window")
        head_dim = fields.field("model", "decoder", "head_size").integer(1)
        cos, sin = (self._tensor(f"{x}_cache")[:2].astype(np.float64) for x in ("cos", "sin"))
        if cos.shape[1] * 2 != head_dim or not np.allclose(cos[0], 1):
            raise self._refusal("its rotation is partial or scaled")
        head = self._tensor("lm_head.MatMul.weight_Q4")
        shape = Shape(
            family=family, hidden=2 * head.size // len(head),
            ffn=len(self._tensor("model.layers.0.mlp.gate_proj.MatMul.weight_Q4")),
            layers=len(attention), heads=attribute(attention[0], "num_heads", 0),
            kv_heads=attribute(attention[0], "kv_num_heads", 0), head_dim=head_dim,
            vocab=len(head), context=fields.field("model", "context_length").integer(1),
            tied=bool(self._nodes("GatherBlockQuantized")),
            epsilon=attribute(self._nodes("SimplifiedLayerNormalization")[0], "epsilon", 1e-5),
        )  # fmt: skip
        return shape, np.arctan2(sin[1], cos[1])

    def _refusal(self, reason: str) -> AieError:
        return AieError(f"{self._name} cannot be given to other engines: {reason}")
