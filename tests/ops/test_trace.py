"""The timeline of `log=trace`: steps of every target, with their nodes' names, on one clock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import onnx_ir as ir
import pytest
from provider_calls import needs_provider

import ort_aie_ep
from ort_aie_ep.graph_passes.planning import expand_plans

MODEL = Path(__file__).parents[1] / "data" / "llama"
LIBRARY = Path(ort_aie_ep.library_path())
SIMULATED = pytest.mark.skipif(
    not LIBRARY.with_name("libort_aie_sim.so").is_file(), reason="built without XRT's headers"
)
PROMPT = 3

# Runs a prompt of so many tokens, whose last ones have logits, and a token, in one session after
# another, each given as target, door, model.
SESSIONS = """
import os, sys
from pathlib import Path
import numpy as np
import onnxruntime
import ort_aie_ep
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.runtime.provider import NAME
prompt, wanted = int(sys.argv[1]), int(sys.argv[2])
for target, door, model in zip(*[iter(sys.argv[3:])] * 3):
    os.environ["ORT_AIE_TARGET"] = target
    options = onnxruntime.SessionOptions()
    folder = find_model(Path(model))
    providers = ["CPUExecutionProvider"]
    if door == "provider":
        onnxruntime.register_execution_provider_library(NAME, ort_aie_ep.library_path())
        devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == NAME]
        options.add_provider_for_devices(devices[:1], {})
        providers = None
    else:
        options.register_custom_ops_library(ort_aie_ep.library_path())
    session = onnxruntime.InferenceSession(folder.model, options, providers=providers)
    decoder = Decoder(session, folder, prompt + 1)
    decoder.forward(np.arange(5, 5 + prompt), wanted)
    decoder.forward(np.array([9]))
    del decoder, session
"""


class Session(NamedTuple):
    """A target, a door and a folder."""

    target: str
    door: str
    model: Path


class Call(NamedTuple):
    """A node that ONNX Runtime called, and what happened in it, in order."""

    node: dict[str, Any]
    events: list[dict[str, Any]]

    def of(self, *categories: str) -> list[dict[str, Any]]:
        """The events of the given categories."""
        return [event for event in self.events if event["cat"] in categories]


def calls(
    folder: Path, *sessions: Session, log: str = "trace", prompt: int = PROMPT, wanted: int = 0
) -> list[Call]:
    """The events in the timeline of a process with those sessions."""
    path = folder / "timeline.json"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ORT_AIE_")}
    subprocess.run(
        [sys.executable, "-P", "-c", SESSIONS]
        + [str(x) for x in (prompt, wanted, *(x for s in sessions for x in s))],
        env=clean | {"ORT_AIE_LOG": log, "ORT_AIE_TRACE": str(path), "XDG_CACHE_HOME": str(folder)},
        check=True, timeout=300,
    )  # fmt: skip
    if not path.is_file():
        return []
    timeline = json.loads(path.read_text())
    assert timeline["otherData"] == {"events_left_out": 0}
    events = sorted(timeline["traceEvents"], key=lambda event: (event["ts"], -event["dur"]))
    found: list[Call] = []
    for event in events:
        if event["cat"] == "node":
            found.append(Call(event, []))
        elif found and event["ts"] <= found[-1].node["ts"] + found[-1].node["dur"]:
            found[-1].events.append(event)
    return found


def rows(steps: Sequence[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """(kind, name of the node and shape) of each step."""
    return [(step["name"], step["args"]) for step in steps]


def nodes_of(steps: Sequence[dict[str, Any]]) -> list[str]:
    """Names of nodes. A node of several steps, such as a gated MLP with two products, counts
    once."""
    names = [step["args"]["node"] for step in steps]
    return [name for i, name in enumerate(names) if i == 0 or name != names[i - 1]]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ort_aie_ep.compile(MODEL, tmp_path_factory.mktemp("model") / "compiled").path


@pytest.fixture(scope="module")
def names(compiled: Path) -> list[str]:
    """The plan's steps, in order."""
    model = ir.load(compiled / "model.onnx")
    expand_plans(model)
    return [node.name or "" for node in model.graph if node.domain == "aie"]


