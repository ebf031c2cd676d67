"""A compiled model's nodes as recipes and shapes, for the NPU's scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ort_aie_ep.errors import AieError
from ort_aie_ep.graph_passes import DOMAIN
from ort_aie_ep.graph_passes.attention.node import INPUTS as ATTENTION_INPUTS
from ort_aie_ep.graph_passes.plans import PLAN, read_recipe, recipe_types
from ort_aie_ep.graph_passes.walk import node_label
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.models.onnx_file import load_model
from ort_aie_ep.prediction.recipes import Input, PlanNode, Plans, Size, Values, alone


@dataclass(frozen=True)
class CompiledPlans:
    """The nodes of a compiled model, and the positions of its shortest rotary table (None if it has
    none)."""

    model: str
    plans: Plans
    positions: int | None


def read_plans(path: Path) -> CompiledPlans:
    """Reads the plans of a compiled folder or an .onnx file.

    Raises:
        AieError: there is no model, it is damaged, or it is not compiled.
    """
    folder = find_model(path)
    nodes = _nodes(load_model(folder.model))
    if not nodes:
        raise AieError(
            f"{folder.model} has no nodes of the domain {DOMAIN}: compile it first, with "
            "`ort-aie compile`"
        )
    tables = [rows for node in nodes if (rows := node.positions) is not None]
    return CompiledPlans(
        str(folder.path), tuple(node.plan() for node in nodes), min(tables, default=None)
    )


def plans_in(model: ir.Model) -> Plans:
    """The nodes of a compiled model.

    Raises:
        AieError: a recipe is damaged, or the shape of an input is not known.
    """
    return tuple(node.plan() for node in _nodes(model))


def plan_of(node: ir.Node) -> PlanNode:
    """A node of the domain aie: see `plans_in`."""
    return _Node(node).plan()


def _nodes(model: ir.Model) -> list[_Node]:
    return [_Node(node) for node in model.graph if node.domain == DOMAIN]


class _Node:
    """A node of the domain aie, as the steps that read its inputs."""

    def __init__(self, node: ir.Node) -> None:
        self._node = node
        self._planned = node.op_type == PLAN
        self._steps: Sequence[_Step]
        if self._planned:
            self._steps = [
                _Step(step["op"], step["attributes"], step["reads"])
                for step in read_recipe(node)["steps"]
            ]
        else:
            attributes = {name: attr.value for name, attr in node.attributes.items()}
            for name, value in attributes.items():
                if not isinstance(value, int | float | str):
                    raise AieError(
                        f"node '{node_label(node)}': attribute {name} must be a number or text, "
                        f"got {value!r}"
                    )
            reads = [-1 if _absent(v) else i for i, v in enumerate(node.inputs)]
            self._steps = [_Step(node.op_type, attributes, reads)]

    @property
    def positions(self) -> int | None:
        """Rows of its shortest rotary table; None if it has none."""
        rows: list[object] = []
        for step in self._steps:
            if step.attribute("rotary_positions"):
                rows.append(step.attribute("rotary_positions"))
            table = step.read("cos_cache")
            if 0 <= table < len(self._node.inputs):
                value = self._node.inputs[table]
                if value is not None and value.shape is not None and len(value.shape) == 2:
                    rows.append(value.shape[0])
        return min((row for row in rows if isinstance(row, int)), default=None)

    def plan(self) -> PlanNode:
        """As a recipe."""
        roles: dict[int, tuple[str, _Step | None]] = {
            value: (role, step)
            for step in self._steps
            for role, value in step.roles().items()
            if value >= 0
        }
        inputs = tuple(
            None if _absent(value) else self._input(value, *roles.get(i, ("", None)))
            for i, value in enumerate(self._node.inputs)
        )
        if self._planned:
            return PlanNode(self._node.attributes["recipe"].as_string(), inputs)
        (step,) = self._steps
        return alone(
            step.op, node_label(self._node), step.attributes, step.reads, len(self._node.outputs),
            inputs,
        )  # fmt: skip

    def _input(self, value: ir.Value | None, role: str, step: _Step | None) -> Input:
        assert value is not None
        if value.is_initializer() or value.const_value is not None:
            fixed = tuple(dim for dim in value.shape or () if isinstance(dim, int))
            content = None
            if role == "rotary_frequencies" and value.const_value is not None:
                content = tuple(value.const_value.numpy().tolist())
            return Input(int(value.dtype or 0), fixed, constant=True, content=content)
        known = [dim if isinstance(dim, int) else None for dim in value.shape or ()]
        if role in ("past_key", "past_value"):
            assert step is not None
            return self._cache(value, known, step)
        if role in _CALLS:
            type_, dims, values = _CALLS[role]
            rank = len(known) if value.shape is not None else len(dims)
            # Positions may have an axis for each section of the rotation.
            axes = [dim or 1 for dim in known[: max(0, rank - len(dims))]]
            if role == "position_ids" and step and step.read("cos_cache") >= len(self._node.inputs):
                values = "rows"  # of a table that the plan makes in each call
            return Input(type_, (*axes, *dims[-rank or len(dims) :]), values=values)
        if role == "attention_bias" and value.shape is None:
            return Input(1, (1, 1, "tokens", "context"))
        if (
            value.shape is None
            or value.dtype is None
            or (known and known[-1] is None and len(known) > 2)
        ):
            raise AieError(
                f"node '{node_label(self._node)}': the shape of its input '{value.name}' is not "
                "known"
            )
        # (batch, tokens, ...), (tokens, features), or a rotary table that is chosen or computed in
        # each call
        sizes: list[Size] = [dim if dim is not None else "tokens" for dim in known]
        if sizes and known[0] is None:
            if role in ("cos_cache", "sin_cache"):
                sizes[0] = "context"
            elif len(sizes) != 2 or known[1] is None:
                sizes[0] = 1
        return Input(int(value.dtype), tuple(sizes))

    def _cache(self, value: ir.Value, known: list[int | None], step: _Step) -> Input:
        """(batch, kv_heads, rows, dim), which grows, or keeps a window."""
        if len(known) != 4 or value.dtype is None:
            raise AieError(
                f"node '{node_label(self._node)}': the KV cache '{value.name}' must be "
                f"(batch, kv_heads, rows, dim), got {value.shape}"
            )
        window = (
            step.attribute("local_window_size")
            if step.attribute("sliding_window_cache") == 1
            else 0
        )
        rows: Size = ("past", window) if window else "past"
        width = known[3] or self._head_dim(step)
        return Input(int(value.dtype), (1, step.attribute("kv_num_heads", 1), rows, width))

    def _head_dim(self, step: _Step) -> int:
        """From the width of the query, which may be packed with keys and values."""
        query, packed = step.read("query"), step.read("key") < 0
        shapes = (
            _shapes(self._node) if self._planned else [v and v.shape for v in self._node.inputs]
        )
        shape = shapes[query] if 0 <= query < len(shapes) else None
        width = shape[-1] if shape else None
        if not isinstance(width, int):
            raise AieError(f"node '{node_label(self._node)}': the width of a query is not known")
        heads = step.attribute("num_heads", 1) + packed * 2 * step.attribute("kv_num_heads", 1)
        if heads < 1:
            raise AieError(f"node '{node_label(self._node)}': it has {heads} heads")
        dim = width // heads
        return dim // 2 if step.attribute("kv_cache_bit_width") == 4 else dim


#: Types, sizes and values of what attention and selections read of a call.
_CALLS: Mapping[str, tuple[int, tuple[Size, ...], Values]] = {
    "seqlens_k": (6, (1,), "context - 1"),
    "total_sequence_length": (6, (), "context"),
    "position_ids": (7, (1, "tokens"), "positions"),
    "attention_mask": (7, (1, "context"), "ones"),
    "last": (7, (1, 1, 1), "last token"),
}


@dataclass(frozen=True)
class _Step:
    op: str
    attributes: Mapping[str, Any]
    reads: Sequence[int]

    def attribute(self, name: str, default: int = 0) -> int:
        """An integer; what is not one is refused with the recipe."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, int) else default

    def read(self, name: str) -> int:
        """The value of an input of attention; -1 if it has none."""
        return self.roles().get(name, -1)

    def roles(self) -> dict[str, int]:
        if self.op == "FlowAttention":
            return dict(zip(ATTENTION_INPUTS, self.reads, strict=False))
        return {"last": self.reads[1]} if self.op == "SelectRows" else {}


def _absent(value: ir.Value | None) -> bool:
    """An absent input may also be a tensor without elements."""
    return value is None or (value.shape is not None and list(value.shape) == [0])


def _shapes(node: ir.Node) -> list[ir.Shape | None]:
    return [one and one[1] for one in recipe_types(node)]
