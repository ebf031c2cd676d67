"""A model through both doors: what it becomes, why not, and its results."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from ort_aie_ep.graph_passes import DOMAIN, Quantising, Report, WeightForm, plan, run_passes
from ort_aie_ep.graph_passes.base import NONE
from ort_aie_ep.runtime.provider import _LEFT

Array = npt.NDArray[Any]
# Attributes of every projection or attention, which an entry states where they matter.
QUIET = {
    "K", "N", "accuracy_level", "bits", "format", "group", "kv_num_heads", "minima", "num_heads",
    "q_num_heads", "symmetric",
}  # fmt: skip
# Steps that a node is by itself if its neighbours are steps. A line `~Sigmoid` says that no other
# step takes the node in; what only moves elements needs no `~`.
ALONE = {
    "Mul": "Mul", "RMSNormalization": "RMSNorm", "Sigmoid": "Activation",
    "SimplifiedLayerNormalization": "RMSNorm", "SkipSimplifiedLayerNormalization": "RMSNorm",
}  # fmt: skip
MOVES = {"Reshape", "Split", "Transpose"}
PACKED = re.compile(r"(\.(B|weight)|_nk|_kn)?_(q\dnx|bf16)$")


@dataclass(frozen=True)
class Compiled:
    """What the passes make of a model.

    Attributes:
        steps: a line for each node: `Step inputs -> results attribute=value ...`, or its type alone
            if it stays.
        recipes: of its plans.
        model: with plans.
        steps_model: with a node for each step.
        left: the names of nodes that stay.
        report: of the passes.
        again: whether the passes change what they have made.
    """

    steps: list[str]
    recipes: list[str]
    model: bytes
    steps_model: bytes
    left: frozenset[str]
    report: Report
    again: bool


def compiled(source: onnx.ModelProto, quantize: str = "", keep: tuple[str, ...] = ()) -> Compiled:
    """The model as `compile` writes it."""
    quantising = Quantising(WeightForm(quantize)) if quantize else None
    shown, whole = ir.from_proto(source), ir.from_proto(source)
    report = run_passes(shown, quantize=quantising, keep=keep)
    once = [described(node) for node in shown.graph]
    twice = run_passes(shown).outcomes.values()
    again = [described(node) for node in shown.graph] != once
    plan(shown, report, whole=False)
    found = run_passes(whole, quantize=quantising, keep=keep)
    plan(whole, found)
    recipes = [
        node.attributes["recipe"].as_string() for node in whole.graph if node.op_type == "Plan"
    ]
    return Compiled(
        [described(node) for node in shown.graph], recipes,
        ir.to_proto(whole).SerializeToString(), ir.to_proto(shown).SerializeToString(),
        frozenset(node.name or "" for node in shown.graph if node.domain != DOMAIN), report,
        again or any(o.becomes for o in twice),
    )  # fmt: skip


def described(node: ir.Node) -> str:
    """See `Compiled.steps`."""
    if node.domain != DOMAIN:
        return node.op_type

    def names(values: Any) -> str:
        # ONNX Runtime 1.23 crashes on an empty name of an input.
        found = [value.name if value is not None else "?" for value in values]
        found = [PACKED.sub("", name.replace(" ", "")) if name and name != NONE else "-"
                 for name in found]  # fmt: skip
        while found and found[-1] == "-":
            found.pop()
        return " ".join(found)

    given = {name: attribute.value for name, attribute in node.attributes.items()}
    texts = [f"{name}={_text(value)}" for name, value in sorted(given.items())]
    return f"{node.op_type} {names(node.inputs)} -> {names(node.outputs)} {' '.join(texts)}"


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


LINE = re.compile(r"(?P<op>\w+)(?P<names>.*? -> .*?)??(?P<given>( \w+=\S+)*)\s*")


def agrees(actual: str, expected: str) -> bool:
    """Whether a line of `Compiled.steps` is as expected: names where they are stated (`*` is any),
    attributes in QUIET likewise."""
    if expected.startswith("~"):
        return actual.split()[0] in (expected[1:], ALONE[expected[1:]])
    sides = [LINE.fullmatch(line) for line in (actual, expected)]
    is_, want = ({} if side is None else side.groupdict() for side in sides)
    if not want or is_["op"] != want["op"]:
        return False
    if expected in MOVES:
        return True
    if expected == want["op"]:  # stays: an operator of aie may have the same name
        return actual == expected
    names = [(side["names"] or "").split() for side in (is_, want)]
    if names[1] and not (
        len(names[0]) == len(names[1]) and all(b in ("*", a) for a, b in zip(*names, strict=True))
    ):
        return False
    have, wanted = (dict(x.split("=") for x in side["given"].split()) for side in (is_, want))
    return wanted.items() <= have.items() and have.keys() - wanted.keys() <= QUIET


def said(log: str) -> dict[str, str]:
    """The reasons in a log, by the node's first result."""
    return {name.removeprefix("/"): reason for name, reason in _LEFT.findall(log)}


def recipes_of(context: Path) -> list[str]:
    """The recipes of a context."""
    graph = onnx.load(context, load_external_data=False).graph
    return [a.s.decode() for node in graph.node for a in node.attribute if a.name == "notes"]


def in_order(recipe: str) -> str:
    """A recipe with values numbered as they come, without the lines that differ between an aie.Plan
    and a context. Their inputs may stand in another order: src/graph/regions.h, KeepFloat16."""
    numbers: dict[str, str] = {"-1": "-1"}

    def numbered(line: str) -> str:
        what, *values = line.split()
        if what not in ("reads", "writes", "outputs"):
            return line
        return " ".join([what, *(numbers.setdefault(v, str(len(numbers))) for v in values)])

    lines = [line for line in recipe.splitlines() if line.split()[0] not in ("inputs", "constant")]
    return "\n".join(map(numbered, lines))


def distance(actual: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """The largest norm of a difference, relative to that of the expected result."""
    found = [0.0]
    for name, y in expected.items():
        assert actual[name].shape == y.shape, name
        assert actual[name].dtype == y.dtype, name
        x, y = actual[name].astype(np.float64), y.astype(np.float64)
        found.append(float(np.linalg.norm(x - y) / max(np.linalg.norm(y), 1e-30)))
    return max(found)
