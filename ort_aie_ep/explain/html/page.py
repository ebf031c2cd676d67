"""A model's graph as one HTML page: the template with the drawing's data in it as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from ort_aie_ep.errors import AieError
from ort_aie_ep.explain.explain import CPU_EP, GONE, HOST, XRT, Explanation
from ort_aie_ep.explain.html.graph import DrawnGraph, DrawnNode, read_graph, without_folded
from ort_aie_ep.explain.html.groups import Group, groups_of
from ort_aie_ep.explain.html.layout import HEIGHT, SMALL_WIDTH, WIDTH, Layout, lay_out
from ort_aie_ep.models.files import written_beside

TARGETS = (HOST, XRT, CPU_EP, GONE)
_TEMPLATE = Path(__file__).with_name("page.html")


def write_page(explanation: Explanation, lines: Sequence[str], path: Path) -> None:
    """Writes the page of an explained model, with `lines` at its top.

    Raises:
        AieError: the model cannot be read again, or the page cannot be written.
    """
    if not path.parent.is_dir():
        raise AieError(f"{path}: {path.parent} is not a folder. Make it first.")
    try:
        with written_beside(path) as file:
            file.write(page(explanation, lines))
    except OSError as error:
        raise AieError(f"{path} cannot be written: {error.strerror or error}") from error


def page(explanation: Explanation, lines: Sequence[str]) -> str:
    """The page as text."""
    graph = read_graph(explanation)
    content = json.dumps(_content(explanation, graph, lines), separators=(",", ":"))
    parts = {
        # ASCII, because the bytes of a file's name need not be UTF-8.
        "@TITLE@": escape(explanation.model).encode("ascii", "xmlcharrefreplace").decode(),
        # With "<", a name in the model could end the script element.
        "@GRAPH@": content.replace("<", "\\u003c"),
    }
    # At once, because names may contain what marks the other part's place.
    template = _TEMPLATE.read_text(encoding="utf-8")
    return re.sub("|".join(parts), lambda mark: parts[mark[0]], template)


def _content(explanation: Explanation, graph: DrawnGraph, lines: Sequence[str]) -> dict[str, Any]:
    plans = {plan.node: number for number, plan in enumerate(explanation.plans)}
    tensors = _Table()

    # An input or output is drawn with its neighbour.
    blocks = [plans.get(node.fate.plan) if node.fate else None for node in graph.nodes]
    for source, target in graph.edges:
        for one, other in ((source, target), (target, source)):
            if graph.nodes[one].fate is None and blocks[one] is None:
                blocks[one] = blocks[other]
    groups = groups_of(graph)
    views = [_view(graph, groups, blocks, graph.edges)]
    if any(node.fate and node.fate.runs == GONE for node in graph.nodes):
        shown, edges = without_folded(graph)
        left = [replace(g, nodes=tuple(n for n in g.nodes if n in shown)) for g in groups]
        views.insert(0, _view(graph, [group for group in left if group.nodes], blocks, edges))
    return {
        "model": explanation.model,
        "lines": list(lines),
        "compiled": explanation.compiled,
        "provider": explanation.provider,
        "targets": TARGETS,
        "sizes": [WIDTH, HEIGHT, SMALL_WIDTH],
        "plans": [
            {"name": plan.node, "steps": len(plan.steps), "body": plan.body}
            for plan in explanation.plans
        ],
        "nodes": [_node(node, tensors) for node in graph.nodes],
        "views": views,
        "tensors": tensors.rows,
    }


def _view(
    graph: DrawnGraph,
    groups: Sequence[Group],
    blocks: Sequence[int | None],
    edges: Sequence[tuple[int, int]],
) -> dict[str, Any]:
    """The nodes of groups, with the edges between them."""
    group_of = {place: at for at, group in enumerate(groups) for place in group.nodes}
    return {
        "groups": [_group(group, graph, blocks, edges, group_of) for group in groups],
        "far": [edge for edge in edges if group_of[edge[0]] != group_of[edge[1]]],
    }


class _Table:
    """Rows that are written once and referred to by number."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str]] = []
        self._numbers: dict[tuple[str, str], int] = {}

    def number(self, row: tuple[str, str]) -> int:
        if row not in self._numbers:
            self._numbers[row] = len(self.rows)
            self.rows.append(row)
        return self._numbers[row]


def _node(node: DrawnNode, tensors: _Table) -> dict[str, Any]:
    """A node's data for the page, without empty fields."""
    content: dict[str, Any] = {
        "small": _is_small(node),
        "name": node.label,
        "op": node.op.removeprefix("com.microsoft."),
        "reads": [tensors.number((t.name, t.type)) for t in node.reads],
        "writes": [tensors.number((t.name, t.type)) for t in node.writes],
    }
    if (fate := node.fate) is not None:
        content |= {
            "runs": TARGETS.index(fate.runs),
            "becomes": fate.becomes,
            "why": fate.not_npu,
            "provider": fate.provider,
            "providerWhy": fate.provider_reason,
            "body": fate.body,
            "plan": fate.plan,
            "weights": fate.weight_bytes,
            "token": fate.token_bytes,
        }
    return {key: value for key, value in content.items() if value or key == "runs"}


def _is_small(node: DrawnNode) -> bool:
    return node.fate is None or node.op == "Constant"


def _group(
    group: Group,
    graph: DrawnGraph,
    blocks: Sequence[int | None],
    edges: Sequence[tuple[int, int]],
    group_of: Mapping[int, int],
) -> dict[str, Any]:
    local = {place: at for at, place in enumerate(group.nodes)}
    inside = [(s, t) for s, t in edges if s in local and t in local]
    layout = lay_out(
        [blocks[place] for place in group.nodes],
        [(local[s], local[t]) for s, t in inside],
        [local[place] for place in group.nodes if _is_small(graph.nodes[place])],
    )
    return {
        "title": group.title,
        "layer": group.layer,
        "nodes": group.nodes,
        "places": [_rounded(place) for place in layout.places],
        "edges": [
            [*edge, [_rounded(point) for point in way]]
            for edge, way in zip(inside, layout.ways, strict=True)
        ],
        "blocks": [
            [block.block, *_rounded((block.left, block.top, block.width, block.height))]
            for block in layout.blocks
        ],
        "size": _rounded((layout.width, layout.height)),
        "spine": round(_spine(group, edges, group_of, layout)),
    }


def _spine(
    group: Group, edges: Sequence[tuple[int, int]], group_of: Mapping[int, int], layout: Layout
) -> float:
    """Where the line from group to group passes through this group: the middle of its leftmost node
    that reads from the group before it or, in the first group, that the next one reads."""
    left = {place: at[0] for place, at in zip(group.nodes, layout.places, strict=True)}
    entries = [t for s, t in edges if t in left and group_of[s] == group_of[t] - 1]
    exits = [s for s, t in edges if s in left and group_of[t] == group_of[s] + 1]
    return min((left[place] for place in entries or exits), default=0.0) + WIDTH / 2


def _rounded(numbers: Iterable[float]) -> list[int]:
    return [round(number) for number in numbers]
