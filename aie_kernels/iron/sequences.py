"""A sequence of a design for one concrete shape, as IRON's runtime sequence.

At run time `src/npu` writes the instruction streams, from the same statements. What is made here
serves two ends: without a shape it binds what the overlay must have (shim channels, run-time
parameters, locks) and moves nothing; with one it makes the compiler's own stream of a run, to be
compared with ours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ort_aie_ep.aie_kernels.iron.interface import Iron, array_of
from ort_aie_ep.npu.vocabulary.configuration import Configuration
from ort_aie_ep.npu.vocabulary.device import MAX_QUEUED_TASKS, TILES, WORD
from ort_aie_ep.npu.vocabulary.errors import DesignError
from ort_aie_ep.npu.vocabulary.sequence import Json, Sequence, evaluate

MAX_ITERATIONS = 64  # of a descriptor: a 6-bit count (AM020)
MAX_REPEATS = 256  # of a task, with the same addresses: 8 bits in the queue


class ShapeError(DesignError):
    """A shape whose transfers one run of the compiler's cannot hold; our own streams divide it."""


@dataclass(frozen=True)
class Transfer:
    """Bytes between an argument and a fifo: (count, stride in bytes), the last (run / 4, 4)."""

    fifo: str
    argument: str
    offset: int
    dimensions: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Start:
    """Run-time parameters of a worker, and its lock."""

    worker: str
    values: tuple[int, ...]


@dataclass(frozen=True)
class Wait:
    """Until all transfers on these fifos are complete."""

    fifos: tuple[str, ...]


Operation = Transfer | Start | Wait


@dataclass(frozen=True)
class Run:
    """A sequence and the values of its parameters."""

    sequence: Sequence
    shape: Mapping[str, int]

    def __post_init__(self) -> None:
        names = set(self.sequence.parameters)
        if names != set(self.shape):
            raise DesignError(
                f"sequence {self.sequence.name} takes the parameters "
                f"{', '.join(self.sequence.parameters)}; got {', '.join(self.shape) or 'none'}"
            )

    def operations(self) -> list[Operation]:
        """What happens, in order. Raises DesignError for a shape that the sequence refuses."""
        return list(_walk(self.sequence.body, dict(self.shape)))

    def argument_bytes(self) -> dict[str, int]:
        """Bytes of every argument, in order."""
        values = dict(self.shape)
        for statement in self.sequence.body:
            if "let" in statement:
                values[statement["let"]] = evaluate(statement["value"], values)
        return {a.name: evaluate(a.bytes, values) for a in self.sequence.arguments}


def _walk(body: list[dict[str, Json]], values: dict[str, int]) -> Iterator[Operation]:
    for statement in body:
        match statement:
            case {"let": name, "value": value}:
                values[name] = evaluate(value, values)
            case {"require": condition, "message": message}:
                if not evaluate(condition, values):
                    raise DesignError(message.format(**values))
            case {"for": index, "count": count, "do": do}:
                for i in range(evaluate(count, values)):
                    yield from _walk(do, {**values, index: i})
            case {"if": condition, "do": do}:
                if evaluate(condition, values):
                    yield from _walk(do, dict(values))
            case {"transfer": fifo, "argument": argument, "offset": offset, "run": run}:
                outer = [(evaluate(n, values), evaluate(s, values)) for n, s in statement["outer"]]
                words = evaluate(run, values) // WORD
                dimensions = (*outer, (words, WORD))
                if all(count > 0 for count, _ in dimensions):
                    yield Transfer(fifo, argument, evaluate(offset, values), dimensions)
            case {"start": worker, "values": given}:
                yield Start(worker, tuple(evaluate(v, values) for v in given))
            case {"wait": fifos}:
                yield Wait(tuple(fifos))


