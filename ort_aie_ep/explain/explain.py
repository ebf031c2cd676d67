"""`ort-aie explain`: where each node of a model runs, or would run once compiled, and why."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from ort_aie_ep import library_path
from ort_aie_ep.compiler.compile import REPORT
from ort_aie_ep.errors import AieError
from ort_aie_ep.explain.overlays import FUSED_LAYER, find_overlays, overlay_folders, packages
from ort_aie_ep.explain.pages import weight_pages
from ort_aie_ep.formats.file_forms import FILE_FORMS, FileForm
from ort_aie_ep.formats.q4nx import BlockForm
from ort_aie_ep.graph_passes import (
    DOMAIN,
    Divider,
    Plans,
    PlanSteps,
    Report,
    find_plans,
    node_label,
    plan,
    run_passes,
)
from ort_aie_ep.graph_passes.base import NO_OPERATOR
from ort_aie_ep.graph_passes.bodies import body_labels
from ort_aie_ep.graph_passes.planning import expand_plans, steps_apart
from ort_aie_ep.graph_passes.plans import PLAN, read_recipe
from ort_aie_ep.graph_passes.projection.float_matmul import UNASKED
from ort_aie_ep.graph_passes.unique_names import name_nodes
from ort_aie_ep.graph_passes.walk import is_op
from ort_aie_ep.graph_passes.work import work_of
from ort_aie_ep.machine import XRT_TARGET, Finding, find_npu, npu_device, why_no_npu
from ort_aie_ep.models.checked_json import read_json
from ort_aie_ep.models.files import is_missing
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.models.onnx_file import external_files, load_model
from ort_aie_ep.runtime.provider import place

HOST, XRT, CPU_EP, GONE = "host target", "xrt target", "CPU EP", "folded away"
OURS = (HOST, XRT)
FOLDED = "computed once, unused, or part of a fused operator"
CLAIMS, LEAVES = "claims", "leaves"


@dataclass(frozen=True)
class NodeFate:
    """One node of the file.

    Attributes:
        node: its name.
        op: domain.type, without the domain if it is ONNX's own.
        becomes: the aie operator that a compilation turns it into, or an empty string.
        runs: where it runs in the end: HOST, XRT, CPU_EP, or nowhere because it is GONE.
        not_npu: why it does not run on the NPU; for XRT, the calls that the host takes, often none.
        provider: what the execution provider does with the node as it is, CLAIMS or LEAVES; empty
            if it was not asked, or never saw the node because ONNX Runtime folded it.
        provider_reason: why the execution provider leaves it, in its own words; often empty.
        body: the bodies of If, Loop or Scan that contain it, "then_branch of 'if'"; often none.
        weight_bytes: size of its weights in this file.
        token_bytes: bytes of weights and recurrent states that one token reads
            (graph_passes/work.py).
        plan: the plan that it runs in; empty if it is in none.
    """

    node: str
    op: str
    becomes: str
    runs: str
    not_npu: str
    provider: str = ""
    provider_reason: str = ""
    body: str = ""
    weight_bytes: int = 0
    token_bytes: int = 0
    plan: str = ""


@dataclass(frozen=True)
class Explanation:
    """A model's nodes in graph order.

    Attributes:
        model: its .onnx file.
        compiled: whether it is compiled.
        nodes: the file's nodes.
        provider: whether the execution provider was also asked.
        plans: its plans, or those of its compilation; none if each operator is a node.
        divided_by: ONNX Runtime's nodes between two plans.
        not_whole: why a token's layers do not run whole on the overlay fused_layer; empty if they
            do, or without that overlay.
        provider_plans: how many nodes each plan of the execution provider replaces.
        pages: how much of a compiled model's weights is in pages of 2 MB; None if not known.
        forms: the forms of packed weights, with the bytes of each; of the compilation, if the model
            is not compiled.
        apart: what is not one step because of its weights, and how often.
        widened: forms that the NPU reads only widened, which takes more bytes there, and why.
    """

    model: str
    compiled: bool
    nodes: tuple[NodeFate, ...]
    provider: bool = False
    plans: tuple[PlanSteps, ...] = ()
    divided_by: tuple[Divider, ...] = ()
    provider_plans: tuple[int, ...] = ()
    not_whole: str = ""
    pages: Finding | None = None
    forms: tuple[tuple[BlockForm | FileForm, int], ...] = ()
    apart: tuple[tuple[str, int], ...] = ()
    widened: tuple[tuple[BlockForm, str], ...] = ()

    @property
    def compile_options(self) -> tuple[str, ...] | None:
        """The options that `compile` needs to replace projections, or other nodes if it cannot
        replace any projection; None if it can replace nothing."""
        if self.compiled:
            return None
        operators = {node.becomes for node in self.nodes} - {""}
        if not any(name.startswith(f"{DOMAIN}.Q4NX") for name in operators):
            asked = UNASKED.partition("{}")[2]  # after the weights' type
            if any(node.not_npu.endswith(asked) for node in self.nodes):
                return ("--quantize", "q4nx")
        return () if operators else None

    def rows(self) -> list[tuple[int, NodeFate]]:
        """(count, a node) for nodes that differ only in name and bytes, with the bytes of all: aie
        nodes first, by count, then those that a token reads most of, then the others by count."""
        alike: dict[NodeFate, list[NodeFate]] = {}
        for node in self.nodes:
            kind = replace(node, node="", weight_bytes=0, token_bytes=0, plan="")
            alike.setdefault(kind, []).append(node)
        rows = [
            (
                len(nodes),
                replace(
                    kind,
                    weight_bytes=sum(node.weight_bytes for node in nodes),
                    token_bytes=sum(node.token_bytes for node in nodes),
                ),
            )
            for kind, nodes in alike.items()
        ]

        def order(row: tuple[int, NodeFate]) -> tuple[bool, int, int, str]:
            count, fate = row
            left = fate.runs not in OURS
            return left, -fate.token_bytes if left else 0, -count, fate.op

        return sorted(rows, key=order)


def explain(path: Path, *, provider: bool = False) -> Explanation:
    """Explains a model folder or an .onnx file, compiled or not.

    With `provider`, AieExecutionProvider is also asked, in a session on the model as it is.

    Raises:
        AieError: there is no model, or it is damaged; `provider` with a compiled model, with ONNX
            Runtime before 1.24, or with a model that it cannot open.
    """
    folder = find_model(path)
    model = load_model(folder.model)
    name_nodes(model)
    compiled = any(node.domain == DOMAIN for node in _nodes(model))
    reasons = _reported_reasons(folder.path / REPORT, folder.model.name) if compiled else {}
    plans = find_plans(model, reasons)
    npu = _find_npu()
    not_whole, widened = "", {}
    if compiled:
        schedule = _Schedule(model if npu.lacks else _planned(folder.model), npu)
        not_whole, widened = schedule.not_whole, schedule.widened
    expand_plans(model)
    bodies, works = body_labels(model), {n.name or "": work_of(n) for n in _nodes(model)}
    if compiled:
        fates = _compiled(model, reasons, schedule, plans)
    else:
        fates, plans = _uncompiled(model, npu)
        expand_plans(model)
    nodes = tuple(
        replace(
            fate,
            body=bodies.get(fate.node, ""),
            weight_bytes=works[fate.node].weight_bytes,
            token_bytes=works[fate.node].token_bytes,
        )
        for fate in fates
    )
    explanation = Explanation(
        str(folder.model), compiled, nodes, provider, plans.plans, plans.divided_by,
        not_whole=not_whole, pages=weight_pages(external_files(model)) if compiled else None,
        forms=_forms(model), apart=tuple(steps_apart(model).items()),
        widened=tuple(widened.items()),
    )  # fmt: skip
    if provider and compiled:
        raise AieError(
            f"{folder.model} is compiled: the execution provider is only for uncompiled models"
        )
    return _with_provider(explanation, folder.model) if provider else explanation


def _planned(path: Path) -> ir.Model:
    """A compiled model whose steps that are nodes are plans, which know the shapes in between."""
    model = load_model(path)
    name_nodes(model)
    plan(model, Report())
    return model


def _with_provider(explanation: Explanation, model: Path) -> Explanation:
    placements = place(model)
    nodes = tuple(
        replace(node, provider=CLAIMS if placed.claimed else LEAVES, provider_reason=placed.reason)
        if (placed := placements.nodes.get(node.node)) is not None
        else node
        for node in explanation.nodes
    )
    return replace(explanation, nodes=nodes, provider_plans=placements.plans)


@dataclass(frozen=True)
class _Npu:
    """The NPU to run on: why there is none, or an empty string, and its overlays' designs."""

    lacks: str
    overlays: frozenset[str] = frozenset()


