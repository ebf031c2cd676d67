"""A compiled model as the steps that `ort_aie_ep.npu.speed` combines: nodes in, facts out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ort_aie_ep import _native
from ort_aie_ep.errors import AieError
from ort_aie_ep.explain.npu_reasons import int8_numerics
from ort_aie_ep.formats.q4nx import BlockForm
from ort_aie_ep.graph_passes import DOMAIN
from ort_aie_ep.graph_passes.attention.node import INPUTS as ATTENTION_INPUTS
from ort_aie_ep.graph_passes.plans import PLAN, read_recipe
from ort_aie_ep.graph_passes.walk import node_label
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.models.onnx_file import load_model
from ort_aie_ep.npu.speed.steps import (
    AttentionStep,
    CastStep,
    GatherStep,
    Plans,
    PlanStep,
    ProjectionStep,
    SelectionStep,
    VectorKind,
    VectorStep,
    form_of,
)

_GATED = {"Q4NXGatedMLP", "GatedGEMM"}
_PROJECTIONS = _GATED | {"Q4NXMatMul", "GEMM"}
_FUNCTIONS: Mapping[str, VectorKind] = {
    "silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_tanh", "sigmoid": "sigmoid",
}  # fmt: skip
_VECTORS = {"RMSNorm", "Add", "Mul", "Activation"}


@dataclass(frozen=True)
class CompiledPlans:
    """The steps of a compiled model, node by node, and the positions of its shortest rotary table
    (None if it has none)."""

    model: str
    plans: Plans
    positions: int | None


def read_plans(path: Path) -> CompiledPlans:
    """Reads the plans of a compiled folder or an .onnx file.

    Raises:
        AieError: there is no model, it is damaged, or it is not compiled.
    """
    folder = find_model(path)
    model = load_model(folder.model)
    reader = _Reader()
    plans = _plans(model, reader)
    if not any(plans):
        raise AieError(
            f"{folder.model} has no nodes of the domain {DOMAIN}: compile it first, with "
            "`ort-aie compile`"
        )
    return CompiledPlans(str(folder.path), plans, reader.positions)


def why_not_layers(model: ir.Model, overlays: Set[str]) -> str:
    """Why a token's layers do not run whole on the overlay `fused_layer`; empty if they do, or if
    the compiled model has no attention. `overlays` are the designs with an overlay."""
    from ort_aie_ep.npu.speed.plans import why_not_fused

    try:
        return why_not_fused(_plans(model, _Reader()), overlays)
    except AieError:  # an operator that the speed model does not know
        return _native.why_not_npu_layer(standard=False)


def why_widened(model: ir.Model, overlays: Set[str]) -> dict[BlockForm, str]:
    """The forms of weights of a compiled model that an NPU reads only widened, and why."""
    try:
        plans = _plans(model, _Reader())
    except AieError:  # an operator that the speed model does not know
        return {}
    found = {}
    for steps in plans:
        to, planned = form_of(steps, overlays), len(steps) > 1
        for form in (step.form for step in steps if isinstance(step, ProjectionStep)):
            if form is not None and (why := _why_widened(form, to, planned, overlays)):
                found[form] = why
    return found


def _why_widened(form: BlockForm, to: BlockForm, planned: bool, overlays: Set[str]) -> str:
    return _native.why_npu_widens(
        (form.bits, form.group, form.minima), (to.group, to.minima), planned=planned,
        overlays=set(overlays),
    )  # fmt: skip


def _plans(model: ir.Model, reader: _Reader) -> Plans:
    return tuple(reader.node(node) for node in model.graph if node.domain == DOMAIN)


@dataclass(frozen=True)
class _Op:
    op: str
    name: str
    attributes: Mapping[str, Any]
    reads: Sequence[str]
    writes: Sequence[str]
    outputs: Set[str]  # of its node

    def read(self, place: int) -> str:
        return self.reads[place] if place < len(self.reads) else ""

    def written(self, place: int) -> str:
        return self.writes[place] if place < len(self.writes) else ""

    def int(self, name: str, default: int = 0) -> int:
        return int(self.attributes.get(name, default))

    def epsilon(self, name: str, default: float = 0.0) -> float:
        return float(np.float32(self.attributes.get(name, default)))

    @property
    def leaves(self) -> tuple[str, ...]:
        return tuple(value for value in self.writes if value in self.outputs)


class _Reader:
    """Reads nodes in order, and remembers the widths of the values they write."""

    def __init__(self) -> None:
        self.positions: int | None = None
        self._shapes: dict[str, tuple[int | None, ...]] = {}
        self._widths: dict[str, int] = {}
        self._one_row: set[str] = set()  # one row even for a prompt

    def node(self, node: ir.Node) -> tuple[PlanStep, ...]:
        """The steps of a node."""
        for value in filter(None, node.inputs):
            if value.shape is not None and value.name:
                dims = [dim if isinstance(dim, int) else None for dim in value.shape]
                self._shapes.setdefault(value.name, tuple(dims))
        return tuple(self._step(one) for one in self._ops(node))

    def _ops(self, node: ir.Node) -> Iterable[_Op]:
        label = node_label(node)
        inputs = [self._name(value) for value in node.inputs]
        outputs = [value.name or "" for value in node.outputs]
        if node.op_type != PLAN:
            attributes = {name: attr.value for name, attr in node.attributes.items()}
            yield _Op(node.op_type, label, attributes, inputs, outputs, set(outputs))
            return
        recipe = read_recipe(node)
        names = {-1: "", **dict(enumerate(inputs))}
        names |= {
            value: name
            for value, name in zip(recipe["outputs"], outputs, strict=True)
            if value >= 0
        }
        for step in recipe["steps"]:
            for value in step["writes"]:
                names.setdefault(value, f"{label}/{value}")
            reads = [names[value] for value in step["reads"]]
            writes = [names[value] for value in step["writes"]]
            yield _Op(step["op"], step["name"], step["attributes"], reads, writes, set(outputs))

    def _name(self, value: ir.Value | None) -> str:
        """A value's name; an absent input may also be a tensor without elements."""
        if value is None or (value.shape is not None and list(value.shape) == [0]):
            return ""
        return value.name or ""

    def _width(self, name: str) -> int:
        shape = self._shapes.get(name) or (None,)
        return self._widths.get(name) or shape[-1] or 0

    def _step(self, one: _Op) -> PlanStep:
        one_row = one.read(0) in self._one_row
        step, width = self._of(one, one_row=one_row)
        for value in filter(None, one.writes[:2] if one.op != "FlowAttention" else one.writes[:1]):
            self._widths[value] = width
            if one_row or one.op == "SelectRows":
                self._one_row.add(value)
        if isinstance(step, ProjectionStep) and step.sum:
            self._widths[step.sum] = step.k
        return step

    def _of(self, one: _Op, *, one_row: bool) -> tuple[PlanStep, int]:
        """The step, and the width of its output."""
        if one.op in _PROJECTIONS:
            step = _projection(one, one_row=one_row)
            return step, step.n
        if one.op == "FlowAttention":
            attention = self._attention(one, one_row=one_row)
            return attention, attention.heads * attention.head_dim
        if one.op in ("Gather", "Q4NXGather"):
            width = one.int("K") or self._width(one.read(0))
            return GatherStep(one.name, one.read(1), one.written(0), one_row), width
        k = self._width(one.read(0))
        if one.op == "SelectRows":
            return SelectionStep(one.name, one.read(0), one.written(0)), k
        if one.op == "Cast":
            return CastStep(one.name, one.read(0), one.written(0), one_row), k
        if one.op not in _VECTORS:
            raise AieError(f"node '{one.name}': the speed model does not know {DOMAIN}.{one.op}")
        return self._vector(one, k, one_row=one_row), k

    def _vector(self, one: _Op, k: int, *, one_row: bool) -> VectorStep:
        a, y = one.read(0), one.written(0)
        if one.op == "RMSNorm":
            return VectorStep(
                one.name, "norm", one.int("K") or k, a, y, weight=one.read(1), skip=one.read(2),
                sum=one.written(1), one_row=one_row, epsilon=one.epsilon("epsilon"),
                leaves=one.leaves,
            )  # fmt: skip
        if one.op == "Activation":
            function = str(one.attributes.get("function", ""))
            if function not in _FUNCTIONS:
                raise AieError(f"node '{one.name}': the function '{function}' is not known")
            return VectorStep(one.name, _FUNCTIONS[function], k, a, y, one_row=one_row)
        shape = self._shapes.get(one.read(1))
        scalar = k > 1 and shape is not None and all(dim == 1 for dim in shape)
        kind: VectorKind = "add" if one.op == "Add" else "multiply"
        return VectorStep(
            one.name, kind, k, a, y, b=one.read(1), scalar=scalar, one_row=one_row
        )  # fmt: skip

    def _attention(self, one: _Op, *, one_row: bool) -> AttentionStep:
        inputs = {name: one.read(place) for place, name in enumerate(ATTENTION_INPUTS)}
        heads, kv_heads = one.int("num_heads", 1), one.int("kv_num_heads", 1)
        packed = 0 if inputs["key"] else 2 * kv_heads
        cache = self._shapes.get(inputs["past_key"], ())
        quantised = one.int("kv_cache_bit_width") != 0
        width = self._width(inputs["query"])
        head_dim = width // (heads + packed) if width else (cache[-1] if cache else 0) or 0
        if head_dim == 0:
            raise AieError(f"node '{one.name}': the width of its query is not known")
        table = self._shapes.get(inputs["cos_cache"], ())
        if len(table) == 2 and table[0]:
            self.positions = min(table[0], self.positions or table[0])
        return AttentionStep(
            one.name, heads, kv_heads, head_dim, inputs["query"], inputs["key"], inputs["value"],
            (inputs["past_key"], inputs["past_value"]), one.written(0),
            (one.written(1), one.written(2)),
            window=max(0, one.int("local_window_size", -1)),
            windowed_cache=one.int("sliding_window_cache") == 1,
            rotary=_rotary(inputs["cos_cache"], table, head_dim),
            query_norm=bool(inputs["q_norm_weight"]), key_norm=bool(inputs["k_norm_weight"]),
            value_norm=bool(inputs["v_norm_weight"]),
            norm_after_rotary=one.int("norm_after_rotary") == 1,
            quantised=quantised, has_bias=bool(inputs["attention_bias"]),
            has_head_sink=bool(inputs["head_sink"]),
            smooth_softmax=one.int("smooth_softmax") == 1, causal=one.int("causal", 1) != 0,
            one_row=one_row, epsilon=one.epsilon("qk_norm_epsilon", 1e-6), leaves=one.leaves,
        )  # fmt: skip


def _rotary(cos: str, table: Sequence[int | None], head_dim: int) -> int:
    """Dimensions that are rotated: twice the table's width, or all if that is unknown."""
    if not cos:
        return 0
    return 2 * table[-1] if table and table[-1] else head_dim


def _projection(one: _Op, *, one_row: bool) -> ProjectionStep:
    gated, quantised = one.op in _GATED, one.op not in ("GEMM", "GatedGEMM")
    return ProjectionStep(
        one.name, one.int("N"), one.int("K"), one.read(0), one.written(0),
        form=BlockForm.of(one.attributes) if quantised else None,
        gated=gated, gelu=gated and one.attributes.get("activation", "silu") != "silu",
        norm=one.read(3), skip=one.read(4), sum=one.written(1),
        bias=not gated and bool(one.read(2)), one_row=one_row,
        epsilon=one.epsilon("norm_epsilon"), int8=quantised and int8_numerics(), leaves=one.leaves,
    )  # fmt: skip
