"""Graphs of the corpus on the modelled NPU: near the host's results, and which steps the host does
instead, and why. One of each kind: the simulator takes longer than a session on the host."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import heads
import masks
import onnx_attention
import products
import pytest
import recurrences
import vectors
import weights
from doors import Compiled, compiled, distance
from graphs import SIZES, Entry, Graph
from op_models import ORT_VERSION, open_session, run

import ort_aie_ep
from ort_aie_ep import npu_counters

pytestmark = [
    pytest.mark.skipif(
        not Path(ort_aie_ep.library_path()).with_name("libort_aie_sim.so").is_file(),
        reason="built without XRT's headers",
    ),
    pytest.mark.skipif(
        ORT_VERSION < (1, 24), reason="once is enough: the device does not know ONNX Runtime"
    ),
]
STEP = re.compile(r"(?P<op>\w+) (?P<reads>.*?) -> (?P<writes>.*?)(?P<given>( \w+=\S+)*)\s*")
TOLD_APART = {
    "activation", "bits", "causal", "do_rotary", "function", "local_window_size",
    "rotary_interleaved", "smooth_softmax",
}  # fmt: skip
# Inputs of FlowAttention.
KEY, PAST_KEY, BIAS, SINK = 1, 3, 10, 11
# The device rounds queries, keys, values and each step's result to bfloat16, by at most 2^-9, and a
# prompt's weights of a softmax to bfp16, by 2^-7 of the largest of eight. A score is about 6 at
# most (graphs.EXACT), so its two roundings move a weight by 6 * 2^-8; all of this together.
NEAR = 2.0**-5


def sizes_of(entry: Entry, steps: Sequence[str]) -> dict[str, int] | None:
    """Of one row, as prompts of products take the simulator long; any, of attention alone."""
    if all(step.startswith("FlowAttention ") for step in steps):
        return dict(entry.sizes[-1])
    if entry.sizes == (SIZES,) and not entry.feeds:  # which may be for other sizes
        return {**SIZES, "batch": 1, "sequence": 1}
    return next((dict(s) for s in entry.sizes if s.get("batch") == s.get("sequence") == 1), None)


def moves(op: str, writes: Sequence[str]) -> int:
    """Steps of a plan for one that an op is in a recipe: a Split copies each part, and one token is
    in order however its dimensions are named."""
    return len(writes) if op == "Split" else 0 if op in ("Reshape", "Transpose") else 1


def planned(steps: Sequence[str]) -> int:
    """The number of steps of a plan."""
    found = [step for step in map(STEP.fullmatch, steps) if step is not None]
    return sum(moves(step["op"], step["writes"].split()) for step in found)


def by_host(steps: Sequence[str]) -> Counter[str]:
    """Why the host does steps of one row, and how many of each."""
    there: set[str] = set()  # what steps of the device leave there
    late: set[str] = set()  # what the host makes of that
    presents: set[str] = set()
    found: Counter[str] = Counter()
    for line in steps:
        step = STEP.fullmatch(line)
        if step is None:
            continue
        reads, writes = step["reads"].split(), step["writes"].split()
        if moves(step["op"], writes) == 0:  # the same memory
            for where in (there, late):
                where |= {*writes} if where & {*reads} else set()
            continue
        why = _why(step["op"], reads, step["given"], presents)
        if step["op"] == "FlowAttention":
            presents |= {*writes}
        vectors = step["op"] in ("Activation", "Add", "Mul", "RMSNorm")
        if not why and vectors and (late & {*reads} or not there & {*reads}):
            why = "a vector operator on what the host has"
        if not why:
            there |= {*writes}
            continue
        found[why] += moves(step["op"], writes)
        if (there | late) & {*reads}:
            late |= {*writes}
    return found


def _why(op: str, reads: Sequence[str], given: str, presents: set[str]) -> str:
    if op == "FlowAttention":
        names = dict(enumerate(reads))
        if names.get(PAST_KEY) in presents:
            return "keys of another sequence than the queries"
        if names.get(BIAS, "-") != "-":
            return "attention_bias"
        if names.get(SINK, "-") != "-":
            return "head_sink"
        return "smooth_softmax" if "smooth_softmax=1" in given else ""
    if op in ("Gather", "Q4NXGather"):
        return "rows of an embedding"
    if op in ("GEMM", "GatedGEMM"):
        return "a single row of an unquantised projection"
    if "bits=8" in given:
        return "no kernel for weights of 8 bits"
    if op == "SwiGLU":
        return "an activation that the overlay does not have"
    if op in ("CausalConv", "GatedDeltaNet", "LinearAttention", "LinearAttentionGate",
              "NarrowMatMul"):  # fmt: skip
        return "a recurrence, or a projection to its gates"
    if op == "Split":
        return "elements that only move"
    if op == "GatedRMSNorm":
        return "a norm with a gate"
    if op == "Activation" and re.search(r"function=(sigmoid|gelu|unit)\b", given):
        return "an activation that the overlay does not have"
    return ""


def kind(steps: Sequence[str]) -> tuple[str, ...]:
    """Of its steps: operators, inputs that are there, and what tells kernels apart."""
    found = []
    for step in filter(None, map(STEP.fullmatch, steps)):
        there = "".join("-" if name == "-" else "x" for name in step["reads"].split())
        given = [text for text in step["given"].split() if text.split("=")[0] in TOLD_APART]
        found.append(" ".join([step["op"], there, *given]))
    return tuple(sorted({*found}))


@dataclass(frozen=True)
class Chosen:
    """An entry, what `compile` makes of it, and the sizes of a call."""

    entry: Entry
    found: Compiled
    sizes: dict[str, int]


@lru_cache(maxsize=1)
def one_of_each_kind() -> list[Chosen]:
    """Of those whose steps are one plan."""
    chosen: dict[tuple[str, ...], Chosen] = {}
    for subject in (heads, masks, onnx_attention, products, recurrences, vectors, weights):
        for entry in subject.ENTRIES:
            if not (entry.runs and entry.opens and entry.since <= ORT_VERSION):
                continue
            found = compiled(Graph(entry).model(), entry.form, tuple(entry.keep))
            sizes = sizes_of(entry, found.steps)
            if sizes is not None and len(found.recipes) == 1 and not found.left:
                chosen.setdefault(kind(found.steps), Chosen(entry, found, sizes))
    return list(chosen.values())


def test_the_device_does_what_it_can_and_is_near_the_host(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp()))
    kept = None  # a session: the next ones share its simulator
    for chosen in one_of_each_kind():
        name, feeds = chosen.entry.name, Graph(chosen.entry).feeds(chosen.sizes)
        monkeypatch.setenv("ORT_AIE_TARGET", "host")
        host = run(open_session(chosen.found.model), feeds)
        monkeypatch.setenv("ORT_AIE_TARGET", "sim")
        session = open_session(chosen.found.model)
        before = npu_counters()
        device = run(session, feeds)
        after = npu_counters()
        expected = by_host(chosen.found.steps)
        assert Counter(after.host_steps) - Counter(before.host_steps) == expected, name
        done = after.device_steps - before.device_steps
        assert done == planned(chosen.found.steps) - expected.total(), name
        assert after.fallbacks == before.fallbacks, name
        assert distance(device, host) <= NEAR, name
        kept = kept or session
