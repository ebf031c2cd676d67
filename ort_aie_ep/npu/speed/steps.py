"""Steps of a model's plan as facts: what a step is, its sizes, what it reads and writes.

Whoever reads a compiled model makes them (`ort_aie_ep.explain.plan_steps`), and so do named shapes
(`models.steps_of`); `plans` composes them. Values are names, "" where there is none.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Literal

from ort_aie_ep import _native

#: Designs that npu2 has overlays of.
OVERLAYS: Set[str] = frozenset({"decode", "dequant", "gemm", "flow_qkv"})

VectorKind = Literal["norm", "add", "multiply", "silu", "gelu", "gelu_tanh", "sigmoid"]


@dataclass(frozen=True)
class ProjectionStep:
    """y = x W, or activation(x W) * (x U) where it is gated; x is a, or a + skip, or its norm.

    `bits` is of a weight, 16 for bfloat16. `one_row`: of a single token also in a prompt.
    """

    name: str
    n: int
    k: int
    a: str
    y: str
    bits: int = 4
    gated: bool = False
    gelu: bool = False
    norm: str = ""
    skip: str = ""
    sum: str = ""
    bias: bool = False
    one_row: bool = False

    @property
    def reads(self) -> tuple[str, ...]:
        """Values that it reads; constants are none."""
        return (self.a, self.skip)

    @property
    def writes(self) -> tuple[str, ...]:
        """Values that it writes."""
        return (self.y, self.sum)

    def why_not(self, rows: int) -> str:
        """Why the device leaves it to the host; empty if it does not."""
        return _native.why_not_npu_projection(
            bits=self.bits, rows=rows, n=self.n, k=self.k, overlays=set(OVERLAYS)
        )


@dataclass(frozen=True)
class AttentionStep:
    """Attention with a cache; `window` 0 is none, `rotary` 0 none. `query` may be packed with keys
    and values: the three are one value then."""

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    query: str
    key: str
    value: str
    past: tuple[str, ...]
    output: str
    present: tuple[str, ...]
    window: int = 0
    windowed_cache: bool = False
    rotary: int = 0
    query_norm: bool = False
    key_norm: bool = False
    quantised: bool = False
    has_bias: bool = False
    has_head_sink: bool = False
    smooth_softmax: bool = False
    causal: bool = True
    one_row: bool = False

    @property
    def reads(self) -> tuple[str, ...]:
        """Values that it reads; constants are none."""
        return (self.query, self.key, self.value, *self.past)

    @property
    def writes(self) -> tuple[str, ...]:
        """Values that it writes."""
        return (self.output, *self.present)

    def why_not(self, rows: int) -> str:
        """Why the device leaves it to the host; empty if it does not."""
        return _native.why_not_npu_attention(
            rows=rows, dim=self.head_dim, has_bias=self.has_bias, has_head_sink=self.has_head_sink,
            smooth_softmax=self.smooth_softmax, causal=self.causal, window=self.window or -1,
            overlays=set(OVERLAYS),
        )  # fmt: skip


@dataclass(frozen=True)
class VectorStep:
    """A norm of a, or of a + skip; a sum or product of a and b, one value where `scalar`; or an
    activation of a."""

    name: str
    kind: VectorKind
    k: int
    a: str
    y: str
    b: str = ""
    scalar: bool = False
    weight: str = ""
    skip: str = ""
    sum: str = ""
    one_row: bool = False

    @property
    def reads(self) -> tuple[str, ...]:
        """Values that it reads; constants are none."""
        return (self.a, self.b, self.skip)

    @property
    def writes(self) -> tuple[str, ...]:
        """Values that it writes."""
        return (self.y, self.sum)

    def why_not(self, rows: int) -> str:
        """Why the device leaves it to the host; empty if it does not."""
        activation = "" if self.kind in ("norm", "add") else self.kind
        return _native.why_not_npu_vector(
            rows=rows, k=self.k, activation=activation, overlays=set(OVERLAYS)
        )


@dataclass(frozen=True)
class _RowStep:
    """y of a: rows as they are."""

    name: str
    a: str
    y: str
    one_row: bool = False

    @property
    def reads(self) -> tuple[str, ...]:
        """Values that it reads; constants are none."""
        return (self.a,)

    @property
    def writes(self) -> tuple[str, ...]:
        """Values that it writes."""
        return (self.y,)


class CastStep(_RowStep):
    """a in another type, which it has on the device already."""

    def why_not(self, rows: int) -> str:
        """Empty: the device does it."""
        return ""


class GatherStep(_RowStep):
    """Rows of an embedding, of the indices a."""

    def why_not(self, rows: int) -> str:
        """Why the device leaves it to the host."""
        return _native.why_not_npu_gather()


class SelectionStep(_RowStep):
    """One row of a, such as the last token's: of a single row nothing at all."""

    def why_not(self, rows: int) -> str:
        """Why the device leaves it to the host."""
        return _native.why_not_npu_gather()


PlanStep = ProjectionStep | AttentionStep | VectorStep | CastStep | GatherStep | SelectionStep

#: The steps of one node each, in order: nothing stays on the device between two of them.
Plans = tuple[tuple[PlanStep, ...], ...]


def is_vector(step: PlanStep) -> bool:
    """What stands between projections: of what the host has, the host does it."""
    return isinstance(step, VectorStep | CastStep)