class _Schedule:
    """What the NPU's scheduler makes of the aie nodes of a model: of a token, and of a prompt.

    Attributes:
        not_whole: why no whole layers run on their overlay, if it is there.
        widened: forms of weights that the NPU reads only widened, and why.
    """

    not_whole = ""

    def __init__(self, model: ir.Model, npu: _Npu) -> None:
        self._lacks = npu.lacks
        self._token: dict[str, str] = {}
        self._prompt: dict[str, str] = {}
        self._unknown: dict[str, str] = {}
        self.widened: dict[BlockForm, str] = {}
        if not npu.lacks:
            for node in _nodes(model):
                if node.domain == DOMAIN:
                    self._ask(node, npu.overlays)

    def _ask(self, node: ir.Node, overlays: frozenset[str]) -> None:
        # Of the NPU's part, which a build for the CPU alone does not have.
        from ort_aie_ep.prediction.compiled import plan_of
        from ort_aie_ep.prediction.composition import schedule

        int8 = os.environ.get("ORT_AIE_NUMERICS") == "int8"
        try:
            plan = plan_of(node)
            token, prompt = (
                schedule(plan, tokens, 1 + tokens, overlays, int8=int8) for tokens in (1, 2)
            )
        except AieError as error:  # a tensor's shape is not known
            planned = is_op(node, PLAN, domain=DOMAIN)
            names = [step["name"] for step in read_recipe(node)["steps"]] if planned else []
            self._unknown |= dict.fromkeys(names or [node_label(node)], str(error))
            return
        self._token |= token["left"]
        self._prompt |= prompt["left"]
        if FUSED_LAYER in overlays:
            self.not_whole = self.not_whole or token["layers_refused"]
        self.widened |= {BlockForm(*form): why for form, why in token["widened"].items()}

    def fate(self, label: str) -> tuple[str, str]:
        """(where it runs, why not on the NPU) for a node of the domain aie."""
        if self._lacks:
            return HOST, self._lacks
        token, prompt = self._token.get(label, ""), self._prompt.get(label, "")
        if token and prompt:
            return HOST, token
        some = token or prompt or self._unknown.get(label, "")
        return XRT, f"except {some}" if some else ""


