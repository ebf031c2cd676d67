"""Runs of a configuration with tokens: locks and counts of words, no data and no time.

A design is a network of processes that block on reading and writing and never ask whether they
would block, so whether it stands still does not depend on timing (Kahn, The Semantics of a Simple
Language for Parallel Programming, 1974): one run at a shape shows it for that shape. Streams hold
nothing, so that a design which needs the few words of its switches' own buffers to go on is refused
as well.

What tokens cannot tell: loop counts that are data (`Read`), and the order in which packets of
several sources reach one channel.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ort_aie_ep.npu.configuration import Channel, Configuration, Lock, Port, Stream, WorkerPlan
from ort_aie_ep.npu.design import Acquire, Call, Core, Design, Parameters, Read, Release
from ort_aie_ep.npu.device import MAX_QUEUED_TASKS, TILES, WORD
from ort_aie_ep.npu.errors import DesignError
from ort_aie_ep.npu.sequence import Json, Sequence, evaluate

_MAX_STEPS = 400_000  # of one run; a second or so
_ENDLESS = 1 << 60  # words


class Unpredictable(Exception):
    """Tokens do not decide: a loop count is data, or the run is too long."""


class _Stuck(Exception):
    """The sequence cannot go on."""


@dataclass
class _Task:
    fifo: str
    words: int


class _Ring:
    """A channel of a compute or memory tile: the descriptor under way, if it got its lock."""

    def __init__(self, channel: Channel, locks: dict[Lock, int]) -> None:
        self.channel = channel
        self._locks = locks
        self._turn = 0
        self.left = 0

    def words(self, fifo: str) -> int:
        """Words that it can move now."""
        if self.left == 0:
            descriptor = self.channel.ring[self._turn]
            if descriptor.acquire is not None:
                if self._locks[descriptor.acquire] < 1:
                    return 0
                self._locks[descriptor.acquire] -= 1
            self.left = descriptor.words
        return self.left

    def move(self, words: int) -> None:
        """Move as many."""
        self.left -= words
        if self.left == 0:
            release = self.channel.ring[self._turn].release
            if release is not None:
                self._locks[release] += 1
            self._turn = (self._turn + 1) % len(self.channel.ring)

    @property
    def partial(self) -> bool:
        """Whether a descriptor has moved some of its words."""
        return 0 < self.left < self.channel.ring[self._turn].words

    @property
    def waits_for(self) -> str:
        """The lock that it waits for, or ''."""
        lock = self.channel.ring[self._turn].acquire
        return "" if self.left or lock is None else f"lock {lock.id} ({lock.name})"


@dataclass
class _Shim:
    """A channel of a shim: its tasks in order; `endless` ones never end."""

    endless: bool
    tasks: deque[_Task] = field(default_factory=deque)

    def words(self, fifo: str) -> int:
        """Words that it can move now for this fifo."""
        if self.endless:
            return _ENDLESS
        return self.tasks[0].words if self.tasks and self.tasks[0].fifo == fifo else 0

    @property
    def waits_for(self) -> str:
        """What it needs to go on."""
        if not self.tasks:
            return "a transfer that is not issued"
        return f"the transfer on fifo {self.tasks[0].fifo} to end"

    def move(self, words: int) -> None:
        """Move as many."""
        if not self.endless:
            self.tasks[0].words -= words
            if self.tasks[0].words == 0:
                self.tasks.popleft()


class _TokenCore(Core):
    def loop(self, count: Any) -> Iterable[int]:
        return range(count)

    def buffer(self, name: str) -> None:
        return None


class _Process:
    """A worker that runs until a lock or a start is missing."""

    def __init__(self, plan: WorkerPlan, locks: dict[Lock, int]) -> None:
        self.plan = plan
        self.starts: deque[tuple[int, ...]] = deque()
        self.passes = 0
        self.waits_for = ""
        self._locks = locks
        self._held: dict[str, int] = dict.fromkeys(plan.pools, 0)
        self._begin()

    def _begin(self) -> None:
        self._body = self.plan.worker.body(_TokenCore())
        self._taken = 0
        self._step: Any = next(self._body, None)

    @property
    def idle(self) -> bool:
        """Whether it stands at the start of its body."""
        return self._taken == 0

    def touches(self, fifos: Container[str]) -> bool:
        """Whether a port of it is one of `fifos`."""
        worker = self.plan.worker
        return any(f.name in fifos for f in (*worker.inputs.values(), *worker.outputs.values()))

    @property
    def rests(self) -> bool:
        """Whether it stands there and waits for the sequence."""
        return self.idle and isinstance(self._step, Parameters)

    def advance(self) -> int:
        """Go on as far as possible; gives the number of steps, passes through the body too."""
        steps = 0
        while True:
            if self._step is None:
                self.passes += 1
                worked = self._taken
                self._begin()
                if not worked or self._step is None:
                    return steps
            answer = self._answer(self._step)
            if answer is None:
                return steps
            steps += 1
            self._taken += 1
            if steps > _MAX_STEPS:
                raise Unpredictable(f"worker {self.plan.worker.name} runs on and on")
            try:
                self._step = self._body.send(answer[0])
            except StopIteration:
                self._step = None

    def _answer(self, step: Any) -> tuple[Any] | None:
        """What the body gets for a step, in a tuple; None when it has to wait."""
        name = self.plan.worker.name
        match step:
            case Acquire(port, count):
                need = count - self._held[port]
                lock = self._lock(port, taking=True)
                if need > 0:
                    if self._locks[lock] < need:
                        kind = "filled" if port in self.plan.worker.inputs else "free"
                        self.waits_for = (
                            f"worker {name} waits for {need} {kind} object(s) of fifo "
                            f"{self.plan.worker.port(port).name} (port {port})"
                        )
                        return None
                    self._locks[lock] -= need
                    self._held[port] = count
                return (None if count == 1 else [None] * count,)
            case Release(port, count):
                self._held[port] -= count
                self._locks[self._lock(port, taking=False)] += count
                return (None,)
            case Call():
                return (None,)
            case Parameters():
                if not self.starts:
                    self.waits_for = f"worker {name} waits to be started"
                    return None
                return (self.starts.popleft(),)
            case Read():
                raise Unpredictable(f"loop counts of worker {name} are data")
        raise DesignError(f"worker {name} yields {step!r}, which is no step")

    def _lock(self, port: str, taking: bool) -> Lock:
        pool = self.plan.pools[port]
        return pool.consume if (port in self.plan.worker.inputs) == taking else pool.produce


def _parts(design: Design) -> list[set[str]]:
    """Fifos by the parts of a design that have no fifo in common."""
    groups = [{f.name for f in (*link.sources, *link.destinations)} for link in design.links]
    for worker in design.workers.values():
        groups.append({f.name for f in (*worker.inputs.values(), *worker.outputs.values())})
    parts: list[set[str]] = []
    for group in groups:
        apart = [part for part in parts if not part & group]
        parts = [*apart, group.union(*(part for part in parts if part & group))]
    return parts


class TokenRun:
    """A configuration that runs with tokens. `endless`: the shims take and give without end."""

    def __init__(self, configuration: Configuration, *, endless: bool = False) -> None:
        self._configuration = configuration
        self._locks = {lock: lock.initial for lock in configuration.locks}
        self._rings = {
            Port(c.tile, c.direction, c.index): _Ring(c, self._locks)
            for c in configuration.channels
        }
        self._shims = {port: _Shim(endless) for port in configuration.shim_ports.values()}
        self._workers = {n: _Process(p, self._locks) for n, p in configuration.workers.items()}
        self._streams: list[tuple[Stream, Any, list[Any]]] = [
            (s, self._end(s.source), [self._end(p) for p in s.destinations])
            for s in configuration.streams
        ]
        receivers: dict[Port, list[str]] = defaultdict(list)
        for stream in configuration.streams:
            for port in stream.destinations:
                receivers[port].append(stream.fifo)
        self._sharing = {fifo for fifos in receivers.values() if len(fifos) > 1 for fifo in fifos}
        self._steps = 0
        self._problems: list[str] = []
        self._outstanding: dict[Port, list[_Task]] = defaultdict(list)

    def _end(self, port: Port) -> _Ring | _Shim:
        return self._shims[port] if port in self._shims else self._rings[port]

    def _move(self, stream: Stream, source: _Ring | _Shim, ends: list[Any]) -> bool:
        words = min(end.words(stream.fifo) for end in (source, *ends))
        if words in (0, _ENDLESS):
            return False
        for end in (source, *ends):
            end.move(words)
        return True

    def _sweep(self, fifos: Container[str] | None = None) -> int:
        """Let everything (or `fifos` and their workers) go on once; gives how much went on.

        Streams into channels that they share wait for `_shared_turn`.
        """
        moved = 0
        for stream, source, ends in self._streams:
            if stream.fifo not in self._sharing and (fifos is None or stream.fifo in fifos):
                while self._move(stream, source, ends):
                    moved += 1
        for process in self._workers.values():
            if fifos is None or process.touches(fifos):
                moved += process.advance()
        if not moved:
            moved = self._shared_turn(fifos)
        self._steps += moved
        if self._steps > _MAX_STEPS:
            raise Unpredictable(f"the run takes more than {_MAX_STEPS} steps")
        return moved

    def _shared_turn(self, fifos: Container[str] | None) -> int:
        """Let a piece into each channel of a shim that several fifos share, when all else rests.

        Packets enter such a channel in the order in which they come, whatever transfer is first
        there. So whoever can send now without being first could have been too early.
        """
        turn = [
            (stream, source, ends)
            for stream, source, ends in self._streams
            if stream.fifo in self._sharing and (fifos is None or stream.fifo in fifos)
        ]
        for stream, source, (shim,) in turn:
            first = shim.tasks[0].fifo if shim.tasks else stream.fifo
            if first != stream.fifo and source.words(stream.fifo):
                self._problem(
                    f"fifo {stream.fifo} can send to {stream.destinations[0]} while the transfer "
                    f"on fifo {first} is first there, and would fill its memory"
                )
        return sum(self._move(*each) for each in turn)

    def settle(self) -> None:
        """Go on until nothing can."""
        while self._sweep():
            pass

    def endless_passes(self, passes: int) -> str:
        """Run on shims without end until every worker has done `passes` passes.

        Gives who waits for what if a part of the design (what hangs together by fifos) stands
        still before that, else ''.
        """
        for fifos in _parts(self._configuration.design):
            workers = [p for p in self._workers.values() if p.touches(fifos)]
            while any(p.passes < passes for p in workers):
                if not self._sweep(fifos):
                    return self.who_waits()
        return ""

    # --- a sequence ---
    def sequence(self, sequence: Sequence, shape: Mapping[str, int]) -> list[str]:
        """Run `sequence` at `shape`; gives what is wrong, or an empty list.

        Wrong are: a statement that can never be passed, a transfer outside of its argument, a wait
        that does not cover the transfers before it, a worker started twice before it has looked,
        and whatever is not as before when the sequence is over.
        """
        self._problems = []
        self._limits = {a.name: evaluate(a.bytes, shape) for a in sequence.arguments}
        try:
            self._body(sequence.body, dict(shape))
            self.settle()
        except _Stuck as stuck:
            return [*self._problems, f"{stuck}; {self.who_waits()}"]
        return self._problems + self._left_behind()

    def _problem(self, text: str) -> None:
        if text not in self._problems:
            self._problems.append(text)

    def _body(self, body: Iterable[dict[str, Json]], scope: dict[str, int]) -> None:
        for statement in body:
            self._steps += 1
            if "let" in statement:
                scope[statement["let"]] = evaluate(statement["value"], scope)
            elif "for" in statement:
                for i in range(evaluate(statement["count"], scope)):
                    self._body(statement["do"], {**scope, statement["for"]: i})
            elif "if" in statement:
                if evaluate(statement["if"], scope):
                    self._body(statement["do"], dict(scope))
            elif "require" in statement:
                if not evaluate(statement["require"], scope):
                    raise Unpredictable(f"the shape is refused: {statement['message']}")
            elif "transfer" in statement:
                self._transfer(statement, scope)
            elif "start" in statement:
                process = self._workers[statement["start"]]
                if process.starts:
                    self._problem(
                        f"worker {statement['start']} is started again with no wait in between: "
                        "its parameters may be overwritten before it reads them"
                    )
                process.starts.append(tuple(evaluate(v, scope) for v in statement["values"]))
            elif "wait" in statement:
                self._wait(statement["wait"])

    def _transfer(self, statement: dict[str, Json], scope: dict[str, int]) -> None:
        fifo, argument = statement["transfer"], statement["argument"]
        offset, run = evaluate(statement["offset"], scope), evaluate(statement["run"], scope)
        outer = [(evaluate(n, scope), evaluate(s, scope)) for n, s in statement["outer"]]
        size, last = run, offset + run
        for count, stride in outer:
            size *= max(count, 0)
            last += (count - 1) * stride
        if size <= 0:
            return
        what = f"the transfer of {argument} on fifo {fifo}"
        if any(number % WORD for number in (offset, run, *(s for _, s in outer))):
            self._problem(
                f"{what} has offset {offset}, run {run} and dimensions {outer}; all but the "
                "counts must be multiples of 4 bytes"
            )
            return
        limit = self._limits[argument]
        if offset < 0 or last > limit or any(stride < 0 for _, stride in outer):
            self._problem(
                f"{what} touches bytes {offset} to {last} (dimensions {outer}); the argument has "
                f"{limit} bytes"
            )
        port = self._configuration.shim_ports[fifo]
        task = _Task(fifo, size // WORD)
        self._room([port], MAX_QUEUED_TASKS, what, f"tasks queued on {port}")
        column = [p for p in self._shims if p.tile == port.tile]
        descriptors = TILES["shim"].descriptors
        self._room(column, descriptors, what, f"descriptors of {port.tile}")
        self._outstanding[port].append(task)
        self._shims[port].tasks.append(task)

    def _room(self, ports: list[Port], limit: int, what: str, of: str) -> None:
        """Before a task is pushed: wait for an older one where `limit` are outstanding."""

        def outstanding() -> int:
            return sum(len(self._outstanding[port]) for port in ports)

        if outstanding() >= limit:
            self._advance()
            if outstanding() >= limit:
                raise _Stuck(f"{what} can never be issued: all {limit} {of} stay in use")

    def _advance(self) -> None:
        self.settle()
        for port, tasks in self._outstanding.items():
            self._outstanding[port] = [task for task in tasks if task.words]

    def _wait(self, fifos: list[str]) -> None:
        self._advance()
        unfinished = [t.fifo for tasks in self._outstanding.values() for t in tasks]
        for fifo in fifos:
            if fifo in unfinished:
                raise _Stuck(f"the wait for fifo {fifo} never ends")
        for fifo in unfinished:
            self._problem(
                f"after the wait for {', '.join(fifos)} a transfer on fifo {fifo} that came before "
                "it is not complete, and its descriptor would be used again"
            )
        self._outstanding.clear()

    # --- reports ---
    def who_waits(self) -> str:
        """Who cannot go on, and for what."""
        lines = []
        for stream, source, ends in self._streams:
            words = source.words(stream.fifo)
            blocked = [
                f"{port}, which waits for {end.waits_for}"
                for port, end in zip(stream.destinations, ends, strict=True)
                if end.words(stream.fifo) == 0
            ]
            if words and blocked:
                size = "" if words == _ENDLESS else f"{words * WORD} bytes "
                more = f" (and {len(blocked) - 1} more)" if len(blocked) > 1 else ""
                lines.append(f"fifo {stream.fifo} has {size}to send to {blocked[0]}{more}")
        unstarted = [n for n, p in self._workers.items() if p.waits_for and p.rests]
        if lines and unstarted:
            lines.append(f"{len(unstarted)} workers wait to be started, {unstarted[0]} first")
        lines = [p.waits_for for p in self._workers.values() if p.waits_for and not p.rests] + lines
        shown = lines[:8] + ([f"and {len(lines) - 8} more"] if len(lines) > 8 else [])
        return "; ".join(shown) or "nothing else waits"

    def _left_behind(self) -> list[str]:
        """What differs from the start when a sequence is over."""
        lines = []
        for port, shim in self._shims.items():
            for task in shim.tasks:
                lines.append(
                    f"a transfer on fifo {task.fifo} is never completed: {task.words * WORD} bytes "
                    f"stay at {port}"
                )
        for process in self._workers.values():
            if not process.idle:
                lines.append(f"{process.waits_for} when the sequence is over")
            if process.starts:
                lines.append(
                    f"worker {process.plan.worker.name} is started but never takes its parameters"
                )
        for port, ring in self._rings.items():
            if ring.partial:
                lines.append(
                    f"{port} still has {ring.left * WORD} bytes of an object of fifo "
                    f"{ring.channel.fifo} to move"
                )
        filled = {p.consume for w in self._configuration.workers.values() for p in w.pools.values()}
        for lock, value in self._locks.items():
            if lock in filled and value and not lines:
                lines.append(f"{value} objects are left at {lock.tile}: lock {lock.name}")
        return lines
