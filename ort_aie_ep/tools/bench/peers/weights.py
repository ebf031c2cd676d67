"""A decoder's int4 weights as codes and scales, from an ONNX folder of the model builder.

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
from ort_aie_ep.models.builder.weights import rotary_frequencies
from ort_aie_ep.models.checked_json import Field
from ort_aie_ep.models.folder import GENAI_CONFIG, ModelFolder
from ort_aie_ep.models.onnx_file import load_model
from ort_aie_ep.models.shapes import SHAPES, Yarn

BLOCK = 32
"""Values of K that share a scale, in every engine's format here."""

_LAYER = re.compile(r"/layers\.(\d+)/")
GPT_OSS = "gptoss"
FAMILIES = ("llama", "qwen3", GPT_OSS)
"""The families that other engines can be given."""

_YARN = SHAPES["gpt-oss-20b"].yarn
# What experts do with a gate and an up. A limit of 0 is none.
_SWIGLU = {"activation_alpha": 1, "activation_beta": 0, "swiglu_limit": 0}
_GPT_OSS_SWIGLU = {"activation_alpha": 1.702, "activation_beta": 1, "swiglu_limit": 7}

_HEAD_NORMS = ("q_norm", "k_norm")
_SINKS = 11
"""An input of GroupQueryAttention."""
_NORMS = ("SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization")

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Int4Matrix:
    """A symmetric matrix (N, K): weight = (code − 8) · scale.

    Attributes:
        codes: (N, K/32, 16) uint8; byte i of a block holds code 2i low and 2i + 1 high.
        scales: (N, K/32) float32, of either sign.
        bias: (N,) float32, which is added to the products with the rows; None without one.
    """

    codes: npt.NDArray[np.uint8]
    scales: Floats
    bias: Floats | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return self.codes.shape[0], self.codes.shape[1] * BLOCK

    def rows(self, first: int, last: int) -> Int4Matrix:
        """Rows first to last − 1."""
        return self.picked(slice(first, last))

    def picked(self, rows: slice) -> Int4Matrix:
        """Those rows."""
        bias = None if self.bias is None else self.bias[rows]
        return Int4Matrix(self.codes[rows], self.scales[rows], bias)

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
class Experts:
    """The experts of a layer, the rows of each after those of the one before.

    Attributes:
        router: (experts, hidden).
        gate, up: (experts · FFN, hidden).
        down: (experts · hidden, FFN).
    """

    router: Int4Matrix
    gate: Int4Matrix
    up: Int4Matrix
    down: Int4Matrix


@dataclass(frozen=True)
class DecoderLayer:
    """One layer: norms (hidden,), matrices as the model applies them, x · Wᵀ.

    Attributes:
        head_norms: weights (head size,) of the norms of queries and of keys, if it has them.
        sinks: (heads,), which join the softmax of a head's scores, if it has them.
        ffn: gate, up and down, or experts.
    """

    attention_norm: Floats
    q: Int4Matrix
    k: Int4Matrix
    v: Int4Matrix
    o: Int4Matrix
    head_norms: tuple[Floats, Floats] | None
    sinks: Floats | None
    ffn_norm: Floats
    ffn: tuple[Int4Matrix, Int4Matrix, Int4Matrix] | Experts

    def plain_ffn(self) -> tuple[Int4Matrix, Int4Matrix, Int4Matrix]:
        """Gate, up and down.

        Raises:
            AieError: the layer has experts.
        """
        if isinstance(self.ffn, Experts):
            raise AieError("the layer has experts; expected gate, up and down")
        return self.ffn


