"""Steps of a model's plan as facts: what a step is, its sizes, what it reads and writes.

The code that reads a compiled model makes them (`ort_aie_ep.explain.plan_steps`), or they come from
named shapes (`models.steps_of`); `plans` composes them. Values are names, "" where there is no
value. `leaves` are those that a step writes and that leave its node; `epsilon` is of its norm.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Literal

from ort_aie_ep import _native
from ort_aie_ep.aie_kernels.build import BUILT_FORMS
from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.npu.vocabulary.design import package_name

#: Designs of those for which npu2 has overlays that read quantised weights.
READERS = ("decode", "fused_layer", "dequant")
#: The overlays.
OVERLAYS: Set[str] = frozenset({"gemm", "flow_qkv"}) | {
    package_name(design, form) for design in READERS for form in BUILT_FORMS
}

VectorKind = Literal["norm", "add", "multiply", "silu", "gelu", "gelu_tanh", "sigmoid"]


@dataclass(frozen=True)
class ProjectionStep:
    """y = x W, or activation(x W) * (x U) where it is gated; x is a, or a + skip, or its norm.

    `form` is that of the weights, None for bfloat16. `one_row`: it has a single token even in a
    prompt. `int8`: with int8 numerics.
    """

    name: str
    n: int
    k: int
    a: str
    y: str
    form: BlockForm | None = SHIPPING
    gated: bool = False
    gelu: bool = False
    norm: str = ""
    skip: str = ""
    sum: str = ""
    bias: bool = False
    one_row: bool = False
    epsilon: float = 0.0
    int8: bool = False
    leaves: tuple[str, ...] = ()

    @property
    def bits(self) -> int:
        """The size of a code, or of a bfloat16."""
        return self.form.bits if self.form else 16

    @property
    def reads(self) -> tuple[str, ...]:
        """The values that it reads, without constants."""
        return (self.a, self.skip)

    @property
    def writes(self) -> tuple[str, ...]:
        """Values that it writes."""
        return (self.y, self.sum)

    def why_not(self, rows: int) -> str:
        """Why the device leaves it to the host; empty if the device does it."""
        return _native.why_not_npu_projection(
            bits=self.bits, rows=rows, n=self.n, k=self.k, int8=self.int8, overlays=set(OVERLAYS)
        )


@dataclass(frozen=True)
class AttentionStep:
    """Attention with a cache; 0 means no `window` or no `rotary`.

    `query` may be packed with keys and values: the three are then one value.
    """

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
    value_norm: bool = False
    norm_after_rotary: bool = False
    quantised: bool = False
    has_bias: bool = False
    has_head_sink: bool = False
    smooth_softmax: bool = False
    causal: bool = True
    one_row: bool = False
    epsilon: float = 0.0
    leaves: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        """The values that it reads, without constants."""
        return (self.query, self.key, self.value, *self.past)

    @property
    def writes(self) -> tuple[str, ...]:
        """Values that it writes."""
        return (self.output, *self.present)

    def why_not(self, rows: int) -> str:
        """Why the device leaves it to the host; empty if the device does it."""
        return _native.why_not_npu_attention(
            rows=rows, dim=self.head_dim, has_bias=self.has_bias, has_head_sink=self.has_head_sink,
            smooth_softmax=self.smooth_softmax, causal=self.causal, window=self.window or -1,
            overlays=set(OVERLAYS),
        )  # fmt: skip


@dataclass(frozen=True)
class VectorStep:
    """A norm, a sum, a product or an activation.

    A norm of a, or of a + skip; a sum or product of a and b, where `scalar` means that b has one
    value; or an activation of a.
    """

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
    epsilon: float = 0.0
    leaves: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        """The values that it reads, without constants."""
        return (self.a, self.b, self.skip)

    @property
    def writes(self) -> tuple[str, ...]:
        """Values that it writes."""
        return (self.y, self.sum)

    def why_not(self, rows: int) -> str:
        """Why the device leaves it to the host; empty if the device does it."""
        activation = "" if self.kind in ("norm", "add") else self.kind
        return _native.why_not_npu_vector(
            rows=rows, k=self.k, activation=activation, overlays=set(OVERLAYS)
        )


@dataclass(frozen=True)
class _RowStep:
    """y from a, with the rows unchanged."""

    name: str
    a: str
    y: str
    one_row: bool = False

    @property
    def reads(self) -> tuple[str, ...]:
        """The values that it reads, without constants."""
        return (self.a,)

    @property
    def writes(self) -> tuple[str, ...]:
        """Values that it writes."""
        return (self.y,)


class CastStep(_RowStep):
    """a in another type, which the device already has."""

    def why_not(self, rows: int) -> str:
        """Empty: the device does it."""
        return ""


class GatherStep(_RowStep):
    """Rows of an embedding, by the indices a."""

    def why_not(self, rows: int) -> str:
        """Why the device leaves it to the host."""
        return _native.why_not_npu_gather()


class SelectionStep(_RowStep):
    """One row of a, such as the last token's; if a has a single row, it does nothing."""

    def why_not(self, rows: int) -> str:
        """Why the device leaves it to the host."""
        return _native.why_not_npu_gather()


PlanStep = ProjectionStep | AttentionStep | VectorStep | CastStep | GatherStep | SelectionStep

#: The steps of one node each, in order: nothing stays on the device between two nodes.
Plans = tuple[tuple[PlanStep, ...], ...]


def form_of(steps: Sequence[PlanStep], overlays: Set[str] = OVERLAYS) -> BlockForm:
    """The form in which the device reads the quantised weights of a plan; those of a node by itself
    are in the shipping one."""
    found = {s.form for s in steps if isinstance(s, ProjectionStep) and s.bits <= 4}
    forms = [(f.bits, f.group, f.minima) for f in found if f] if len(steps) > 1 else []
    return BlockForm(4, *_native.npu_form_of_plan(forms, overlays=set(overlays)))


def is_vector(step: PlanStep) -> bool:
    """Whether it is a step between projections: the host does it if the host has its inputs."""
    return isinstance(step, VectorStep | CastStep)