def shim_pattern(transfer: Transfer) -> tuple[list[int], list[int]]:
    """Sizes and strides in words, outermost first, in the fewest dimensions a shim can walk.

    A shim's descriptor has three dimensions and an iteration; a repetition (stride 0) is always the
    iteration, the first of four. Raises ShapeError for more.
    """
    dims = [(n, s // WORD) for n, s in transfer.dimensions if n > 1] or [(1, 1)]
    folded = [dims[-1]]
    for count, stride in reversed(dims[:-1]):
        inner_count, inner_stride = folded[0]
        if stride == inner_count * inner_stride:
            folded[0] = (count * inner_count, inner_stride)
        else:
            folded.insert(0, (count, stride))
    shim = TILES["shim"]
    count, stride = folded[-1]
    if len(folded) > 1 and count > shim.max_wrap:
        inner = max(d for d in range(1, shim.max_wrap + 1) if count % d == 0)
        folded[-1:] = [(count // inner, inner * stride), (inner, stride)]
    repeats = folded[0][1] == 0
    if repeats:
        folded[1:1] = [(1, 0)] * (shim.dimensions + 1 - len(folded))
    iterations = folded[0][0] if len(folded) > shim.dimensions else 1
    if (
        len(folded) > shim.dimensions + 1
        or iterations > (MAX_REPEATS if repeats else MAX_ITERATIONS)
        or any(n > shim.max_wrap for n, _ in folded[-shim.dimensions :][1:] if len(folded) > 1)
    ):
        raise ShapeError(
            f"transfer on fifo {transfer.fifo}: (count, stride in words) of {folded} is more than "
            f"one task of a shim walks: {shim.dimensions} dimensions, counts up to "
            f"{shim.max_wrap}, and {MAX_ITERATIONS} iterations; give a smaller shape"
        )
    return [n for n, _ in folded], [s for _, s in folded]


@dataclass(frozen=True)
class Bound:
    """IRON's objects that a sequence uses, by the names of the design."""

    handles: Mapping[str, Any]  # of the shim ends
    words: Mapping[str, Any]  # run-time parameters, by worker
    locks: Mapping[str, Any]  # by worker


def runtime(iron: Iron, bound: Bound, plan: Configuration, run: Run | None) -> Any:
    """IRON's Runtime for `run`; for None one that binds everything and does nothing.

    A handle that is among the runtime's arguments is bound to its shim tile and channel, whether
    or not the sequence moves data on it (python/iron/runtime/runtime.py). Host buffers are arrays
    of words, so that every transfer is in whole ones.
    """
    sizes = run.argument_bytes() if run else {}
    # A buffer that this shape does not use is still an argument; none is empty.
    types = [array_of(max(1, n // WORD), np.dtype(np.int32)) for n in sizes.values()]
    names = [list(d) for d in (bound.handles, bound.words, bound.locks)]

    def sequence(*given: Any) -> None:
        if run is None:
            return
        arrays = dict(zip(sizes, given, strict=False))
        handles, words, locks = (
            dict(zip(keys, values, strict=True))
            for keys, values in zip(names, given[len(sizes) :], strict=True)
        )
        _emit(iron, run, arrays, Bound(handles, words, locks), plan)

    fn_args = [
        *types,
        list(bound.handles.values()), list(bound.words.values()), list(bound.locks.values()),
    ]  # fmt: skip
    return iron.Runtime(sequence, fn_args)


def _emit(iron: Iron, run: Run, arrays: dict[str, Any], bound: Bound, plan: Configuration) -> None:
    operations = run.operations()
    sizes = run.argument_bytes()
    awaited = _awaited(operations)
    outstanding = _Outstanding(plan)
    group = None
    for number, operation in enumerate(operations):
        match operation:
            case Transfer(fifo, argument, offset):
                group = group or iron.TaskGroup()
                outstanding.add(fifo)
                counts, strides = shim_pattern(operation)
                tap = iron.TensorAccessPattern(
                    (max(1, sizes[argument] // WORD),), offset // WORD, counts, strides
                )
                handle = bound.handles[fifo]
                move = handle.fill if plan.shim_ports[fifo].direction == "MM2S" else handle.drain
                move(arrays[argument], tap=tap, wait=number in awaited, group=group)
            case Start(worker, values):
                for i, value in enumerate(values):
                    bound.words[worker][i] = value
                bound.locks[worker].set(1)
            case Wait():
                if group is not None:
                    group.finish()
                group = None
                outstanding.clear()
    if group is not None:
        group.finish()


def _awaited(operations: list[Operation]) -> set[int]:
    """Which transfers give a token: the last on each fifo that a wait names."""
    last: dict[str, int] = {}
    awaited: set[int] = set()
    for number, operation in enumerate(operations):
        if isinstance(operation, Transfer):
            last[operation.fifo] = number
        elif isinstance(operation, Wait):
            awaited.update(last[f] for f in operation.fifos if f in last)
            last.clear()
    return awaited


class _Outstanding:
    """Refuses what would overrun a queue or run out of descriptors; our own streams wait there."""

    def __init__(self, plan: Configuration) -> None:
        self._plan = plan
        self._channels: dict[Any, int] = defaultdict(int)
        self._columns: dict[int, int] = defaultdict(int)

    def add(self, fifo: str) -> None:
        port = self._plan.shim_ports[fifo]
        self._channels[port] += 1
        self._columns[port.tile.column] += 1
        for used, limit, what in (
            (self._channels[port], MAX_QUEUED_TASKS, f"tasks on {port}"),
            (self._columns[port.tile.column], TILES["shim"].descriptors, f"BDs of {port.tile}"),
        ):
            if used > limit:
                raise ShapeError(
                    f"this shape needs {used} {what} before a wait, and there are {limit}: give a "
                    "smaller shape (streams for any shape are written at run time)"
                )

    def clear(self) -> None:
        self._channels.clear()
        self._columns.clear()
