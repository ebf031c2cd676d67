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
from dataclasses import dataclass, field
from pathlib import Path

from ort_aie_ep.errors import AieError
from ort_aie_ep.runtime.sessions import inspect
from ort_aie_ep.tools.bench.bench import Comparison
from ort_aie_ep.tools.bench.peers import batches, growth, starts
from ort_aie_ep.tools.bench.peers.batches import Batches
from ort_aie_ep.tools.bench.peers.course import Course
from ort_aie_ep.tools.bench.peers.engine import Model, Settings
from ort_aie_ep.tools.bench.peers.engines import KINDS, Source, kind
from ort_aie_ep.tools.bench.peers.growth import Growth
from ort_aie_ep.tools.bench.peers.plan import Plan
from ort_aie_ep.tools.bench.peers.process import EngineError, Progress, Setup
from ort_aie_ep.tools.bench.peers.results import Measured, Results
from ort_aie_ep.tools.bench.peers.rounds import Rounds
from ort_aie_ep.tools.bench.peers.starts import Starts
from ort_aie_ep.tools.bench.peers.team import Team, written
from ort_aie_ep.tools.bench.peers.weights import DecoderWeights

Demonstrate = Callable[[], Comparison | None]
"""Measures a token of the demonstration model, if there is one."""

Partial = Callable[[Results], None]
"""Called with the results so far, after each round and each part."""


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
    progress: Progress,
    names: Sequence[str] = tuple(KINDS),
    *,
    partial: Partial = lambda _: None,
    amx: bool = False,
    demonstrate: Demonstrate | None = None,
) -> Results:
    """Makes every engine's model, and measures rounds, several rows, starts and growth.

    `amx` is whether the CPU has AMX.

    Raises:
        AieError: the plan exceeds the model's context, or ort_aie_ep fails.
    """
    context = source.weights.sizes.context
    if plan.capacity > context:
        raise AieError(
            f"{max(plan.lengths)} tokens and {plan.new_tokens} new ones exceed the model's context "
            f"of {context}"
        )
    rows = batches.CONTEXT + max(plan.batches, default=0)
    if plan.batches and rows > context:
        raise AieError(
            f"a batch of {max(plan.batches)} after {batches.CONTEXT} tokens exceeds the model's "
            f"context of {context}"
        )
    ready, left_out = available(names)
    for name, reason in left_out.items():
        progress.note(f"{name} {reason}")
    course = Course(plan, context, progress)
    models = _models(source, ready, left_out, course)
    # Files that this process has mapped would stay in memory, which cold starts must avoid.
    source.weights.release()
    settings = Settings(plan.threads, plan.capacity, plan.options)
    team = Team(Setup(models, settings, source.weights.sizes.vocabulary), left_out, progress)
    rounds = Rounds(plan, team, course)
    found = _Found(source, plan, team, rounds, amx)
    rounds.run(lambda done: partial(found.results(f"{done}, and none of the later parts")))
    if plan.batches:
        course.expect(0, team.names)
        found.batches = batches.measure(source, team, plan.batches, plan.rounds, course)
        partial(found.results("starts and the cost of context"))
    course.expect(0, team.names, 1)
    found.starts = starts.measure(team, plan.starts, course)
    partial(found.results("the cost of context"))
    lengths = plan.growth_within(context)
    if lengths:
        course.expect(0, team.names, 2)
        least, most = (source.weights.cache_bytes(tokens) for tokens in (lengths[0], lengths[-1]))
        a_token = (most - least) // (lengths[-1] - lengths[0])
        found.growth = growth.measure(team.setup, lengths, plan.rounds, a_token, course)
    if demonstrate is not None:
        partial(found.results("the demonstration model"))
        found.demonstration = demonstrate()
    return found.results("")


def _models(
    source: Source, names: Sequence[str], left_out: dict[str, str], course: Course
) -> dict[str, Model]:
    """Writes each engine's model; a peer whose model cannot be written is left out."""
    models = {}
    course.total(len(names))
    for name in names:
        try:
            models[name] = written(name, kind(name).model, source)
        except EngineError as error:
            left_out[name] = f"{error.reason} (writing its model)"
            course.note(f"{name} {left_out[name]}; the others go on")
        course.step(f"{name}: model written")
    return models


@dataclass
class _Found:
    """The results so far."""

    source: Source
    plan: Plan
    team: Team
    rounds: Rounds
    amx: bool
    starts: dict[str, Starts] = field(default_factory=dict)
    batches: Batches | None = None
    growth: Growth | None = None
    demonstration: Comparison | None = None

    def results(self, unfinished: str) -> Results:
        """Results of the engines that have not failed; `unfinished` is what is still to come."""
        models = self.team.setup.models
        measured = tuple(
            Measured(
                name,
                self.rounds.opened[name].settings | self._failed(name),
                models[name].bits,
                models[name].weight_bytes,
                models[name].file_bytes,
                self.starts.get(name),
                self.rounds.opened[name].memory,
                deepcopy(self.rounds.opened[name].speeds),
            )
            for name in self.team.names
        )
        return Results(
            measured,
            dict(self.team.left_out),
            list(self.rounds.probes),
            self.source.weights.cache_bytes(self.plan.capacity),
            self.plan.capacity,
            self.growth,
            self.batches,
            self.demonstration,
            self.amx,
            unfinished,
        )

    def _failed(self, name: str) -> dict[str, str]:
        partly = self.team.partly.get(name)
        return {"not all measured": f"it {partly}"} if partly else {}
