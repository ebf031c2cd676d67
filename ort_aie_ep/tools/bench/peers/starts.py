"""From the start of a process to its first token, with a model's files in the page cache or not.

Every start is a fresh process with an engine: Python, the engine's packages, the model, a prompt of
64 tokens. Cold means that the model's files are not in this kernel's page cache. Python's and the
packages' own files stay warm, and so do caches below the kernel, such as a disk's or a
hypervisor's. Nothing else may have the files open at that time: mapped pages cannot be dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

from ort_aie_ep.tools.bench.peers import page_cache
from ort_aie_ep.tools.bench.peers.process import FIRST_PROMPT, Progress, Setup, Worker, settle
from ort_aie_ep.tools.bench.peers.team import Team

WARM, COLD = "warm", "cold"
STATES = (WARM, COLD)

STAYED = 0.01
"""A start is not called cold if a larger share of the files stayed in memory."""


@dataclass(frozen=True)
class Starts:
    """One engine's starts.

    Attributes:
        load_seconds: by state, for each start, from the file to a ready session, after imports.
        first_token_seconds: by state, from the start of the process to the answer to a prompt of
            `FIRST_PROMPT` tokens.
        kept: the largest share of the files' bytes that was in memory before a cold start.
    """

    load_seconds: dict[str, list[float]]
    first_token_seconds: dict[str, list[float]]
    kept: float


def steps(engines: int, turns: int) -> int:
    """Calls of `Progress.step` that `measure` makes."""
    return engines * (1 + turns * len(STATES))


def measure(team: Team, turns: int, progress: Progress) -> dict[str, Starts]:
    """Starts all engines alternately, after one start each that is not counted; by engine's name.

    Raises:
        EngineError: ort_aie_ep fails.
    """
    models = team.setup.models
    files = {name: page_cache.files_of(models[name].path) for name in team.names}
    load: dict[str, dict[str, list[float]]] = {n: {s: [] for s in STATES} for n in files}
    first: dict[str, dict[str, list[float]]] = {n: {s: [] for s in STATES} for n in files}
    kept = dict.fromkeys(files, 0.0)
    failed: set[str] = set()
    for turn in range(turns + 1):
        # The first start reads the packages' files and compiles Python's.
        for state in STATES if turn else (WARM,):
            for name in files:
                if name in failed:
                    continue
                page_cache.warm(files[name])
                if state == COLD:
                    kept[name] = max(kept[name], page_cache.drop(files[name]))
                settle()
                failed.add(name)
                with team.excused(name, f"{state} start", partly=True):
                    loaded, answered = _start(name, team.setup)
                    if turn:
                        load[name][state].append(loaded)
                        first[name][state].append(answered)
                    failed.remove(name)
                progress.step(f"{state} start {turn}: {name}")
    for name in files:
        page_cache.warm(files[name])
    return {n: Starts(load[n], first[n], kept[n]) for n in files if n not in failed}


def _start(name: str, setup: Setup) -> tuple[float, float]:
    """Seconds to load, and to the first token."""
    with Worker(name) as worker:
        loaded = worker.open(setup)["load_seconds"]
        worker.run(FIRST_PROMPT, 0)
        return loaded, worker.seconds()
