"""Sizes of well-known models, and the parts of a graph that depend on the model."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

__all__ = ["SHAPES", "Shape", "Yarn"]


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
class Shape:
    """The sizes of a model, and the parts of its family's graph that depend on the model.

    `family` is the model type in genai_config.json. It decides the graph: "llama", "mistral",
    "phi3", "granite" and "smollm3" have the same graph, "qwen2" adds biases of queries, keys and
    values, and "qwen3" norms of queries and keys. "gemma3_text" adds norms after attention and FFN
    and alternates local and global layers. "phi" has biases, LayerNorm and a plain FFN beside the
    attention, and rotates only the first `rotary` channels. "gptoss" has biases, attention sinks,
    and experts with a SwiGLU of its own. With `experts`, the FFN of a token is the weighted sum of
    `experts_per_token` of them, each `ffn` wide.
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

    @property
    def queries(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Width of all key heads (or value heads) together."""
        return self.kv_heads * self.head_dim

    def is_local(self, layer: int) -> bool:
        """Whether the layer sees only its sliding window."""
        return self.window is not None and (layer + 1) % self.global_every != 0

    def is_rotated(self, layer: int) -> bool:
        """Whether the layer rotates queries and keys."""
        return self.unrotated_every == 0 or (layer + 1) % self.unrotated_every != 0


_LLAMA = Shape(
    family="llama",
    hidden=2048,
    ffn=8192,
    layers=16,
    heads=32,
    kv_heads=8,
    head_dim=64,
    vocab=128256,
    context=131072,
    tied=True,
    rope_theta=500000.0,
    epsilon=1e-5,
)

_LLAMA_8B = replace(_LLAMA, hidden=4096, ffn=14336, layers=32, head_dim=128, tied=False)

_SMOLLM2 = replace(
    _LLAMA,
    hidden=576,
    ffn=1536,
    layers=30,
    heads=9,
    kv_heads=3,
    vocab=49152,
    context=8192,
    rope_theta=100000.0,
)

_QWEN2 = Shape(
    family="qwen2",
    hidden=896,
    ffn=4864,
    layers=24,
    heads=14,
    kv_heads=2,
    head_dim=64,
    vocab=151936,
    context=32768,
    tied=True,
    rope_theta=1000000.0,
)

_QWEN3 = Shape(
    family="qwen3",
    hidden=1024,
    ffn=3072,
    layers=28,
    heads=16,
    kv_heads=8,
    head_dim=128,
    vocab=151936,
    context=40960,
    tied=True,
    rope_theta=1000000.0,
)

_GEMMA3 = Shape(
    family="gemma3_text",
    hidden=1152,
    ffn=6912,
    layers=26,
    heads=4,
    kv_heads=1,
    head_dim=256,
    vocab=262144,
    context=32768,
    tied=True,
    rope_theta=1000000.0,
    window=512,
)

_PHI = Shape(
    family="phi",
    hidden=2560,
    ffn=10240,
    layers=32,
    heads=32,
    kv_heads=32,
    head_dim=80,
    vocab=51200,
    context=2048,
    tied=False,
    rotary=32,
)

_GPT_OSS = Shape(
    family="gptoss",
    hidden=2880,
    ffn=2880,
    layers=24,
    heads=64,
    kv_heads=8,
    head_dim=64,
    vocab=201088,
    context=131072,
    tied=False,
    rope_theta=150000.0,
    yarn=Yarn(factor=32.0, original=4096),
    epsilon=1e-5,
    window=128,
    global_every=2,
    experts=32,
    experts_per_token=4,
)

SHAPES: dict[str, Shape] = {
    "llama-3.2-1b": _LLAMA,
    "llama-3.2-3b": replace(_LLAMA, hidden=3072, layers=28, heads=24, head_dim=128),
    "llama-3.1-8b": _LLAMA_8B,
    "mistral-7b": replace(
        _LLAMA_8B, family="mistral", vocab=32768, context=32768, rope_theta=1000000.0
    ),
    "smollm2-135m": _SMOLLM2,
    "smollm2-360m": replace(_SMOLLM2, hidden=960, ffn=2560, layers=32, heads=15, kv_heads=5),
    "qwen2.5-0.5b": _QWEN2,
    "qwen2.5-3b": replace(_QWEN2, hidden=2048, ffn=11008, layers=36, heads=16, head_dim=128),
    "qwen3-0.6b": _QWEN3,
    "qwen3-1.7b": replace(_QWEN3, hidden=2048, ffn=6144),
    "qwen3-4b": replace(_QWEN3, hidden=2560, ffn=9728, layers=36, heads=32),
    "qwen3-8b": replace(_QWEN3, hidden=4096, ffn=12288, layers=36, heads=32, tied=False),
    "qwen3-30b-a3b": replace(
        _QWEN3,
        hidden=2048,
        ffn=768,
        layers=48,
        heads=32,
        kv_heads=4,
        tied=False,
        experts=128,
        experts_per_token=8,
    ),
    "gemma3-1b": _GEMMA3,
    # Only the language model.
    "gemma3-4b": replace(
        _GEMMA3,
        hidden=2560,
        ffn=10240,
        layers=34,
        heads=8,
        kv_heads=4,
        vocab=262208,
        context=131072,
        window=1024,
    ),
    "phi-2": _PHI,
    "gpt-oss-20b": _GPT_OSS,
    # The models that lab/make_test_models.py makes.
    "tiny-llama": replace(
        _LLAMA,
        hidden=192,
        ffn=352,
        layers=2,
        heads=6,
        kv_heads=2,
        head_dim=32,
        vocab=500,
        context=256,
        rope_theta=10000.0,
        epsilon=1e-6,
    ),
    "tiny-qwen2": replace(
        _QWEN2,
        hidden=128,
        ffn=224,
        layers=2,
        heads=4,
        head_dim=32,
        vocab=512,
        context=256,
    ),
    "tiny-qwen3": replace(
        _QWEN3,
        hidden=160,
        ffn=352,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=64,
        vocab=512,
        context=256,
    ),
    "tiny-gemma3": replace(
        _GEMMA3,
        hidden=96,
        ffn=288,
        layers=3,
        heads=2,
        vocab=480,
        context=128,
        window=32,
        global_every=2,
    ),
    "tiny-phi": replace(
        _PHI,
        hidden=192,
        ffn=416,
        layers=2,
        heads=6,
        kv_heads=2,
        head_dim=32,
        vocab=512,
        context=256,
        rotary=16,
    ),
    "tiny-gpt-oss": replace(
        _GPT_OSS,
        hidden=128,
        ffn=96,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=32,
        vocab=288,
        context=256,
        window=24,
        experts=4,
        experts_per_token=2,
    ),
}