def _find_npu() -> _Npu:
    lacks = why_no_npu(find_npu())
    if not Path(library_path()).with_name(XRT_TARGET).is_file():
        return _Npu(f"no xrt target here; {lacks or 'an NPU is there'}")
    device = "" if lacks else npu_device()
    if not device:
        return _Npu(lacks or "no NPU found")
    overlays = frozenset(find_overlays(device, overlay_folders(), packages()).found)
    return _Npu("" if overlays else f"no overlays for {device}", overlays)


def _uncompiled(model: ir.Model, npu: _Npu) -> tuple[tuple[NodeFate, ...], Plans]:
    before = [(node_label(node), _op(node)) for node in _nodes(model)]
    neighbours = _Neighbours(_nodes(model))
    report = run_passes(model)
    plan(model, report, whole=False)
    outcomes = report.outcomes
    left = {node_label(node) for node in _nodes(model)}
    ours = {node_label(node): _op(node) for node in _nodes(model) if node.domain == DOMAIN}
    reasons = {o.node: o.reason for o in outcomes.values() if o.becomes is None}
    plan(model, Report())  # of steps that are nodes: the plan's steps go by their names
    schedule = _Schedule(model, npu)
    plans = find_plans(model, reasons)
    plan_of = _plan_of(plans)
    homes: dict[str, set[str]] = {}
    for label, op in ours.items():
        homes.setdefault(op, set()).add(label)
    fates = []
    for label, op in before:
        outcome = outcomes.get(label)
        if outcome is not None and outcome.becomes:
            becomes = outcome.becomes
            home = neighbours.nearest(label, homes.get(becomes) or set(ours))
            where = plan_of.get(home, "")
            fates.append(NodeFate(label, op, becomes, *schedule.fate(home), plan=where))
        elif label not in left:
            fates.append(NodeFate(label, op, "", GONE, FOLDED))
        else:
            reason = outcome.reason if outcome is not None else NO_OPERATOR
            fates.append(NodeFate(label, op, "", CPU_EP, reason))
    return tuple(fates), plans