@dataclass(frozen=True)
class DecoderSizes:
    """The sizes that a decoder's graph depends on.

    Attributes:
        family: the model's type in genai_config.json.
        ffn: width of the FFN, or of each expert.
        experts: number of experts; 0 without them.
        experts_per_token: number of experts that are added for a token.
        inverse_frequencies: (head size / 2,) float64 radians a position, including any scaling.
        yarn: the scaling that also multiplies cos and sin, if there is one.
        window: tokens that the first layer, and then every other one, sees; None if all see all.
        epsilon: epsilon of the RMS norms.
    """

    family: str
    hidden: int
    ffn: int
    experts: int
    experts_per_token: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    context: int
    epsilon: float
    inverse_frequencies: npt.NDArray[np.float64]
    yarn: Yarn | None
    window: int | None

    @property
    def rope_base(self) -> float:
        """The base of the frequencies, of which the second one must not be scaled."""
        return float(self.inverse_frequencies[1] ** (-self.head_size / 2))

    def describe(self) -> str:
        """The family and its sizes in words."""
        ffn = f"FFN {self.ffn}"
        if self.experts:
            ffn = f"{self.experts_per_token} of {self.experts} experts of {self.ffn}"
        window = f"windows of {self.window} in every other layer, " if self.window else ""
        return (
            f"{self.family} with {self.layers} layers of {self.hidden}, {ffn}, "
            f"{self.heads} heads of {self.head_size} on {self.kv_heads}, "
            f"{window}vocabulary {self.vocabulary}"
        )


