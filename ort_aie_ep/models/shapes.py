"""Sizes of well-known models, and the parts of a graph that depend on the model."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["SHAPES", "Hybrid", "Shape", "Yarn"]


@dataclass(frozen=True)
class Yarn:
    """A rotation that is stretched for longer contexts than the model was first trained on.

    Channels that turn less than once in `original` tokens turn `factor` times slower, those that
    turn more than 32 times stay, and those between are blended (YaRN, arXiv:2309.00071). The limits
    are `whole` channels, or between them.
    """

    factor: float
    original: int
    whole: bool = False

    @property
    def magnitude(self) -> float:
        """What cos and sin are multiplied by."""
        return 0.1 * math.log(self.factor) + 1


@dataclass(frozen=True)
class Hybrid:
    """Layers that have states of a fixed size instead of attention.

    They are short convolutions, or with `value_heads` linear attention on what a convolution gives.

    Attributes:
        attention: the layers with attention.
        taps: of each channel's convolution.
        key_heads, value_heads, width: heads of linear attention, and the channels of each.
        alternate: whether value heads that share a key head are not neighbours, but `key_heads`
            apart.
        sections: channel pairs that rotate by each of three positions.
    """

    attention: tuple[int, ...]
    taps: int
    key_heads: int = 0
    value_heads: int = 0
    width: int = 0
    alternate: bool = False
    sections: tuple[int, ...] = ()

    @property
    def keys(self) -> int:
        """Width of all key heads (or query heads) together."""
        return self.key_heads * self.width

    @property
    def values(self) -> int:
        """Width of all value heads together."""
        return self.value_heads * self.width


@dataclass(frozen=True)
class Shape:
    """The sizes of a model, and the parts of its family's graph that depend on the model.

    `family` is the model type in genai_config.json. It decides the graph: "llama", "mistral",
    "phi3", "granite" and "smollm3" have the same graph, "qwen2" adds biases of queries, keys and
    values, and "qwen3" norms of queries and keys. "gemma3_text" adds norms after attention and FFN
    and alternates local and global layers. "phi" has biases, LayerNorm and a plain FFN beside the
    attention, and rotates only the first `rotary` channels. "gptoss" has biases, attention sinks,
    and experts with a SwiGLU of its own. "lfm2", "lfm2_moe" and "qwen3_5_text" are hybrids. With
    `experts`, the FFN of a token is the weighted sum of `experts_per_token` of them, each `ffn`
    wide, but in the first `dense_layers`, which have one FFN of `dense_ffn`.
    """

    family: str
    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    tied: bool
    rope_theta: float = 10000.0
    epsilon: float = 1e-6
    rotary: int | None = None
    yarn: Yarn | None = None
    # Sliding window of the local layers; every `global_every`-th layer has none.
    window: int | None = None
    global_every: int = 6
    local_rope_theta: float = 10000.0
    experts: int = 0
    experts_per_token: int = 0
    # What products of queries and keys are multiplied by; None: 1 / √head_dim.
    attention_scale: float | None = None
    # What rows of the embedding are multiplied by; None: √hidden in Gemma, else nothing.
    embedding_scale: float | None = None
    # Each such layer does not rotate queries and keys; 0: all layers do.
    unrotated_every: int = 0
    dense_layers: int = 0
    dense_ffn: int = 0
    hybrid: Hybrid | None = None

    @property
    def queries(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Width of all key heads (or value heads) together."""
        return self.kv_heads * self.head_dim

    @property
    def branch_gain(self) -> float:
        """Of random weights, so that the sum of all branches is near one for any `layers`."""
        return 1.0 / math.sqrt(2 * self.layers)

    def is_local(self, layer: int) -> bool:
        """Whether the layer sees only its sliding window."""
        return self.window is not None and (layer + 1) % self.global_every != 0

    def has_attention(self, layer: int) -> bool:
        """Whether the layer has attention, and not a state."""
        return self.hybrid is None or layer in self.hybrid.attention

    def ffn_of(self, layer: int) -> int:
        """Width of the layer's FFN, or of each expert."""
        return self.dense_ffn if layer < self.dense_layers else self.ffn

    def has_experts(self, layer: int) -> bool:
        """Whether the layer has experts, and not one FFN."""
        return self.experts > 0 and layer >= self.dense_layers

    def is_rotated(self, layer: int) -> bool:
        """Whether the layer rotates queries and keys."""
        return self.unrotated_every == 0 or (layer + 1) % self.unrotated_every != 0


_SIZES = ("hidden", "ffn", "layers", "heads", "kv_heads", "head_dim", "vocab", "context")


def _like(shape: Shape, *sizes: int, **others: Any) -> Shape:
    """A shape with other sizes, in the order of `_SIZES`, and other differences."""
    others.update(zip(_SIZES, sizes, strict=True))
    return replace(shape, **others)


