"""Measuring engines in turns, each in a process of its own.

A round is every measurement of every engine once (A B C D at one context, A B C D at the next), so
that whatever else the machine does meets all of them. Only one engine works at a time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ort_aie_ep.errors import AieError
from ort_aie_ep.peers.bandwidth import ReadProbe
from ort_aie_ep.peers.engine import Model, Settings
from ort_aie_ep.peers.engines import KINDS, Source, kind
from ort_aie_ep.peers.weights import LlamaWeights
from ort_aie_ep.session import inspect

# What is measured unless a user chooses otherwise.
DECODE_LENGTHS = (64, 512, 2048, 4096)
PREFILL_LENGTHS = (512, 2048, 4096)
ROUNDS = 7

# Threads of the engine that has just answered may spin on for a while.
SETTLE_SECONDS = 0.1
# Of the request that follows loading: a short prompt.
FIRST_PROMPT = 64

Step = Callable[[str], None]
"""Called with what was just done; `Plan.steps` times in all."""


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        decode, prefill: context lengths in tokens.
        new_tokens: tokens decoded at each length.
        rounds: of all, after one that is not counted.
        threads: of each engine.
        options: of ours, such as numerics.
    """

    decode: tuple[int, ...]
    prefill: tuple[int, ...]
    new_tokens: int
    rounds: int
    threads: int
    options: dict[str, str]

    @property
    def lengths(self) -> tuple[int, ...]:
        """All context lengths, ascending."""
        return tuple(sorted({*self.decode, *self.prefill}))

    @property
    def capacity(self) -> int:
        """Tokens that a cache must hold."""
        return max(FIRST_PROMPT, *self.lengths) + self.new_tokens

    def steps(self, engines: int) -> int:
        """Calls of `Step` that `measure` makes."""
        return engines * (2 + (self.rounds + 1) * len(self.lengths))


@dataclass(frozen=True)
class Measured:
    """One engine's numbers.

    Attributes:
        engine: its name.
        settings: by its own account.
        bits: mean bits of a weight, scales included.
        weight_bytes: read for each decoded token.
        load_seconds: from the file to a ready session, imports done; files are in the page cache.
        first_token_seconds: from the start of the process to the answer to a prompt of 64 tokens.
        peak_bytes: VmHWM at the end, mapped files included.
        decode, prefill: by context length, tokens per second of each round.
    """

    engine: str
    settings: dict[str, str]
    bits: float
    weight_bytes: int
    load_seconds: float
    first_token_seconds: float
    peak_bytes: int
    decode: dict[int, list[float]]
    prefill: dict[int, list[float]]


@dataclass(frozen=True)
class Results:
    """All engines, ours first.

    Attributes:
        measured: engines that ran.
        left_out: by engine's name, why it did not run and how to get it.
        read_bytes_per_second: the most that a read of memory reached in any round.
    """

    measured: tuple[Measured, ...]
    left_out: dict[str, str]
    read_bytes_per_second: float


