"""Sizes that the papers' programs count."""

from __future__ import annotations

from dataclasses import dataclass

from ort_aie_ep.models.shapes import Shape


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
        """The number of weights."""
        return self.outputs * self.inputs


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
    """The number of layers with each window; None is full attention."""
    local = sum(shape.is_local(layer) for layer in range(shape.layers))
    counts = {shape.window: local, None: shape.layers - local}
    return {window: count for window, count in counts.items() if count}
