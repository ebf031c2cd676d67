"""What regions a model has become: its plans, and the nodes that divide a graph into several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ort_aie_ep import _native
from ort_aie_ep.errors import AieError
from ort_aie_ep.graph_passes.base import DOMAIN, NO_OPERATOR
from ort_aie_ep.graph_passes.bodies import body_labels
from ort_aie_ep.graph_passes.walk import attribute, graph_attributes, is_op, node_label, reached

PLAN = "Plan"


@dataclass(frozen=True)
class PlanSteps:
    """One plan.

    Attributes:
        node: the name of the aie.Plan.
        steps: the nodes of the source after which its steps are named, in their order.
        body: the bodies of If, Loop or Scan that it is in, "then_branch of 'if'"; often none.
    """

    node: str
    steps: tuple[str, ...]
    body: str = ""


@dataclass(frozen=True)
class Divider:
    """A node of ONNX Runtime that reads a result of one plan, and that another plan waits for."""

    node: str
    op: str
    reason: str
    body: str = ""


@dataclass(frozen=True)
class Plans:
    """A model's plans in graph order, and the nodes between them."""

    plans: tuple[PlanSteps, ...] = ()
    divided_by: tuple[Divider, ...] = ()


def find_plans(model: ir.Model, reasons: Mapping[str, str]) -> Plans:
    """The plans of a model that has them; `reasons` says by label why nodes are in no plan.

    Raises:
        AieError: a recipe is damaged, or of another version.
    """
    bodies = body_labels(model)
    plans, dividers = [], []
    for graph in model.graphs():
        for node in graph:
            if is_op(node, PLAN, domain=DOMAIN):
                steps = tuple(step["name"] for step in read_recipe(node)["steps"])
                plans.append(PlanSteps(node_label(node), steps, bodies.get(node.name or "", "")))
        for node in _between_plans(graph):
            label, body = node_label(node), bodies.get(node.name or "", "")
            op = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            dividers.append(Divider(label, op, reasons.get(label, NO_OPERATOR), body))
    return Plans(tuple(plans), tuple(dividers))


def read_recipe(node: ir.Node) -> _native._Recipe:
    """The recipe of an aie.Plan.

    Raises:
        AieError: it is damaged, of another version, or does not fit the node.
    """
    where = f"node '{node_label(node)}' ({DOMAIN}.{PLAN})"
    try:
        recipe = _native.read_recipe(attribute(node, "recipe", ""))
    except ValueError as error:
        raise AieError(f"{where}: {error}") from error
    if recipe["inputs"] != len(node.inputs) or len(recipe["outputs"]) != len(node.outputs):
        raise AieError(
            f"{where} has {len(node.inputs)} inputs and {len(node.outputs)} outputs, its recipe "
            f"{recipe['inputs']} and {len(recipe['outputs'])}"
        )
    return recipe


def recipe_types(node: ir.Node) -> list[tuple[ir.DataType, ir.Shape] | None]:
    """Types and shapes of all values of an aie.Plan's recipe, as its operators infer them from the
    node's inputs; None where they are not known, as after an input whose type nothing says."""
    known = [_known(value) for value in node.inputs]
    inferred = _native.infer_recipe(attribute(node, "recipe", ""), known)
    return [value and (ir.DataType(value[0]), ir.Shape(value[1])) for value in inferred]


def _known(value: ir.Value | None) -> tuple[int, list[int | str | None]] | None:
    if value is None or value.dtype is None or value.shape is None:
        return None
    return int(value.dtype), [dim if isinstance(dim, int) else dim.value for dim in value.shape]


def _between_plans(graph: ir.Graph) -> list[ir.Node]:
    """Nodes on a path from one plan to another."""
    nodes = list(graph)
    plans = {node for node in nodes if is_op(node, PLAN, domain=DOMAIN)}
    sources = {node: list(_sources(node)) for node in nodes}
    readers: dict[ir.Node, list[ir.Node]] = {node: [] for node in nodes}
    for node, its in sources.items():
        for source in its:
            if source in readers:
                readers[source].append(node)
    behind, before = reached(plans, readers), reached(plans, sources)
    return [node for node in nodes if node in behind and node in before and node not in plans]


def _sources(node: ir.Node) -> Iterator[ir.Node]:
    """The nodes that write the values that a node and its bodies read."""
    inner = (n for attr in graph_attributes(node) for n in attr.as_graph().all_nodes())
    for reader in (node, *inner):
        for value in reader.inputs:
            producer = value.producer() if value is not None else None
            if producer is not None:
                yield producer