@pytest.fixture(scope="module")
def host(compiled: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Call]:
    return calls(tmp_path_factory.mktemp("host"), Session("host", "compiled", compiled))


def test_steps_of_the_host_have_their_nodes_names_and_shapes(
    compiled: Path, names: list[str], host: list[Call]
) -> None:
    plan = next(n for n in ir.load(compiled / "model.onnx").graph if n.domain == "aie")
    assert [call.node["name"] for call in host] == ["Plan", "Plan"]
    for call, count in zip(host, (PROMPT, 1), strict=True):
        steps = call.of("step")
        assert call.node["args"] == {"node": plan.name, "steps": len(steps)}
        assert nodes_of(steps) == names
        assert all(step["args"]["rows"] == count for step in steps)
        ends = [step["ts"] + step["dur"] for step in steps]
        # Times have a resolution of a thousandth of a microsecond.
        assert all(e <= s["ts"] + 0.002 for e, s in zip(ends, steps[1:], strict=False))
        assert ends[-1] <= call.node["ts"] + call.node["dur"] + 0.002
    attention = [step for step in host[1].of("step") if step["name"] == "Attention"]
    assert {step["args"]["keys"] for step in attention} == {PROMPT + 1}
    head = host[1].of("step")[-1]["args"]
    config = json.loads((MODEL / "genai_config.json").read_text())["model"]
    assert head["n"] == config["vocab_size"]
    assert head["k"] == config["decoder"]["hidden_size"]


def test_rows_that_nothing_reads_are_not_computed(compiled: Path, tmp_path: Path) -> None:
    prompt, _ = calls(tmp_path, Session("host", "compiled", compiled), prompt=200, wanted=1)
    steps = rows(prompt.of("step"))
    last = max(i for i, (kind, _) in enumerate(steps) if kind == "Attention")
    assert {args["rows"] for _, args in steps[: last + 1]} == {200}
    # A few more than the one that counts, so that the same kernels compute them.
    assert all(1 < args["rows"] < 100 for _, args in steps[last + 1 : -1])
    assert steps[-1][1]["rows"] == 1


def test_nodes_of_their_own_are_the_same_rows(host: list[Call], tmp_path: Path) -> None:
    alone = ort_aie_ep.compile(MODEL, tmp_path / "alone", plan=False).path
    found = calls(tmp_path, Session("host", "compiled", alone))
    steps = [step for call in found for step in call.of("step")]
    assert rows(steps) == rows([step for call in host for step in call.of("step")])
    assert len(found) > 2
    for call in found:
        assert {step["args"]["node"] for step in call.of("step")} == {call.node["args"]["node"]}


@needs_provider
def test_the_provider_shows_the_same_rows(host: list[Call], tmp_path: Path) -> None:
    found = calls(tmp_path, Session("host", "provider", MODEL))
    assert [rows(call.of("step")) for call in found] == [rows(call.of("step")) for call in host]


def test_nothing_is_written_without_a_trace(compiled: Path, tmp_path: Path) -> None:
    assert calls(tmp_path, Session("host", "compiled", compiled), log="warning") == []


@pytest.mark.in_turn  # tests/xrt/test_npu_options.py has a trace of the NPU with each change
@SIMULATED
def test_one_timeline_has_the_host_and_the_npu(
    compiled: Path, names: list[str], host: list[Call], tmp_path: Path
) -> None:
    both = Session("host", "compiled", compiled), Session("sim", "compiled", compiled)
    found = calls(tmp_path, *both)
    assert [call.node["name"] for call in found] == ["Plan"] * 4
    for before, call in zip(host, found[:2], strict=True):
        assert rows(call.of("step")) == rows(before.of("step"))
        assert call.of("append", "dispatch", "sync", "wait") == []
    token = found[3]
    # Each step appears once: on the host, or handed to the NPU before the wait for its results.
    assert sorted(nodes_of(token.of("step", "append"))) == sorted(names)
    assert token.of("append")
    for step in token.of("append"):
        assert any(wait["ts"] >= step["ts"] + step["dur"] for wait in token.of("wait"))
