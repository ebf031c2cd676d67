"""Each graph of the corpus becomes its steps, or is left with its reason: compiled, by the provider
and in a context, with the same recipe and the same bits, as near to ONNX Runtime as is said."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path

import experts
import exported
import heads
import masks
import numpy as np
import onnx
import onnx_attention
import onnxruntime
import products
import pytest
import recurrences
import vectors
import weights
from doors import agrees, compiled, distance, in_order, recipes_of, said
from graphs import AS_IT_IS, REST, Array, Entry, Graph
from onnx.reference import ReferenceEvaluator
from op_models import ORT_VERSION, open_session, run
from provider_calls import provider_session

from ort_aie_ep.errors import AieError

ENTRIES = [entry for subject in (experts, exported, heads, masks, onnx_attention, products,
                                       recurrences, vectors, weights)
           for entry in subject.ENTRIES
           if entry.since <= ORT_VERSION]  # fmt: skip
# The nodes of which the provider always says why they stay.
EXPLAINED = {"GatherBlockQuantized", "GroupQueryAttention", "MatMulNBits", "QMoE"}


pytestmark = pytest.mark.usefixtures("provider")


def test_names_are_told_apart() -> None:
    names = [entry.name for entry in ENTRIES]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_a_graph_becomes_its_steps_or_says_why_not(
    entry: Entry, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    graph = Graph(entry)
    source = graph.model()
    found = compiled(source, entry.form, tuple(entry.keep))
    expected = [line.strip() for line in entry.becomes.splitlines()]
    if entry.becomes == AS_IT_IS:
        expected = [node.op_type for node in source.graph.node]
    shown = found.steps
    if expected[0] == REST:
        expected, shown = expected[1:], shown[1 - len(expected) :]
    assert len(shown) == len(expected), found.steps
    for actual, line in zip(shown, expected, strict=True):
        assert agrees(actual, line), found.steps
    outcomes = {o.node.removeprefix("/"): o for o in found.report.outcomes.values()}
    for node, reason in entry.why.items():
        assert outcomes[node].reason.startswith(reason)
    if entry.provider:
        # Each node that does not stay is reported, but for those of constants, computed once.
        gone = [node for node in source.graph.node if node.name not in found.left]
        became = {node for node, outcome in outcomes.items() if outcome.becomes}
        assert became == {
            node.output[0] for node in gone if not graph.constants.keys() >= {*node.input}
        }
    assert not found.again
    assert any(re.search(entry.recipe, in_order(recipe)) for recipe in found.recipes or [""])
    doors = {}
    if entry.opens:
        doors = {"plan": open_session(found.model), "steps": open_session(found.steps_model)}
    if entry.provider and ORT_VERSION >= (1, 24):
        # ONNX Runtime refuses some nodes after the provider has left them.
        with nullcontext() if entry.opens else suppress(Exception):
            doors |= by_provider(source, entry, found.recipes, tmp_path)
        check_reasons(capfd, entry, {node: o.op_type for node, o in outcomes.items()})
    if not (entry.runs and entry.opens):
        return
    theirs = reference(entry, source)
    for sizes in entry.sizes:
        feeds = graph.feeds(sizes)
        results = {door: run(session, feeds) for door, session in doors.items()}
        for door, result in results.items():
            for name, array in results["plan"].items():
                np.testing.assert_array_equal(result[name], array, err_msg=door)
        ours, expected_ = results["plan"], theirs(feeds)
        if entry.rows is not None:
            rows = entry.rows(feeds)
            ours, expected_ = ({n: y[rows] for n, y in r.items() if y.ndim == 3}
                               for r in (ours, expected_))  # fmt: skip
        assert distance(ours, expected_) <= entry.near


def say(options: onnxruntime.SessionOptions) -> None:
    """ONNX Runtime's log then has the reasons."""
    options.log_severity_level = 1


def quiet(options: onnxruntime.SessionOptions) -> None:
    pass


def check_reasons(
    capfd: pytest.CaptureFixture[str], entry: Entry, op_types: Mapping[str, str]
) -> None:
    """Whether the provider said why it left nodes."""
    reasons = said(capfd.readouterr().err)
    for node, reason in entry.why.items():
        if op_types[node] in EXPLAINED or node in reasons:
            assert reasons[node].startswith(reason)


@pytest.mark.parametrize("entry", weights.MALFORMED, ids=lambda entry: entry.name)
def test_a_malformed_node_is_an_error_of_compile_and_left_by_the_provider(
    entry: Entry, capfd: pytest.CaptureFixture[str]
) -> None:
    source = Graph(entry).model()
    with pytest.raises(AieError, match=re.escape(entry.why["y"])):
        compiled(source)
    if ORT_VERSION >= (1, 24):
        with suppress(Exception):
            provider_session(source.SerializeToString(), change=say)
        check_reasons(capfd, entry, {"y": "MatMulNBits"})


def reference(
    entry: Entry, source: onnx.ModelProto
) -> Callable[[dict[str, Array]], dict[str, Array]]:
    """What computes the expected results."""
    if entry.against == "onnxruntime":
        session = open_session(source.SerializeToString())
        return lambda feeds: run(session, feeds)
    names = [value.name for value in source.graph.output]
    evaluator = ReferenceEvaluator(source)
    return lambda feeds: dict(zip(names, evaluator.run(names, feeds), strict=True))


def by_provider(
    source: onnx.ModelProto, entry: Entry, recipes: list[str], folder: Path
) -> dict[str, onnxruntime.InferenceSession]:
    """Sessions of the provider, on the model and on the context that has these recipes."""
    context = folder / "context.onnx"
    first = provider_session(source.SerializeToString(), context=context if recipes else None,
                             change=say if entry.why else quiet)  # fmt: skip
    if not recipes:
        return {"provider": first}
    found = [in_order(recipe) for recipe in recipes_of(context)]
    assert not entry.alike or found == [in_order(recipe) for recipe in recipes]
    return {"provider": first, "context": provider_session(context)}
