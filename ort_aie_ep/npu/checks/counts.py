"""Runs of a configuration with counts: locks and numbers of words, without data and time.

A design is a network of processes that block on reading and writing and never test whether they
would block. So a deadlock does not depend on timing (Kahn, The Semantics of a Simple Language for
Parallel Programming, 1974): one run at a shape proves the result for that shape. Streams here hold
no words. So the run also refuses a design that needs the few words of its switches' own buffers to
make progress.

Loop counts that a kernel computes (`Read`) are known where that kernel has only integers as inputs
and outputs: the run calls such kernels. Counts that depend on other data are beyond it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from typing import Any

from ort_aie_ep.npu.checks.count_parts import (
    ENDLESS,
    MAX_STEPS,
    Held,
    Process,
    Ring,
    Runner,
    Shim,
    Task,
    Unpredictable,
)  # fmt: skip
from ort_aie_ep.npu.terms.configuration import Configuration, Port, Stream
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.device import BUFFER_REACH, MAX_QUEUED_TASKS, TILES, WORD
from ort_aie_ep.npu.terms.sequence import Operation, Sequence, Start, Transfer, Wait, evaluate


class _Stuck(Exception):
    """The sequence cannot continue."""


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


class CountRun:
    """A configuration that runs with counts, and its integer kernels by `run`.

    `endless`: the shims send and receive without end.
    """

    def __init__(self, configuration: Configuration, run: Runner, *, endless: bool = False) -> None:
        self._configuration = configuration
        self._locks = {lock: Held(lock, lock.initial) for lock in configuration.locks}
        self._rings = {
            Port(c.tile, c.direction, c.index): Ring(c, self._locks) for c in configuration.channels
        }
        self._shims = {port: Shim(endless) for port in configuration.shim_ports.values()}
        self._workers = {n: Process(p, self._locks, run) for n, p in configuration.workers.items()}
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
        self._outstanding: dict[Port, list[Task]] = defaultdict(list)

    def _end(self, port: Port) -> Ring | Shim:
        return self._shims[port] if port in self._shims else self._rings[port]

    def _move(self, stream: Stream, source: Ring | Shim, ends: list[Any]) -> bool:
        words = source.words(stream.fifo)
        for end in ends:
            words = min(words, end.words(stream.fifo))
        if words in (0, ENDLESS):
            return False
        for end in (source, *ends):
            end.move(words)
        return True

    def _sweep(self, fifos: Container[str] | None = None) -> int:
        """Let everything (or `fifos` and their workers) continue once; returns the number of steps.

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
        if self._steps > MAX_STEPS:
            raise Unpredictable(f"the run takes more than {MAX_STEPS} steps")
        return moved

    def _shared_turn(self, fifos: Container[str] | None) -> int:
        """Let a piece into each channel of a shim that several fifos share, when all else rests.

        Packets enter such a channel in the order in which they arrive, whichever transfer is first
        there. So a fifo that can send now without being first could have sent too early.
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
                    f"on fifo {first} is first there, and would fill the memory of that transfer"
                )
        return sum(self._move(*each) for each in turn)

    def settle(self) -> None:
        """Continue until nothing can move."""
        while self._sweep():
            pass

    def endless_passes(self, passes: int) -> str:
        """Run with endless shims until every worker has completed `passes` passes.

        If a part of the design (connected by fifos) stops before that, returns who waits for what;
        otherwise ''.
        """
        for fifos in _parts(self._configuration.design):
            workers = [p for p in self._workers.values() if p.touches(fifos)]
            while any(p.passes < passes for p in workers):
                if not self._sweep(fifos):
                    return self.who_waits()
        return ""

    # --- a sequence ---
    def sequence(self, sequence: Sequence, shape: Mapping[str, int]) -> list[str]:
        """Run `sequence` at `shape`; returns what is wrong, or an empty list.

        These are errors: a statement that can never complete, a transfer outside of its argument, a
        wait that does not cover the transfers before it, a worker started twice before it has read
        its parameters, and any state that differs from the start when the sequence is over.
        """
        self._problems = []
        self._limits = {a.name: evaluate(a.bytes, shape) for a in sequence.arguments}
        try:
            for operation in sequence.operations(shape):
                self._steps += 1
                self._do(operation)
            self.settle()
        except _Stuck as stuck:
            return [*self._problems, f"{stuck}; {self.who_waits()}"]
        return self._problems + self._left_behind()

    def _problem(self, text: str) -> None:
        if text not in self._problems:
            self._problems.append(text)

    def _do(self, operation: Operation) -> None:
        match operation:
            case Transfer():
                self._transfer(operation)
            case Start(worker, values):
                process = self._workers[worker]
                if process.starts:
                    self._problem(
                        f"worker {worker} is started again with no wait in between: "
                        "its parameters may be overwritten before it reads them"
                    )
                process.starts.append(values)
            case Wait(fifos, everything):
                self._wait(fifos, everything=everything)

    def _transfer(self, transfer: Transfer) -> None:
        fifo, argument, offset = transfer.fifo, transfer.argument, transfer.offset
        run, outer = transfer.run, list(transfer.outer)
        size, last = run, offset + run
        for count, stride in outer:
            size *= count
            last += (count - 1) * stride
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
        if last > BUFFER_REACH:
            self._problem(
                f"{what} touches bytes up to {last:,}; descriptors reach {BUFFER_REACH:,} of a "
                "buffer"
            )
        port = self._configuration.shim_ports[fifo]
        task = Task(fifo, size // WORD)
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

    def _wait(self, fifos: Iterable[str], *, everything: bool) -> None:
        """Continue until nothing moves. If `everything`, no other transfer is under way then."""
        self._advance()
        unfinished = [t.fifo for tasks in self._outstanding.values() for t in tasks]
        for fifo in fifos:
            if fifo in unfinished:
                raise _Stuck(f"the wait for fifo {fifo} never ends")
        if not everything:
            return
        for fifo in unfinished:
            self._problem(
                f"after the wait for {', '.join(fifos)}, an earlier transfer on fifo {fifo} is not "
                "complete, but its descriptor would be used again"
            )
        self._outstanding.clear()

    # --- reports ---
    def who_waits(self) -> str:
        """Who cannot continue, and for what they wait."""
        lines = []
        for stream, source, ends in self._streams:
            words = source.words(stream.fifo)
            blocked = [
                f"{port}, which waits for {end.waits_for}"
                for port, end in zip(stream.destinations, ends, strict=True)
                if end.words(stream.fifo) == 0
            ]
            if words and blocked:
                size = "" if words == ENDLESS else f"{words * WORD} bytes "
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
                    f"a transfer on fifo {task.fifo} never completes: {task.words * WORD} bytes "
                    f"remain at {port}"
                )
        for process in self._workers.values():
            if not process.idle:
                lines.append(f"{process.waits_for} when the sequence is over")
            if process.starts:
                lines.append(
                    f"worker {process.plan.worker.name} is started but never reads its parameters"
                )
        for port, ring in self._rings.items():
            if ring.partial:
                lines.append(
                    f"{port} still has {ring.left * WORD} bytes of an object of fifo "
                    f"{ring.channel.fifo} to move"
                )
        filled = {p.consume for w in self._configuration.workers.values() for p in w.pools.values()}
        for lock, held in self._locks.items():
            if lock in filled and held.value and not lines:
                lines.append(f"{held.value} objects remain at {lock.tile}: lock {lock.name}")
        return lines
