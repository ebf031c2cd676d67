"""The plans of models by their sizes alone, as `ort-aie compile` makes them."""

from __future__ import annotations

from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.graph_passes.attention.node import INPUTS
from ort_aie_ep.models.shapes import SHAPES, Shape
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.prediction.recipes import FLOAT, INT32, INT64, UINT8, PlanNode, Plans, RecipeBuilder

#: Names in `SHAPES` with a graph that the designs cover. Windows are those of the published
#: config.json (Gemma3-1B: 512); paper 2 writes 1024 for both sizes.
MODELS = (
    "llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b",
    "qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b",
    "gemma3-1b", "gemma3-4b",
)  # fmt: skip


def shape_of(model: str) -> Shape:
    """Sizes of `model`. Raises DesignError, which lists the known models."""
    if model not in MODELS:
        raise DesignError(f"unknown model {model!r}; known: {', '.join(MODELS)}")
    return SHAPES[model]


def plans_of(shape: Shape, form: BlockForm = SHIPPING) -> Plans:
    """The plan that `ort-aie compile --last-logits` makes of the onnxruntime-genai builder's model,
    with weights in a form.

    Queries, keys and values are one projection. Gemma 3 also normalises the outputs of attention
    and MLP.
    """
    return (_Decoder(shape, form).plan(),)


class _Decoder(RecipeBuilder):
    def __init__(self, shape: Shape, form: BlockForm) -> None:
        super().__init__()
        self._shape, self._form = shape, form
        self._ids = self.input(INT64, 1, "tokens")
        self._lengths = self.input(INT32, 1, values="context - 1")
        self._total = self.input(INT32, values="context")
        self._last = self.input(INT64, 1, 1, 1, values="last token")
        self._tables: dict[int, tuple[int, int]] = {}

    @property
    def _gemma(self) -> bool:
        return self._shape.family == "gemma3_text"

    def plan(self) -> PlanNode:
        shape = self._shape
        table = self.constant(UINT8, *self._form.blocks_shape(shape.vocab, shape.hidden))
        (stream,) = self.step(
            "Q4NXGather", "embedding", [table, self._ids], K=shape.hidden, N=shape.vocab,
            dtype=FLOAT, **self._form.attributes(),
        )  # fmt: skip
        if self._gemma:
            (stream,) = self.step("Mul", "scale", [stream, self.constant(FLOAT, 1)], format=1)
        add: int | None = None  # what is still to be added to the residual stream
        outputs = []
        for layer in range(shape.layers):
            stream, add, present = self._layer(layer, stream, add)
            outputs += present
        (stream,) = self.step("SelectRows", "last_sum", [stream, self._last], format=1)
        (add,) = self.step("SelectRows", "last_down", [add, self._last], format=1)
        logits, _ = self._normed("lm_head", shape.vocab, stream, add)
        return self.node([logits, *outputs])

    def _layer(self, layer: int, stream: int, add: int | None) -> tuple[int, int, list[int]]:
        shape, name = self._shape, f"layer{layer}/"
        qkv, summed = self._normed(name + "qkv", shape.queries + 2 * shape.keys, stream, add)
        stream = stream if summed is None else summed
        context, *present = self._attention(layer, qkv)
        (attended,) = self._projection(name + "o", shape.hidden, shape.queries, context)
        if self._gemma:
            attended = self._norm(name + "o_norm", attended)
        weights = [self._weights(shape.ffn, shape.hidden) for _ in "gu"]
        norm = self.constant(FLOAT, shape.hidden)
        gated, stream = self.step(
            "Q4NXGatedMLP", name + "gated", [stream, *weights, norm, attended], 2,
            K=shape.hidden, N=shape.ffn, norm_epsilon=shape.epsilon,
            activation="gelu_tanh" if self._gemma else "silu", **self._form.attributes(),
        )  # fmt: skip
        (down,) = self._projection(name + "down", shape.hidden, shape.ffn, gated)
        if self._gemma:
            down = self._norm(name + "down_norm", down)
        return stream, down, present

    def _attention(self, layer: int, qkv: int) -> tuple[int, ...]:
        shape = self._shape
        window = (shape.window or 0) if shape.is_local(layer) else 0
        past = [self.input(FLOAT, 1, shape.kv_heads, "past", shape.head_dim) for _ in "kv"]
        rotary = shape.rotary or shape.head_dim
        if rotary not in self._tables:
            rows = shape.context, rotary // 2
            self._tables[rotary] = self.constant(FLOAT, *rows), self.constant(FLOAT, *rows)
        inputs = {
            "query": qkv, "seqlens_k": self._lengths, "total_sequence_length": self._total,
            **dict(zip(("past_key", "past_value"), past, strict=True)),
            **dict(zip(("cos_cache", "sin_cache"), self._tables[rotary], strict=True)),
        }  # fmt: skip
        if shape.family in ("qwen3", "gemma3_text"):
            for name in ("q_norm_weight", "k_norm_weight"):
                inputs[name] = self.constant(FLOAT, shape.head_dim)
        return self.step(
            "FlowAttention", f"layer{layer}/attention", [inputs.get(name) for name in INPUTS], 3,
            num_heads=shape.heads, kv_num_heads=shape.kv_heads, do_rotary=1, format=1,
            qk_norm_epsilon=shape.epsilon, **({"local_window_size": window} if window else {}),
        )  # fmt: skip

    def _weights(self, n: int, k: int) -> int:
        return self.constant(UINT8, *self._form.blocks_shape(n, k))

    def _projection(self, name: str, n: int, k: int, a: int) -> tuple[int, ...]:
        return self.step(
            "Q4NXMatMul", name, [a, self._weights(n, k)], K=k, N=n, **self._form.attributes()
        )

    def _normed(self, name: str, n: int, a: int, skip: int | None) -> tuple[int, int | None]:
        """A projection of the norm of a, or of a + skip; and that sum."""
        shape = self._shape
        norm = self.constant(FLOAT, shape.hidden)
        y, *summed = self.step(
            "Q4NXMatMul", name, [a, self._weights(n, shape.hidden), None, norm, skip],
            1 if skip is None else 2, K=shape.hidden, N=n, norm_epsilon=shape.epsilon,
            **self._form.attributes(),
        )  # fmt: skip
        return y, summed[0] if summed else None

    def _norm(self, name: str, a: int) -> int:
        hidden = self._shape.hidden
        weight = self.constant(FLOAT, hidden)
        (y,) = self.step(
            "RMSNorm", name, [a, weight], K=hidden, epsilon=self._shape.epsilon, format=1
        )
        return y