class DecoderWeights:
    """The source of every peer's model file.

    Attributes:
        sizes: the sizes that the graph depends on.
    """

    def __init__(self, folder: ModelFolder) -> None:
        """Reads the graph; weights stay on disk.

        Raises:
            AieError: it is not a Llama, a Qwen3 with or without experts, or a gpt-oss, in symmetric
                int4, block 32, as onnxruntime-genai's builder writes it.
        """
        self._model = load_model(folder.model)
        self._name = str(folder.model)
        self._products: dict[tuple[int, str], ir.Node] = {}
        self._norms: list[ir.Node] = []
        self._head_norms: dict[tuple[int, str], ir.Node] = {}
        self._experts: list[ir.Node] = []
        self._attention: list[ir.Node] = []
        for node in self._model.graph:
            if node.op_type == "MatMulNBits":
                self._products[self._place(node)] = node
            elif node.op_type in _NORMS:
                place = self._place(node)
                if place[1] in _HEAD_NORMS:
                    self._head_norms[place] = node
                else:
                    self._norms.append(node)
            elif node.op_type == "QMoE":
                self._experts.append(node)
            elif node.op_type == "GroupQueryAttention":
                self._attention.append(node)
        config = folder.genai_config
        if config is None or config["model"].get("type") not in FAMILIES:
            known = f"{', '.join(FAMILIES[:-1])} or {FAMILIES[-1]}"
            raise self._refusal(f"its genai_config.json does not say {known}")
        layers = len(self._attention)
        if self._experts and len(self._experts) != layers:
            raise self._refusal(
                f"it has {len(self._experts)} QMoE and {layers} GroupQueryAttention"
            )
        if not layers or len(self._norms) != 2 * layers + 1:
            raise self._refusal(
                f"it has {layers} GroupQueryAttention and {len(self._norms)} RMS norms"
            )
        self.sizes = self._sizes(config)

    def layer(self, index: int) -> DecoderLayer:
        """The weights of one layer.

        Raises:
            AieError: a matrix is missing, or not symmetric int4 with block 32.
        """
        sizes = self.sizes
        packed = self._matrix(index, "qkv_proj")
        queries, keys = sizes.heads * sizes.head_size, sizes.kv_heads * sizes.head_size
        return DecoderLayer(
            attention_norm=self._norm(2 * index),
            q=packed.rows(0, queries),
            k=packed.rows(queries, queries + keys),
            v=packed.rows(queries + keys, queries + 2 * keys),
            o=self._matrix(index, "o_proj"),
            head_norms=self._norms_of_heads(index),
            sinks=self._sinks(index),
            ffn_norm=self._norm(2 * index + 1),
            ffn=self._experts_of(index) if self._experts else self._ffn(index),
        )

    def _ffn(self, index: int) -> tuple[Int4Matrix, Int4Matrix, Int4Matrix]:
        gate, up, down = (self._matrix(index, f"{part}_proj") for part in ("gate", "up", "down"))
        return gate, up, down

    def _norms_of_heads(self, index: int) -> tuple[Floats, Floats] | None:
        nodes = [self._head_norms.get((index, part)) for part in _HEAD_NORMS]
        if nodes[0] is None or nodes[1] is None:
            return None
        query, key = (np.asarray(self._tensor(node, 1), np.float32) for node in nodes if node)
        return query, key

    def _sinks(self, index: int) -> Floats | None:
        node = self._attention[index]
        if len(node.inputs) <= _SINKS or node.inputs[_SINKS] is None:
            return None
        if self.sizes.family != GPT_OSS:
            raise self._refusal(f"{node.name} has sinks")
        return np.asarray(self._tensor(node, _SINKS), np.float32)

    def _experts_of(self, index: int) -> Experts:
        """The fused first matrix has a row of the gate and one of up in turn."""
        node, sizes = self._experts[index], self.sizes
        gate_up = self._stack(node, 2, 2 * sizes.ffn, sizes.hidden)
        return Experts(
            router=self._matrix(index, "router"),
            gate=gate_up.picked(slice(0, None, 2)),
            up=gate_up.picked(slice(1, None, 2)),
            down=self._stack(node, 5, sizes.hidden, sizes.ffn),
        )

    def _stack(self, node: ir.Node, first: int, n: int, k: int) -> Int4Matrix:
        """The codes, scales and biases that start at an input of QMoE."""
        rows, blocks = self.sizes.experts * n, k // BLOCK
        bias = self._tensor(node, first + 2).reshape(rows).astype(np.float32, copy=False)
        # The builder gives experts without biases zeros.
        if self.sizes.family != GPT_OSS and np.any(bias):
            raise self._refusal(f"{node.name} has biases")
        codes = self._tensor(node, first).reshape(rows, blocks, BLOCK // 2)
        scales = self._tensor(node, first + 1).reshape(rows, blocks)
        scales = scales.astype(np.float32, copy=False)
        return Int4Matrix(codes, scales, bias if self.sizes.family == GPT_OSS else None)

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
        """Number of weights that multiply a decoded token.

        All matrices of the experts that a token takes, the lm_head once.
        """
        nodes, sizes = self._products.values(), self.sizes
        experts = 3 * sizes.ffn * sizes.hidden * sizes.experts_per_token * len(self._experts)
        return experts + sum(int(_number(n, "N")) * int(_number(n, "K")) for n in nodes)

    def cache_bytes(self, tokens: int) -> int:
        """Bytes of the keys and values of `tokens` tokens in float16, as far as layers see them."""
        sizes = self.sizes
        local = (sizes.layers + 1) // 2 if sizes.window else 0
        rows = local * min(tokens, sizes.window or tokens) + (sizes.layers - local) * tokens
        return rows * 2 * sizes.kv_heads * sizes.head_size * 2

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
        bias = self._bias(node)
        codes = self._tensor(node, 1).reshape(n, k // BLOCK, BLOCK // 2)
        scales = self._tensor(node, 2).reshape(n, k // BLOCK)
        return Int4Matrix(codes, scales.astype(np.float32, copy=False), bias)

    def _bias(self, product: ir.Node) -> Floats | None:
        """The constant that an Add behind a product adds to it."""
        for use in product.outputs[0].uses():
            if use.node.op_type != "Add":
                continue
            value = use.node.inputs[1 - use.idx]
            if value is None or value.const_value is None:
                continue
            if self.sizes.family != GPT_OSS:
                raise self._refusal(f"{product.name} has a bias")
            return np.asarray(value.const_value.numpy(), np.float32)
        return None

    def _norm(self, index: int) -> Floats:
        node = self._norms[index]
        weight = self._tensor(node, 2 if node.op_type.startswith("Skip") else 1)
        return np.asarray(weight, np.float32)

    def _tensor(self, node: ir.Node, index: int) -> npt.NDArray[Any]:
        value = node.inputs[index]
        if value is None or value.const_value is None:
            raise self._refusal(f"input {index} of {node.name} is not a constant")
        return np.asarray(value.const_value.numpy())

    def _sizes(self, config: dict[str, Any]) -> DecoderSizes:
        first, family = self._attention[0], str(config["model"]["type"])
        if not _number(first, "do_rotary", 0):
            raise self._refusal(f"{first.name} does not rotate queries and keys")
        if first.inputs[1] is not None and not self._head_norms:
            raise self._refusal(f"{first.name} has separate keys")
        head = self._products.get((-1, "lm_head"))
        if head is None:
            raise self._refusal("it has no MatMulNBits for lm_head")
        hidden = int(_number(head, "K"))
        fields = Field(config, GENAI_CONFIG)
        head_size = fields.field("model", "decoder", "head_size").integer(1)
        context = fields.field("model", "context_length").integer(1)
        cos, sin = (self._tensor(first, i)[:2].astype(np.float64) for i in (7, 8))
        ffn, experts, experts_per_token = self._widths(family)
        sizes = DecoderSizes(
            family=family,
            hidden=hidden,
            ffn=ffn,
            experts=experts,
            experts_per_token=experts_per_token,
            layers=len(self._attention),
            heads=int(_number(first, "num_heads")),
            kv_heads=int(_number(first, "kv_num_heads")),
            head_size=head_size,
            vocabulary=int(_number(head, "N")),
            context=context,
            epsilon=_number(self._norms[0], "epsilon"),
            inverse_frequencies=np.arctan2(sin[1], cos[1]),
            yarn=_YARN if family == GPT_OSS else None,
            window=self._window(family),
        )
        magnitude = 1.0 if sizes.yarn is None else sizes.yarn.magnitude
        if cos.shape[1] * 2 != head_size or not np.allclose(cos[0], magnitude):
            raise self._refusal("its rotation is partial or scaled")
        if sizes.yarn is not None:
            expected = rotary_frequencies(head_size, sizes.rope_base, sizes.yarn)
            if not np.allclose(sizes.inverse_frequencies, expected, rtol=1e-4, atol=0):
                raise self._refusal("its rotation is not scaled as gpt-oss's")
        return sizes

    def _window(self, family: str) -> int | None:
        windows = [int(_number(node, "local_window_size", -1)) for node in self._attention]
        window = windows[0] if family == GPT_OSS else -1
        if windows != [window if layer % 2 == 0 else -1 for layer in range(len(windows))]:
            raise self._refusal(f"a {family} has no such windows: {windows}")
        return None if window < 0 else window

    def _widths(self, family: str) -> tuple[int, int, int]:
        """Width of the FFN or of an expert, number of experts, experts for a token."""
        if not self._experts:
            gate = self._products.get((0, "gate_proj"))
            if gate is None:
                raise self._refusal("it has no MatMulNBits for gate_proj")
            return int(_number(gate, "N")), 0, 0
        first = self._experts[0]
        usual = {
            "block_size": BLOCK,
            "expert_weight_bits": 4,
            "swiglu_fusion": 1,
            "normalize_routing_weights": 1,
            **(_GPT_OSS_SWIGLU if family == GPT_OSS else _SWIGLU),
        }
        for name, expected in usual.items():
            if np.float32(_number(first, name, 0)) != np.float32(expected):
                raise self._refusal(f"{name} of {first.name} is not {expected}")
        if any(value is not None for value in first.inputs[8:]):
            raise self._refusal(f"{first.name} has zero points or a third matrix")
        experts, rows, _ = self._tensor(first, 2).shape
        return rows // 2, experts, int(_number(first, "k"))

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
