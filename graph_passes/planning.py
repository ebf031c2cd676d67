"""aie nodes -> fewer of them, and finally one for each region. C++ decides this for both doors.

`replace_sources`, before: operators of ONNX Runtime with weights or a cache
                   MatMulNBits(A, B, scales, zero_points?, "", bias?) of 2, 4 or 8 bits
                   GatherBlockQuantized(Reshape(B), indices, scales, zero_points?) of the same B
                   QMoE(input, router_probs, fc1.., fc2.., fc3..?, .., router_weights?)
                   GroupQueryAttention, whose inputs 0 to 15 and attributes FlowAttention has
                   after:  one aie node for each that is eligible (src/graph/claims.h)
                   Q4NXMatMul(A, W, bias?), Q4NXGather(W, indices)
                   Q4NXMoE(input, router_probs, W_gate, W_down, W_up?, bias_gate?, bias_up?,
                   bias_down?, router_weights?), W in blocks of a form (`formats.q4nx.BlockForm`)
                   FlowAttention; output_qk is dropped
`fuse_steps`, before: aie nodes, with norms, biases, residuals, gates and activations around them
            after:  aie nodes that absorb those (src/graph/fusions)
`plan`, before: aie nodes, and the nodes between them
        after:  one aie.Plan for each region (src/graph/regions.h), or with `whole` false one aie
                node for each of its steps

All describe the graph to `_native` and replace nodes by what it finds. The execution provider asks
the same questions about the graphs that it sees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from ort_aie_ep import _native
from ort_aie_ep.errors import AieError
from ort_aie_ep.graph_passes.attention.node import INPUTS, OP_TYPE
from ort_aie_ep.graph_passes.attention.rotary import computed_rotation
from ort_aie_ep.graph_passes.base import DOMAIN, NONE, Report, none_value
from ort_aie_ep.graph_passes.bodies import body_labels
from ort_aie_ep.graph_passes.plans import PLAN, read_recipe, recipe_types
from ort_aie_ep.graph_passes.walk import (
    Array,
    constant,
    graph_attributes,
    is_op,
    node_label,
)
from ort_aie_ep.graph_passes.weights.expert_weights import PackedExperts
from ort_aie_ep.graph_passes.weights.packed import MatMulNBitsWeights, PackedWeights
from ort_aie_ep.graph_passes.work import work_of

if TYPE_CHECKING:
    from ort_aie_ep._native import _ClaimedSource, _FusedStep, _GraphPlan, _GraphRegion

# `_native` sees constants of up to this many bytes: shapes of Reshape, single factors.
SHOWN_BYTES = 1024
_INTEGERS = {ir.DataType.INT32, ir.DataType.INT64}
_SHOWN = {ir.DataType.FLOAT, ir.DataType.FLOAT16} | _INTEGERS
LOGITS = "logits"  # the name of an output
# Attributes that depend on what the graph has around a node.
BY_GRAPH = frozenset({"float32_products", "logits"})
# Their later results have a shape that ONNX Runtime infers.
OTHER_SHAPES = frozenset({"CausalConv", "Split"})
RECURRENCES = frozenset({"GatedDeltaNet", "LinearAttention"})  # a state has a type of its own


def _one_float(attr: ir.Attr) -> float | None:
    tensor = attr.as_tensor()
    is_one = tensor.dtype == ir.DataType.FLOAT and tensor.size == 1
    return tensor.numpy().item() if is_one else None


_KINDS: dict[ir.AttributeType, Callable[[ir.Attr], Any]] = {
    ir.AttributeType.INT: lambda attr: attr.as_int(),
    ir.AttributeType.FLOAT: lambda attr: attr.as_float(),
    ir.AttributeType.STRING: lambda attr: attr.as_string(),
    ir.AttributeType.INTS: lambda attr: list(attr.as_ints()),
    ir.AttributeType.TENSOR: _one_float,
}


def replace_sources(
    model: ir.Model, report: Report, packed: PackedWeights, experts: PackedExperts
) -> None:
    """Replaces each operator of ONNX Runtime that has weights or a cache, if it is eligible.

    Raises:
        AieError: a node is malformed.
    """
    view = _View(model.graph, _INTEGERS)  # scales may have no data yet
    try:
        steps = view.claimed_sources(packed.q4nx_compatible)
    except ValueError as error:
        raise AieError(str(error)) from error
    for step in steps:
        node = view.nodes[step["places"][0]]
        if step["malformed"]:
            raise AieError(f"node '{node.name}': {step['why_not']}")
        # Before nodes are replaced, which takes their inputs away.
        for position, weights in enumerate(step["packed"]):
            if weights is not None:
                source, constant = view.nodes[weights[0]], weights[1]
                value = (
                    packed.value(source, MatMulNBitsWeights.of(source))
                    if constant is None
                    else experts.value(source, constant)
                )
                step["reads"][position] = view.name(value)
        if step["op"] == OP_TYPE:
            _compute_rotation(view, step, node)
    for step in steps:
        node = view.nodes[step["places"][0]]
        if step["why_not"]:
            report.left(node, step["why_not"])
        else:
            view.replace([node], view.node(step))
            report.replaced(node, f"{DOMAIN}.{step['op']}")


def _compute_rotation(view: _View, step: _FusedStep, node: ir.Node) -> None:
    read = [view.value(name) if name else None for name in step["reads"]]
    inputs = dict(zip(INPUTS, read, strict=False))
    attributes = computed_rotation(node, inputs)
    if attributes:
        step["attributes"] |= attributes
        step["reads"] = [view.name(inputs.get(name)) for name in INPUTS]


def fuse_steps(model: ir.Model, report: Report) -> None:
    """Lets projections and attention absorb the nodes that belong to them."""
    view = _View(model.graph)
    for step in view.fused_steps():
        nodes = [view.nodes[place] for place in step["places"]]
        if step["why_not"]:
            report.left(nodes[0], step["why_not"])
        if len(nodes) == 1:
            continue
        if step["op"] == OP_TYPE:
            _compute_rotation(view, step, nodes[0])
        view.replace(nodes, view.node(step))
        for node in nodes[1:] if nodes[0].domain == DOMAIN else nodes:
            report.fused(node, f"{DOMAIN}.{step['op']}")
        if nodes[0].domain == DOMAIN and nodes[0].op_type != step["op"]:
            report.fused(nodes[0], f"{DOMAIN}.{step['op']}")
    model.graph.sort()


def steps_apart(model: ir.Model) -> Counter[str]:
    """What aie nodes did not take in because forms of weights differ, with how many nodes."""
    steps = (step for graph in model.graphs() for step in _View(graph).fused_steps())
    return Counter(step["apart"] for step in steps if step["apart"])


def plan(model: ir.Model, report: Report, *, whole: bool = True, stoppable: bool = False) -> None:
    """Replaces each region of the main graph and of bodies with one node, with `stoppable` with
    one node for each layer, or with `whole` false with one node for each step."""
    bodies = body_labels(model)
    plans = 0
    for graph in list(model.graphs()):
        plans += _plan_graph(graph, report, bodies, whole, stoppable, plans)


def _plan_graph(
    graph: ir.Graph,
    report: Report,
    bodies: dict[str, str],
    whole: bool,
    stoppable: bool,
    before: int,
) -> int:
    """Returns how many regions the graph has; graphs before it have `before`."""
    view = _View(graph)
    found = view.plan(whole=whole, layers=stoppable)
    read: set[ir.Value] = set()
    for number, region in enumerate(found["regions"], before):
        items = [found["items"][index] for index in region["items"]]
        nodes = [view.nodes[place] for item in items for place in item["places"]]
        read.update(value for node in nodes for value in node.inputs if value is not None)
        for item in items:
            node = view.nodes[item["places"][0]]
            if node.domain != DOMAIN:
                body = bodies.get(node.name or "", "")
                work = work_of(node)
                report.replaced(
                    node, f"{DOMAIN}.{item['op']}", body, work.weight_bytes, work.token_bytes
                )
        if whole:
            view.replace(nodes, view.plan_node(region, number))
        elif nodes[0].domain != DOMAIN or not BY_GRAPH.isdisjoint(items[0]["attributes"]):
            view.replace(nodes, view.node(items[0]))
    if NONE in graph.initializers:
        read.add(graph.initializers[NONE])
    _drop_unread(graph, read)
    graph.sort()
    return len(found["regions"])


def _drop_unread(graph: ir.Graph, values: Iterable[ir.Value]) -> None:
    """Takes away the constants that nothing reads, such as the sizes of a Reshape."""
    for value in values:
        producer = value.producer()
        if value.uses() or value.is_graph_output():
            continue
        if graph.initializers.get(value.name or "") is value:
            del graph.initializers[value.name or ""]
        elif producer is not None and producer.graph is graph and is_op(producer, "Constant"):
            graph.remove(producer, safe=True)


def expand_plans(model: ir.Model) -> None:
    """Replaces each aie.Plan with the aie nodes of its steps, with their types and shapes.

    Raises:
        AieError: a recipe is damaged, or of another version.
    """
    for graph in list(model.graphs()):
        for node in list(graph):
            if is_op(node, PLAN, domain=DOMAIN):
                _expand(graph, node)


def _expand(graph: ir.Graph, node: ir.Node) -> None:
    recipe = read_recipe(node)
    values: dict[int, ir.Value | None] = {-1: None, **dict(enumerate(node.inputs))}
    types = recipe_types(node)
    results = dict(zip(recipe["outputs"], node.outputs, strict=True))
    steps = []
    for place, step in enumerate(recipe["steps"]):
        inputs = [none_value(node) if read < 0 else values[read] for read in step["reads"]]
        new = ir.node(
            step["op"], inputs, step["attributes"], domain=DOMAIN, version=1, name=step["name"],
            num_outputs=len(step["writes"]),
        )  # fmt: skip
        for written, value in zip(step["writes"], new.outputs, strict=True):
            value.name = f"{node.name}/{place}/{written}"
            if (known := types[written] if written >= 0 else None) is not None:
                value.type, value.shape = ir.TensorType(known[0]), known[1]
            values[written] = value
        steps.append(new)
    new_values = [values[written] for written in results]
    ir.convenience.replace_nodes_and_values(
        graph, node, [node], steps, list(results.values()), [v for v in new_values if v is not None]
    )


def _infer_outputs(node: ir.Node) -> None:
    """Gives the outputs of an aie.Plan the types and shapes that the source does not declare, where
    they follow from its inputs: ONNX Runtime before 1.28 infers none but the first."""
    types = recipe_types(node)
    for value, written in zip(node.outputs, read_recipe(node)["outputs"], strict=True):
        if (known := types[written]) is not None and (value.type is None or value.shape is None):
            value.type, value.shape = ir.TensorType(known[0]), known[1]


class _View:
    """A graph as `_native` wants it, values by number, and the way back."""

    def __init__(self, graph: ir.Graph, shown: Container[ir.DataType] = _SHOWN) -> None:
        self.graph, self._shown = graph, shown
        self.nodes = list(graph)
        self._values: list[ir.Value] = []
        self._numbers: dict[ir.Value, int] = {}
        self._wanted = set(graph.outputs) | set(_read_in_bodies(self.nodes))
        self._new: dict[ir.Value, int] = {}  # outputs of nodes that are in no graph yet
        self._described = [self._describe(node) for node in self.nodes]

    def fused_steps(self) -> list[_FusedStep]:
        return _native.fused_steps(self._described, self._described_values())

    def claimed_sources(self, q4nx_compatible: bool) -> list[_ClaimedSource]:
        return _native.claimed_sources(self._described, self._described_values(), q4nx_compatible)

    def plan(self, *, whole: bool, layers: bool) -> _GraphPlan:
        return _native.plan_graph(self._described, self._described_values(), whole, layers)

    def name(self, value: ir.Value | None) -> str:
        """What `_native` calls a value."""
        if value is None:
            return ""
        number = self._numbers.setdefault(value, len(self._values))
        if number == len(self._values):
            self._values.append(value)
        return str(number)

    def value(self, name: str) -> ir.Value:
        """What has a name for `_native`."""
        return self._values[int(name)]

    def _describe(self, node: ir.Node) -> dict[str, Any]:
        return {
            "name": node_label(node),
            "domain": node.domain,
            "op_type": node.op_type,
            "attributes": {
                attr.name: given
                for attr in node.attributes.values()
                if attr.type in _KINDS and not attr.is_ref()
                if (given := _KINDS[attr.type](attr)) is not None
            },
            "inputs": [self.name(value) for value in node.inputs],
            "outputs": [self.name(value) if value.name else "" for value in node.outputs],
        }

    def _described_values(self) -> list[dict[str, Any]]:
        return [self._describe_value(name, value) for value, name in self._numbers.items()]

    def _describe_value(self, number: int, value: ir.Value) -> dict[str, Any]:
        shape = None
        if value.shape is not None:
            shape = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
        # Kernels of ONNX Runtime 1.23 do not see constants of a graph around a body as constants.
        producer = value.producer()
        own = (
            self.graph.initializers.get(value.name or "") is value
            if producer is None
            else producer.graph is self.graph
        )
        tensor, dtype = constant(value) if own else None, value.dtype
        given: Array | bool | None = None
        if tensor is not None:
            dtype, shape = tensor.dtype, [int(dim) for dim in tensor.shape.numpy()]
            shown = tensor.nbytes <= SHOWN_BYTES and dtype in self._shown
            given = np.array(tensor.numpy(), order="C") if shown else True
        return {
            "name": str(number),
            "type": int(dtype) if dtype is not None else 0,
            "shape": shape,
            "constant": given,
            "wanted": value in self._wanted,
            "logits": value.name == LOGITS and value.is_graph_output(),
        }

    def node(self, step: _FusedStep) -> ir.Node:
        """The aie operator that is one step; with stand-ins, for ONNX Runtime 1.23."""
        first = self.nodes[step["places"][0]]
        inputs = [self.value(name) if name else none_value(first) for name in step["reads"]]
        node = ir.node(
            step["op"], inputs, step["attributes"], domain=DOMAIN, version=1, name=first.name,
            num_outputs=len(step["writes"]),
        )  # fmt: skip
        self._set_outputs(node, step["writes"])
        first_input = node.inputs[0]
        for value in node.outputs[1:]:  # a sum has the type and shape of its terms
            if first_input is None or step["op"] in RECURRENCES:
                continue
            value.type = value.type or first_input.type
            if value.shape is None and step["op"] not in OTHER_SHAPES:
                value.shape = first_input.shape
        return node

    def plan_node(self, region: _GraphRegion, number: int) -> ir.Node:
        """The node of a region."""
        node = ir.node(
            PLAN,
            [self.value(name) for name in region["inputs"]],
            {"recipe": region["recipe"]},
            domain=DOMAIN,
            version=1,
            name=f"{DOMAIN}.{PLAN}.{number}",
            num_outputs=len(region["outputs"]),
        )
        self._set_outputs(node, region["outputs"])
        if any(value.type is None or value.shape is None for value in node.outputs):
            _infer_outputs(node)
        return node

    def _set_outputs(self, node: ir.Node, names: Sequence[str]) -> None:
        for value, name in zip(node.outputs, names, strict=True):
            old = self.value(name)
            value.name, value.type, value.shape = old.name, old.type, old.shape
            self._new[value] = int(name)

    def replace(self, nodes: Sequence[ir.Node], new: ir.Node) -> None:
        """Replaces nodes with a new one. Values keep their names, types and shapes."""
        known = {value: self._new.pop(value) for value in new.outputs if value in self._new}
        ir.convenience.replace_nodes_and_values(
            self.graph,
            nodes[-1],
            nodes,
            [new],
            [self._values[number] for number in known.values()],
            list(known),
        )
        for value, number in known.items():
            self._values[number] = value


def _read_in_bodies(nodes: Iterable[ir.Node]) -> Iterator[ir.Value]:
    for node in nodes:
        for attr in graph_attributes(node):
            for inner in attr.as_graph().all_nodes():
                yield from (value for value in inner.inputs if value is not None)
