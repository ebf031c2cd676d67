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
from ort_aie_ep.models.builder.weights import BLOCK, rotary_frequencies
from ort_aie_ep.models.checked_json import Field
from ort_aie_ep.models.folder import GENAI_CONFIG, ModelFolder
from ort_aie_ep.models.onnx_file import load_model
from ort_aie_ep.models.shapes import SHAPES, Shape

GPT_OSS = "gptoss"
FAMILIES = ("llama", "qwen3", GPT_OSS)
"""The families that other engines can be given."""

_YARN = SHAPES["gpt-oss-20b"].yarn
# Attributes of QMoE: what experts do with a gate and an up. A limit of 0 is none.
_EXPERTS = {
    "expert_weight_bits": 4,
    "swiglu_fusion": 1,
    "normalize_routing_weights": 1,
    "activation_alpha": 1.0,
    "activation_beta": 0.0,
    "swiglu_limit": 0.0,
}
_GPT_OSS_EXPERTS = {
    **_EXPERTS, "activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 7.0
}  # fmt: skip
_SINKS = 11  # an input of GroupQueryAttention
_FIRST = "model.layers.0"

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Int4Matrix:
    """A symmetric matrix (N, K): weight = (code − 8) · scale.

    Attributes:
        codes: (N, K/block, block/2) uint8; byte i of a block has code 2i low and 2i + 1 high.
        scales: (N, K/block) float32, of either sign.
        bias: (N,) float32, which is added to the products with the rows; None without one.
    """

    codes: npt.NDArray[np.uint8]
    scales: Floats
    bias: Floats | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        n, blocks, half = self.codes.shape
        return n, blocks * half * 2

    def rows(self, first: int, last: int | None = None, step: int = 1) -> Int4Matrix:
        """Rows first to last − 1, or each `step`-th of them."""
        rows = slice(first, last, step)
        bias = None if self.bias is None else self.bias[rows]
        return Int4Matrix(self.codes[rows], self.scales[rows], bias)

    def in_blocks_of_32(self) -> Int4Matrix:
        """The same weights: a larger block is several, which repeat its scale."""
        codes = self.codes.reshape(len(self.codes), -1, BLOCK // 2)
        scales = np.repeat(self.scales, codes.shape[1] // self.scales.shape[1], axis=1)
        return Int4Matrix(codes, scales, self.bias)

    def unpacked(self) -> npt.NDArray[np.uint8]:
        """Codes (N, K/block, block), one in a byte."""
        n, blocks, half = self.codes.shape
        both = np.stack([self.codes & 15, self.codes >> 4], axis=-1)
        return both.reshape(n, blocks, half * 2)

    def dequantised(self) -> Floats:
        """(N, K) float32."""
        values = (self.unpacked().astype(np.float32) - 8) * self.scales[:, :, None]
        return values.reshape(self.shape)


@dataclass(frozen=True)
class DecoderLayer:
    """One layer: norms (hidden,), matrices as the model applies them, x · Wᵀ.

    Queries and keys may have norms (head size,), scores sinks (heads,). With experts, there is a
    router (experts, hidden), and gate, up and down have the rows of one expert after another.
    """

    attention_norm: Floats
    q: Int4Matrix
    k: Int4Matrix
    v: Int4Matrix
    o: Int4Matrix
    head_norms: tuple[Floats, Floats] | None
    sinks: Floats | None
    ffn_norm: Floats
    router: Int4Matrix | None
    gate: Int4Matrix
    up: Int4Matrix
    down: Int4Matrix


class DecoderWeights:
    """The source of every peer's model file, and what its graph depends on.

    Attributes:
        shape: its sizes; the base of the rotation is that of unscaled frequencies.
        block: weights that share a scale.
        frequencies: (head size / 2,) float64 radians a position, including any scaling.
    """

    def __init__(self, folder: ModelFolder) -> None:
        """Reads the graph; weights stay on disk.

        Raises:
            AieError: it is not a Llama, a Qwen3 with or without experts, or a gpt-oss, in symmetric
                int4, in equal blocks of a multiple of 32, as onnxruntime-genai's builder writes it.
        """
        self._model = load_model(folder.model)
        self._name = str(folder.model)
        config = folder.genai_config
        if config is None or config["model"].get("type") not in FAMILIES:
            known = f"{', '.join(FAMILIES[:-1])} or {FAMILIES[-1]}"
            raise self._refusal(f"its genai_config.json does not say {known}")
        self._products = self._nodes("MatMulNBits")
        first = self._products[0] if self._products else None
        self.block = BLOCK if first is None else attribute(first, "block_size", BLOCK)
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
        if shape.experts:
            # The fused first matrix has a row of the gate and one of up in turn.
            gate_up = self._experts(f"{at}.moe.experts.gate_up_proj")
            gate, up = gate_up.rows(0, step=2), gate_up.rows(1, step=2)
            down = self._experts(f"{at}.moe.experts.down_proj")
        else:
            gate, up, down = (self._matrix(f"{at}.mlp.{p}_proj") for p in ("gate", "up", "down"))
        q_norm, k_norm = (self._find(f"{at}.attn.{x}_norm.layernorm.weight") for x in "qk")
        sinks = self._find(f"{at}.attn.sinks")
        return DecoderLayer(
            attention_norm=_floats(self._tensor(f"{at}.input_layernorm.weight")),
            q=packed.rows(0, queries),
            k=packed.rows(queries, queries + keys),
            v=packed.rows(queries + keys, queries + 2 * keys),
            o=self._matrix(f"{at}.attn.o_proj"),
            head_norms=None if k_norm is None else (_floats(q_norm), _floats(k_norm)),
            sinks=None if sinks is None else _floats(sinks),
            ffn_norm=_floats(self._tensor(f"{at}.post_attention_layernorm.weight")),
            router=self._matrix(f"{at}.moe.router") if shape.experts else None,
            gate=gate,
            up=up,
            down=down,
        )

    def final_norm(self) -> Floats:
        """(hidden,) float32."""
        name = f"model.layers.{self.shape.layers}.final_norm_layernorm.weight"
        return _floats(self._tensor(name))

    def lm_head(self) -> Int4Matrix:
        """(vocabulary, hidden)."""
        return self._matrix("lm_head")

    def embedding(self) -> Floats | None:
        """(vocabulary, hidden) float32, or None if the lm_head's rows are the embedding."""
        return None if self.shape.tied else self._tensor("model.embed_tokens.weight")

    def source_bits(self) -> float:
        """Mean bits of a weight in the source: a code and its share of a scale."""
        return 4 + self._tensor("lm_head.MatMul.weight_scales").itemsize * 8 / self.block

    def product_elements(self) -> int:
        """Number of weights that multiply a token: those of its experts, and the lm_head once."""
        shape = self.shape
        experts = 3 * shape.ffn * shape.hidden * shape.experts_per_token * shape.layers
        sizes = (attribute(n, "N", 0) * attribute(n, "K", 0) for n in self._products)
        return experts + sum(sizes)

    def cache_bytes(self, tokens: int) -> int:
        """Bytes of the keys and values of `tokens` tokens in float16, as far as layers see them."""
        shape = self.shape
        local = sum(map(shape.is_local, range(shape.layers)))
        rows = local * min(tokens, shape.window or tokens) + (shape.layers - local) * tokens
        return rows * 2 * shape.keys * 2

    def describe(self) -> str:
        """The family and its sizes in words."""
        shape = self.shape
        ffn = f"FFN {shape.ffn}"
        if shape.experts:
            ffn = f"{shape.experts_per_token} of {shape.experts} experts of {shape.ffn}"
        blocks = f", blocks of {self.block}" if self.block != BLOCK else ""
        window = f"windows of {shape.window} in every other layer, " if shape.window else ""
        return (
            f"{shape.family} with {shape.layers} layers of {shape.hidden}, {ffn}, "
            f"{shape.heads} heads of {shape.head_dim} on {shape.kv_heads}, "
            f"{window}vocabulary {shape.vocab}{blocks}"
        )

    def release(self) -> None:
        """Unmaps the files; later reads map them again."""
        for value in self._model.graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value.release()

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

    def _matrix(self, name: str) -> Int4Matrix:
        codes, scales = (self._tensor(f"{name}.MatMul.weight_{x}") for x in ("Q4", "scales"))
        blocks = codes.reshape(len(codes), -1, self.block // 2)
        bias = self._find(f"{name}.Add.bias")
        if bias is not None and self.shape.family != GPT_OSS:
            raise self._refusal(f"{name} has a bias")
        scales = _floats(scales.reshape(blocks.shape[:2]))
        return Int4Matrix(blocks, scales, None if bias is None else _floats(bias))

    def _experts(self, name: str) -> Int4Matrix:
        """The matrices of all experts, one after the other."""
        codes, scales, bias = (self._tensor(f"{name}.{x}") for x in ("qweight", "scales", "bias"))
        # The builder gives experts without biases zeros.
        if self.shape.family != GPT_OSS and np.any(bias):
            raise self._refusal(f"{name} has biases")
        blocks = codes.reshape(bias.size, -1, self.block // 2)
        added = _floats(bias.ravel()) if self.shape.family == GPT_OSS else None
        return Int4Matrix(blocks, _floats(scales.reshape(blocks.shape[:2])), added)

    def _read_shape(self, config: dict[str, Any]) -> tuple[Shape, npt.NDArray[np.float64]]:
        family, fields = str(config["model"]["type"]), Field(config, GENAI_CONFIG)
        attention, experts = self._nodes("GroupQueryAttention"), self._nodes("QMoE")
        if not attention or len(experts) not in (0, len(attention)):
            raise self._refusal(f"it has {len(attention)} attentions and {len(experts)} QMoE")
        self._check(family, attention, experts)
        head_dim = fields.field("model", "decoder", "head_size").integer(1)
        cos, sin = (self._tensor(f"{x}_cache")[:2].astype(np.float64) for x in ("cos", "sin"))
        yarn = _YARN if family == GPT_OSS else None
        if cos.shape[1] * 2 != head_dim or not np.allclose(cos[0], yarn.magnitude if yarn else 1):
            raise self._refusal("its rotation is partial or scaled")
        frequencies = np.arctan2(sin[1], cos[1])
        # The second frequency is never scaled.
        base = float(frequencies[1] ** (-head_dim / 2))
        expected = rotary_frequencies(head_dim, base, yarn)
        if yarn and not np.allclose(frequencies, expected, rtol=1e-4, atol=0):
            raise self._refusal("its rotation is not scaled as gpt-oss's")
        head, first = self._tensor("lm_head.MatMul.weight_Q4"), attention[0]
        window = attribute(first, "local_window_size", -1)
        of_expert = (0, 0)
        if experts:
            count, rows, _ = self._tensor(f"{_FIRST}.moe.experts.gate_up_proj.qweight").shape
            of_expert, ffn = (count, attribute(experts[0], "k", 0)), rows // 2
        else:
            ffn = len(self._tensor(f"{_FIRST}.mlp.gate_proj.MatMul.weight_Q4"))
        shape = Shape(
            family=family, hidden=2 * head.size // len(head), ffn=ffn, layers=len(attention),
            heads=attribute(first, "num_heads", 0), kv_heads=attribute(first, "kv_num_heads", 0),
            head_dim=head_dim, vocab=len(head),
            context=fields.field("model", "context_length").integer(1),
            tied=bool(self._nodes("GatherBlockQuantized")), rope_theta=base,
            epsilon=attribute(self._nodes("SimplifiedLayerNormalization")[0], "epsilon", 1e-5),
            yarn=yarn, window=None if window < 0 else window, global_every=2,
            experts=of_expert[0], experts_per_token=of_expert[1],
        )  # fmt: skip
        return shape, frequencies

    def _check(self, family: str, attention: list[ir.Node], experts: list[ir.Node]) -> None:
        """Refuses what other engines cannot be told."""
        first = attention[0]
        if not attribute(first, "do_rotary", 0):
            raise self._refusal(f"{first.name} does not rotate queries and keys")
        head_norm = self._find(f"{_FIRST}.attn.q_norm.layernorm.weight")
        if first.inputs[1] is not None and head_norm is None:
            raise self._refusal(f"{first.name} has separate keys")
        if experts:
            usual = _GPT_OSS_EXPERTS if family == GPT_OSS else _EXPERTS
            usual = usual | {"block_size": self.block}
            for name, expected in usual.items():
                if np.float32(attribute(experts[0], name, type(expected)())) != np.float32(
                    expected
                ):
                    raise self._refusal(f"{name} of {experts[0].name} is not {expected}")
            if any(value is not None for value in experts[0].inputs[8:]):
                raise self._refusal(f"{experts[0].name} has zero points or a third matrix")
        windows = [attribute(node, "local_window_size", -1) for node in attention]
        window = windows[0] if family == GPT_OSS else -1
        if windows != [window if layer % 2 == 0 else -1 for layer in range(len(windows))]:
            raise self._refusal(f"a {family} has no such windows: {windows}")
        sinks = [value for node in attention for value in node.inputs[_SINKS : _SINKS + 1]]
        if family != GPT_OSS and sinks.count(None) < len(sinks):
            raise self._refusal(f"{first.name} has sinks")

    def _refusal(self, reason: str) -> AieError:
        return AieError(f"{self._name} cannot be given to other engines: {reason}")


def _floats(values: Any) -> Floats:
    return np.asarray(values, np.float32)