class Worker:
    """A process with one engine."""

    def __init__(self, name: str) -> None:
        self.name = name
        # What the engine's libraries print, for the message of a failure; __exit__ closes it.
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._started = time.perf_counter()
        self._process = subprocess.Popen(
            # -P: a checkout in the working directory is not the installed package.
            [sys.executable, "-P", "-m", "ort_aie_ep.peers.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def seconds(self) -> float:
        """Since the process was started."""
        return time.perf_counter() - self._started

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer to a request.

        Raises:
            AieError: the engine failed, or its process ended.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise AieError(f"{self.name}: its process ended\n{self._last_words()}")
        answer = json.loads(line)
        assert isinstance(answer, dict)
        if "error" in answer:
            raise AieError(f"{self.name}: {answer['error']}")
        return answer

    def _last_words(self) -> str:
        self._log.seek(0)
        return self._log.read()[-2000:].strip()


@dataclass(frozen=True)
class _Running:
    """A worker whose engine is open."""

    worker: Worker
    model: Model
    opened: dict[str, Any]
    first_token_seconds: float


def available(names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """(engines that can run, how to get what the others lack)."""
    missing = {name: kind(name).missing() for name in names}
    absent = {name: text for name, text in missing.items() if text is not None}
    return [name for name in names if name not in absent], absent


def open_source(model: Path, scratch: Path) -> Source:
    """What all engines' models are made from.

    Raises:
        AieError: the folder is compiled, or holds a model that the peers cannot be given.
    """
    found = inspect(model)
    if found.compiled:
        raise AieError(f"{model} is compiled; the peers need the model that it was made from")
    return Source(found.folder, LlamaWeights(found.folder), scratch)


def physical_cores() -> int:
    """Cores that this process may use, siblings of a core counted once."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(topology.read_text() if topology.is_file() else str(cpu))
    return len(cores)


def measure(source: Source, plan: Plan, step: Step, names: Sequence[str] = tuple(KINDS)) -> Results:
    """Makes every engine's model, opens all, and measures in rounds.

    Raises:
        AieError: the plan exceeds the model's context, or an engine fails.
    """
    context = source.weights.sizes.context
    if plan.capacity > context:
        raise AieError(
            f"{max(plan.lengths)} tokens and {plan.new_tokens} new ones exceed the model's context "
            f"of {context}"
        )
    ready, left_out = available(names)
    models = {}
    for name in ready:
        models[name] = kind(name).model(source)
        step(f"{name}: model written")
    with ExitStack() as stack:
        running = {}
        for name, model in models.items():
            running[name] = _start(stack.enter_context(Worker(name)), model, source, plan)
            step(f"{name}: loaded")
        return _rounds(running, left_out, plan, step)


def _start(worker: Worker, model: Model, source: Source, plan: Plan) -> _Running:
    opened = worker.ask(
        engine=worker.name,
        model=asdict(model) | {"path": str(model.path)},
        settings=asdict(Settings(plan.threads, plan.capacity, plan.options)),
        vocabulary=source.weights.sizes.vocabulary,
    )
    worker.ask(length=FIRST_PROMPT, new_tokens=0)
    return _Running(worker, model, opened, worker.seconds())


def _rounds(
    running: dict[str, _Running], left_out: dict[str, str], plan: Plan, step: Step
) -> Results:
    probe = ReadProbe(plan.threads)
    bandwidth = 0.0
    decode: dict[str, dict[int, list[float]]] = {
        name: {length: [] for length in plan.decode} for name in running
    }
    prefill: dict[str, dict[int, list[float]]] = {
        name: {length: [] for length in plan.prefill} for name in running
    }
    peaks = dict.fromkeys(running, 0)
    for turn in range(plan.rounds + 1):
        for length in plan.lengths:
            new_tokens = plan.new_tokens if length in plan.decode else 0
            for name, engine in running.items():
                time.sleep(SETTLE_SECONDS)
                answer = engine.worker.ask(length=length, new_tokens=new_tokens)
                peaks[name] = answer["peak_bytes"]
                if turn > 0:  # the first one touches pages and fills caches
                    if length in plan.prefill:
                        prefill[name][length].append(length / answer["prefill_seconds"])
                    if new_tokens:
                        decode[name][length].append(new_tokens / answer["decode_seconds"])
                step(f"round {turn}, context {length}: {name}")
        time.sleep(SETTLE_SECONDS)
        bandwidth = max(bandwidth, probe.measure())
    measured = tuple(
        Measured(
            name,
            engine.opened["settings"],
            engine.model.bits,
            engine.model.weight_bytes,
            engine.opened["load_seconds"],
            engine.first_token_seconds,
            peaks[name],
            decode[name],
            prefill[name],
        )
        for name, engine in running.items()
    )
    return Results(measured, left_out, bandwidth)
