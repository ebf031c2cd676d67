"""Measures engines in interleaved rounds: speeds, several rows, starts, the growth with context.

A round has every measurement of every engine once (A B C D at one context, A B C D at the next), so
that other load on the machine affects all of them. Only one engine works at a time. Before the
rounds, a trial of the shorter contexts shows what fails, and how long the run will take. The first
rounds are the pilot. If a library has several engines, those clearly slower at a context in the
pilot are then left out of that context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path

from ort_aie_ep.errors import AieError
from ort_aie_ep.runtime.sessions import inspect
from ort_aie_ep.tools.bench.bench import Comparison
from ort_aie_ep.tools.bench.peers.engines import KINDS, Settings, Source, kind
from ort_aie_ep.tools.bench.peers.parts import Batches, Growth, Starts
from ort_aie_ep.tools.bench.peers.plan import CONTEXT, Plan
from ort_aie_ep.tools.bench.peers.process import EngineError, Setup
from ort_aie_ep.tools.bench.peers.results import Measured, Results
from ort_aie_ep.tools.bench.peers.rounds import Rounds
from ort_aie_ep.tools.bench.peers.team import Course, Team, written
from ort_aie_ep.tools.bench.peers.weights import DecoderWeights


def available(names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """(engines that can run, how to get what the others lack)."""
    missing = {name: kind(name).missing() for name in names}
    absent = {name: text for name, text in missing.items() if text is not None}
    return [name for name in names if name not in absent], absent


def open_source(model: Path, scratch: Path) -> Source:
    """Opens the source of all engines' models.

    Raises:
        AieError: the folder is compiled, or holds a model that the peers cannot run.
    """
    found = inspect(model)
    if found.compiled:
        raise AieError(f"{model} is compiled; the peers need its source: pass that")
    return Source(found.folder, DecoderWeights(found.folder), scratch)


def measure(
    source: Source,
    plan: Plan,
    course: Course,
    names: Sequence[str] = tuple(KINDS),
    *,
    partial: Callable[[Results], None] = lambda _: None,
    amx: bool = False,
    demonstrate: Callable[[], Comparison | None] | None = None,
) -> Results:
    """Makes every engine's model, and measures rounds, several rows, starts and growth.

    `partial` gets the results so far, after each round and each part; `demonstrate` measures a
    token of the demonstration model, if there is one. `amx` is whether the CPU has AMX.

    Raises:
        AieError: the plan exceeds the model's context, or ort_aie_ep fails.
    """
    context = source.weights.shape.context
    if plan.capacity > context:
        raise AieError(
            f"{max(plan.lengths)} tokens and {plan.new_tokens} new ones exceed the model's context "
            f"of {context}"
        )
    if plan.batches and CONTEXT + max(plan.batches) > context:
        raise AieError(
            f"a batch of {max(plan.batches)} after {CONTEXT} tokens exceeds the model's context of "
            f"{context}"
        )
    ready, left_out = available(names)
    for name, reason in left_out.items():
        course.note(f"{name} {reason}")
    models = {}
    course.expect(len(ready))
    for name in ready:
        try:
            models[name] = written(name, kind(name).model, source)
        except EngineError as error:
            left_out[name] = f"{error.reason} (writing its model)"
            course.note(f"{name} {left_out[name]}; the others go on")
        course.step(f"{name}: model written")
    # Files that this process has mapped would stay in memory, which cold starts must avoid.
    source.weights.release()
    settings = Settings(plan.threads, plan.capacity, plan.options)
    team = Team(Setup(models, settings, source.weights.shape.vocab), left_out, course)
    rows, starts, growth = Batches(plan, source), Starts(plan), Growth(plan, source)
    parts = [rows, starts, growth]
    rounds = Rounds(plan, team, course, lambda names: sum(p.steps(names) for p in parts))
    demonstration: Comparison | None = None

    def results(unfinished: str) -> Results:
        """Of the engines that have not failed; `unfinished` is what is still to come."""
        measured = []
        for name in team.names:
            settings, model = rounds.settings[name], models[name]
            if name in team.partly:
                settings = settings | {"not all measured": f"it {team.partly[name]}"}
            sizes = model.bits, model.weight_bytes, model.file_bytes
            found, memory = starts.result.get(name), rounds.memory[name]
            speeds = deepcopy(rounds.speeds[name])
            measured.append(Measured(name, settings, *sizes, found, memory, speeds))
        probes, cache_bytes = list(rounds.probes), source.weights.cache_bytes(plan.capacity)
        return Results(
            tuple(measured), dict(team.left_out), probes, cache_bytes, plan.capacity,
            growth.result, rows.result, demonstration, amx, unfinished,
        )  # fmt: skip

    rounds.run(lambda done: partial(results(f"{done}, and none of the later parts")))
    while parts:
        course.expect(sum(part.steps(team.names) for part in parts))
        parts.pop(0).measure(team, course)
        if parts:
            partial(results(" and ".join(part.name for part in parts)))
    if demonstrate is not None:
        partial(results("the demonstration model"))
        demonstration = demonstrate()
    return results("")
