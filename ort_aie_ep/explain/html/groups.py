"""A graph in groups about as large as a screen: before the layers, each layer, after the layers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from ort_aie_ep.explain.html.graph import DrawnGraph, DrawnNode
from ort_aie_ep.graph_passes.walk import reached

# Names of layers: /model/layers.3/attn, model_layers_3_mlp, transformer.h.3.
_LAYER = re.compile(r"(?:^|[/._])((?:layers?|blocks?|h)[._/]?\d+)(?=[/._]|$)")
_MOST = 80  # nodes of a group if no node is named after a layer
_LARGEST = 240  # nodes of any group: the time to lay one out grows with their square
_BEFORE, _AFTER = "before the layers", "after the layers"


@dataclass(frozen=True)
class Group:
    """A group: its title, the indices of its nodes, and whether it is a layer."""

    title: str
    nodes: tuple[int, ...]
    layer: bool = False


def groups_of(graph: DrawnGraph) -> tuple[Group, ...]:
    """The groups in the order of the graph. Each node is in one group."""
    sources: dict[int, set[int]] = {}
    readers: dict[int, set[int]] = {}
    for source, target in graph.edges:
        sources.setdefault(target, set()).add(source)
        readers.setdefault(source, set()).add(target)
    layers = _layers(graph, sources, readers)
    if not any(layers):
        return _slices(len(graph.nodes))
    behind = reached(_in_layers(layers), readers)
    pieces: dict[tuple[str, str], list[int]] = {}
    for place, node in enumerate(graph.nodes):
        title = layers[place] or (_AFTER if place in behind else _BEFORE)
        pieces.setdefault((_body(node), title), []).append(place)

    def order(piece: tuple[str, str]) -> tuple[int, int]:
        body, title = piece
        rank = {_BEFORE: 0, _AFTER: 2}.get(title, 1) if not body else 1
        # Inputs come before all nodes, so their position says nothing about their readers'.
        return rank, next((p for p in pieces[piece] if graph.nodes[p].fate), 0)

    return tuple(
        part
        for body, title in sorted(pieces, key=order)
        for part in _parts(
            Group(
                f"{body}: {title}" if body else title,
                tuple(pieces[body, title]),
                title not in (_BEFORE, _AFTER),
            )
        )
    )


def _body(node: DrawnNode) -> str:
    return node.fate.body if node.fate is not None else ""


def _in_layers(layers: list[str]) -> list[int]:
    return [place for place, layer in enumerate(layers) if layer]


def _layers(
    graph: DrawnGraph, sources: Mapping[int, set[int]], readers: Mapping[int, set[int]]
) -> list[str]:
    """The layer of each node, or an empty string.

    A node without a layer in its name belongs to its neighbours' layer if all of them have the same
    one, or to the latest layer that it reads if another layer waits for its result.
    """
    layers = []
    for node in graph.nodes:
        match = _LAYER.search(node.label) if node.fate is not None else None
        layers.append(match[1] if match is not None else "")
    ahead = reached(_in_layers(layers), sources)
    for place, layer in enumerate(layers):
        if layer:
            continue
        before = {layers[source] for source in sources.get(place, ())}
        near = before | {layers[reader] for reader in readers.get(place, ())}
        if len(near) == 1:
            (layers[place],) = near
        elif any(before) and place in ahead:
            layers[place] = max(before - {""}, key=layers.index)
    return layers


def _parts(group: Group) -> tuple[Group, ...]:
    """The group, or parts of about the same size if it is too large."""
    count = -(-len(group.nodes) // _LARGEST)
    if count == 1:
        return (group,)
    cuts = [len(group.nodes) * part // count for part in range(count + 1)]
    return tuple(
        replace(group, title=f"{group.title}, part {part} of {count}", nodes=group.nodes[a:b])
        for part, (a, b) in enumerate(pairwise(cuts), 1)
    )


def _slices(count: int) -> tuple[Group, ...]:
    if count <= _MOST:
        return (Group("all nodes", tuple(range(count))),)
    cuts = [*range(0, count, _MOST), count]
    return tuple(
        Group(f"nodes {first + 1} to {end}", tuple(range(first, end)))
        for first, end in pairwise(cuts)
    )