# The sizes are in the order of `_SIZES` here too.
_LLAMA = Shape(
    "llama", 2048, 8192, 16, 32, 8, 64, 128256, 131072, True, rope_theta=500000.0, epsilon=1e-5
)
_LLAMA_8B = _like(_LLAMA, 4096, 14336, 32, 32, 8, 128, 128256, 131072, tied=False)
_SMOLLM2 = _like(_LLAMA, 576, 1536, 30, 9, 3, 64, 49152, 8192, rope_theta=100000.0)
_QWEN2 = Shape("qwen2", 896, 4864, 24, 14, 2, 64, 151936, 32768, True, rope_theta=1000000.0)
_QWEN3 = Shape("qwen3", 1024, 3072, 28, 16, 8, 128, 151936, 40960, True, rope_theta=1000000.0)
_GEMMA3 = Shape(
    "gemma3_text", 1152, 6912, 26, 4, 1, 256, 262144, 32768, True, rope_theta=1000000.0, window=512
)
_PHI = Shape("phi", 2560, 10240, 32, 32, 32, 80, 51200, 2048, False, rotary=32)
_GPT_OSS = replace(
    Shape("gptoss", 2880, 2880, 24, 64, 8, 64, 201088, 131072, False, rope_theta=150000.0),
    yarn=Yarn(factor=32.0, original=4096),
    epsilon=1e-5,
    window=128,
    global_every=2,
    experts=32,
    experts_per_token=4,
)
_LFM2 = replace(
    Shape("lfm2", 2048, 8192, 16, 32, 8, 64, 65536, 128000, True, rope_theta=1000000.0),
    epsilon=1e-5,
    hybrid=Hybrid((2, 5, 8, 10, 12, 14), 3),
)
_QWEN3_5 = replace(
    Shape("qwen3_5_text", 1024, 3584, 24, 8, 2, 256, 248320, 262144, True, rope_theta=1e7),
    rotary=64,
    hybrid=Hybrid(tuple(range(3, 24, 4)), 4, 16, 16, 128, sections=(11, 11, 10)),
)

SHAPES: dict[str, Shape] = {
    "llama-3.2-1b": _LLAMA,
    "llama-3.2-3b": _like(_LLAMA, 3072, 8192, 28, 24, 8, 128, 128256, 131072),
    "llama-3.1-8b": _LLAMA_8B,
    "mistral-7b": replace(
        _LLAMA_8B, family="mistral", vocab=32768, context=32768, rope_theta=1000000.0
    ),
    "smollm2-135m": _SMOLLM2,
    "smollm2-360m": _like(_SMOLLM2, 960, 2560, 32, 15, 5, 64, 49152, 8192),
    "qwen2.5-0.5b": _QWEN2,
    "qwen2.5-3b": _like(_QWEN2, 2048, 11008, 36, 16, 2, 128, 151936, 32768),
    "qwen3-0.6b": _QWEN3,
    "qwen3-1.7b": _like(_QWEN3, 2048, 6144, 28, 16, 8, 128, 151936, 40960),
    "qwen3-4b": _like(_QWEN3, 2560, 9728, 36, 32, 8, 128, 151936, 40960),
    "qwen3-8b": _like(_QWEN3, 4096, 12288, 36, 32, 8, 128, 151936, 40960, tied=False),
    "qwen3-30b-a3b": replace(
        _like(_QWEN3, 2048, 768, 48, 32, 4, 128, 151936, 40960, tied=False),
        experts=128,
        experts_per_token=8,
    ),
    "gemma3-1b": _GEMMA3,
    # Only the language model.
    "gemma3-4b": _like(_GEMMA3, 2560, 10240, 34, 8, 4, 256, 262208, 131072, window=1024),
    "phi-2": _PHI,
    "gpt-oss-20b": _GPT_OSS,
    "lfm2-1.2b": _LFM2,
    "qwen3.5-0.8b": _QWEN3_5,
    # The models that lab/make_test_models.py makes.
    "tiny-llama": _like(_LLAMA, 192, 352, 2, 6, 2, 32, 500, 256, rope_theta=10000.0, epsilon=1e-6),
    "tiny-qwen2": _like(_QWEN2, 128, 224, 2, 4, 2, 32, 512, 256),
    "tiny-qwen3": _like(_QWEN3, 160, 352, 2, 4, 2, 64, 512, 256),
    "tiny-gemma3": _like(_GEMMA3, 96, 288, 3, 2, 1, 256, 480, 128, window=32, global_every=2),
    "tiny-phi": _like(_PHI, 192, 416, 2, 6, 2, 32, 512, 256, rotary=16),
    "tiny-gpt-oss": _like(
        _GPT_OSS, 128, 96, 2, 4, 2, 32, 288, 256, window=24, experts=4, experts_per_token=2
    ),
    "tiny-lfm2": replace(
        _like(_LFM2, 128, 352, 4, 4, 2, 32, 480, 256),
        hybrid=Hybrid((2,), 3),
    ),
    "tiny-lfm2-moe": replace(
        _like(_LFM2, 128, 96, 3, 4, 2, 32, 480, 256, experts=8, experts_per_token=2),
        family="lfm2_moe",
        dense_layers=1,
        dense_ffn=352,
        hybrid=Hybrid((1,), 3),
    ),
    "tiny-qwen3-5": replace(
        _like(_QWEN3_5, 128, 352, 4, 4, 2, 64, 480, 256, rotary=16),
        rope_theta=1000000.0,
        hybrid=Hybrid((3,), 4, 2, 4, 32, sections=(4, 2, 2)),
    ),
}