def _plan_of(plans: Plans) -> dict[str, str]:
    """Step → its plan."""
    return {step: plan.node for plan in plans.plans for step in plan.steps}


class _Neighbours:
    """Which node reads which in a source graph, by label, to find a fused node's operator."""

    def __init__(self, nodes: Iterable[ir.Node]) -> None:
        self._readers: dict[str, list[str]] = {}
        self._sources: dict[str, list[str]] = {}
        for node in nodes:
            label = node_label(node)
            self._readers[label] = [node_label(reader) for reader in node.successors()]
            self._sources[label] = [node_label(source) for source in node.predecessors()]

    def nearest(self, label: str, homes: set[str]) -> str:
        """The one of `homes` fewest steps after `label`, or before it if that is nearer."""
        behind, ahead = {label}, {label}
        while behind or ahead:
            for found in (behind, ahead):
                if near := found & homes:
                    return min(near)
            behind = {n for at in behind for n in self._readers.get(at, ())}
            ahead = {n for at in ahead for n in self._sources.get(at, ())}
        return min(homes)


def _compiled(
    model: ir.Model, reasons: Mapping[str, str], schedule: _Schedule, plans: Plans
) -> tuple[NodeFate, ...]:
    plan_of = _plan_of(plans)
    fates = []
    for node in _nodes(model):
        label, op = node_label(node), _op(node)
        if node.domain == DOMAIN:
            where = plan_of.get(label, "")
            fates.append(NodeFate(label, op, "", *schedule.fate(label), plan=where))
        else:
            fates.append(NodeFate(label, op, "", CPU_EP, reasons.get(label, NO_OPERATOR)))
    return tuple(fates)


def _reported_reasons(report: Path, file: str) -> Mapping[str, str]:
    """Node → why it stayed, as the compilation's report says for a file; empty without one."""
    if is_missing(report):
        return {}
    content = read_json(report)
    parts = content.find("parts")
    of_file = (
        [part for part in parts.elements() if part.field("file").text() == file] if parts else []
    )
    nodes = (of_file[-1] if of_file else content).field("nodes")
    return {
        node.field("node").text(): node.field("reason").text()
        for node in nodes.elements()
        if node.find("becomes") is None
    }


def _forms(model: ir.Model) -> tuple[tuple[BlockForm | FileForm, int], ...]:
    """The forms of the blocks that aie nodes read, with their bytes, the most first."""
    found: dict[ir.Value, BlockForm | FileForm] = {}
    for node in _nodes(model):
        if node.domain != DOMAIN or "N" not in node.attributes:
            continue
        for index, value in enumerate(node.inputs):
            tensor = None if value is None else value.const_value
            if value is not None and tensor is not None and tensor.dtype == ir.DataType.UINT8:
                prefix = _EXPERT_FORMS.get(index, "") if node.op_type == "Q4NXMoE" else ""
                found[value] = _form(node, prefix)
    sizes: Counter[BlockForm | FileForm] = Counter()
    for value, form in found.items():
        assert value.const_value is not None
        sizes[form] += value.const_value.nbytes
    return tuple(sizes.most_common())


# Attributes of the weights of Q4NXMoE that need not be of the first one's form, by input.
_EXPERT_FORMS = {3: "down_", 4: "up_"}


def _form(node: ir.Node, prefix: str) -> BlockForm | FileForm:
    if (name := node.attributes.get(f"{prefix}type")) is not None:
        return FILE_FORMS[name.as_string()]
    if prefix == "up_":
        return _form(node, "")
    ints = {a.name: a.as_int() for a in node.attributes.values() if a.type == ir.AttributeType.INT}
    return BlockForm.of(ints | {"bits": ints.get(f"{prefix}bits", 4)})


def _nodes(model: ir.Model) -> list[ir.Node]:
    """All nodes, including those of subgraphs."""
    return list(ir.traversal.RecursiveGraphIterator(model.graph))


def _op(node: ir.Node) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type
