"""Which models the performance model knows, and what of their sizes it counts."""

from __future__ import annotations

from dataclasses import dataclass

from ort_aie_ep.models.shapes import SHAPES, Shape
from ort_aie_ep.npu.vocabulary.errors import DesignError

#: Names in `SHAPES` with a graph that the designs cover. Windows are those of the published
#: config.json (Gemma3-1B: 512); paper 2 writes 1024 for both sizes.
MODELS = (
    "llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b",
    "qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b",
    "gemma3-1b", "gemma3-4b",
)  # fmt: skip


@dataclass(frozen=True)
class Projection:
    """A matrix of `outputs` x `inputs` int4 weights that is applied at once.

    Query, key and value projections are one, and so are gate and up: they share their activations,
    and Q4NX blocks of several matrices simply follow each other.
    """

    name: str
    outputs: int
    inputs: int

    @property
    def weights(self) -> int:
        """How many weights."""
        return self.outputs * self.inputs


def shape_of(model: str) -> Shape:
    """Sizes of `model`. Raises DesignError that lists the known ones."""
    if model not in MODELS:
        raise DesignError(f"unknown model {model!r}; known: {', '.join(MODELS)}")
    return SHAPES[model]


def layer_projections(shape: Shape) -> tuple[Projection, ...]:
    """The projections of one layer, in their order."""
    return (
        Projection("qkv", shape.queries + 2 * shape.keys, shape.hidden),
        Projection("o", shape.hidden, shape.queries),
        Projection("gate_up", 2 * shape.ffn, shape.hidden),
        Projection("down", shape.hidden, shape.ffn),
    )


def lm_head(shape: Shape) -> Projection:
    """The projection to the vocabulary: Q4NX even where the embedding is tied (FastFlowLM)."""
    return Projection("lm_head", shape.vocab, shape.hidden)


def norms_of_layer(shape: Shape) -> int:
    """RMSNorms over the hidden size in one layer."""
    return 4 if shape.family == "gemma3_text" else 2


def windows(shape: Shape) -> dict[int | None, int]:
    """How many layers have each window; None is full attention."""
    local = sum(shape.is_local(layer) for layer in range(shape.layers))
    counts = {shape.window: local, None: shape.layers - local}
    return {window: count for window, count in counts.items() if count}
