"""A sequence of a design for one concrete shape, as a runtime sequence of mlir-aie.

At run time `src/npu` writes the instruction streams from the same statements, and the sequence of
an overlay is empty. Given a shape, the compiler writes its own stream, for comparison with that of
src/npu (AIEX.td: tasks are configured, started, awaited and freed; the compiler chooses
descriptors).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from ort_aie_ep.aie_kernels.mlir.attributes import packet_info
from ort_aie_ep.aie_kernels.mlir.text import Text, Value, array, i32, string
from ort_aie_ep.npu.terms.configuration import Configuration, Port
from ort_aie_ep.npu.terms.device import MAX_QUEUED_TASKS, TILES, WORD
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.npu.terms.sequence import Operation, Sequence, Start, Transfer, Wait

MAX_ITERATIONS = 64  # of a descriptor: a 6-bit count (AM020)
MAX_REPEATS = 256  # of a task, with the same addresses: 8 bits in the queue


class ShapeError(DesignError):
    """A shape with too many transfers for one run of the compiler; src/npu's streams divide it."""


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
        return list(self.sequence.operations(self.shape))


def shim_pattern(transfer: Transfer) -> tuple[list[int], list[int]]:
    """Sizes and strides in words, outermost first, in the fewest dimensions a shim can walk.

    A shim's descriptor has three dimensions and an iteration; a repetition (stride 0) is always the
    iteration, the first of four. Raises ShapeError for more.
    """
    whole = (*transfer.outer, (transfer.run // WORD, WORD))
    dims = [(n, s // WORD) for n, s in whole if n > 1] or [(1, 1)]
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


def write_sequence(
    text: Text, name: str, plan: Configuration, go: Mapping[str, Value], run: Run | None
) -> None:
    """Write the runtime sequence `name`: that of `run`, or an empty one.

    `go` has the locks of the workers. Host buffers are arrays of words, so that every transfer is a
    whole number of words. A buffer that this shape does not use is still an argument, and no buffer
    is empty. Raises ShapeError for a transfer that is more than a task.
    """
    sizes = run.sequence.argument_bytes(run.shape) if run else {}
    types = [f"memref<{max(1, size // WORD)}xi32>" for size in sizes.values()]
    properties = {"sym_name": string(name)}
    with (
        text.nest("aie.runtime_sequence", properties=properties) as nest,
        nest.region(*types) as arguments,
    ):
        if run is not None:
            _Writer(text, plan, go, dict(zip(sizes, arguments, strict=True))).write(run)


class _Writer:
    def __init__(
        self, text: Text, plan: Configuration, go: Mapping[str, Value], arguments: dict[str, Value]
    ) -> None:
        self._text = text
        self._plan = plan
        self._go = go
        self._arguments = arguments

    def write(self, run: Run) -> None:
        text = self._text
        operations = run.operations()
        waits = _waits(operations, self._plan)
        awaited = {number for numbers, _ in waits.values() for number in numbers}
        tasks: dict[int, Value] = {}  # by the number of the transfer
        for number, operation in enumerate(operations):
            for_tokens, complete = waits.get(number, ([], []))
            for waited in for_tokens:
                text.op("aiex.dma_await_task", [tasks[waited]])
            for done in complete:
                if done not in for_tokens:
                    text.op("aiex.dma_free_task", [tasks[done]])
            match operation:
                case Transfer():
                    tasks[number] = self._task(operation, token=number in awaited)
                case Start(worker, values):
                    self._start(worker, values)

    def _task(self, transfer: Transfer, *, token: bool) -> Value:
        """Configure and start a task. Four dimensions are an iteration around three."""
        text, fifo = self._text, transfer.fifo
        counts, strides = shim_pattern(transfer)
        runs = counts[0] if len(counts) > TILES["shim"].dimensions else 1
        length = math.prod(counts) // runs
        if runs > 1 and strides[0] == 0:  # the queue repeats, further than a descriptor iterates
            del counts[0], strides[0]
        task = {
            "alloc": f"@{fifo}",
            "issue_token": "true" if token else "false",
            "repeat_count": i32(runs - 1),
        }
        descriptor = {
            "operandSegmentSizes": array("i32", [1, 0, 0, 0, 0]),
            "static_offset": i32(transfer.offset // WORD),
            "static_len": i32(length),
            "static_sizes": array("i64", counts),
            "static_strides": array("i64", strides),
        }
        packet = self._plan.design.fifos[fifo].packet
        if packet is not None and self._plan.shim_ports[fifo].direction == "MM2S":
            descriptor["packet"] = packet_info(packet)
        with (
            text.nest(
                "aiex.dma_configure_task_for", properties=task, results=["index"], hint="task"
            ) as nest,
            nest.region(),
        ):
            text.op("aie.dma_bd", [self._arguments[transfer.argument]], descriptor)
            text.op("aie.end")
        text.op("aiex.dma_start_task", nest.results)
        return nest.results[0]

    def _start(self, worker: str, values: tuple[int, ...]) -> None:
        text = self._text
        for i, value in enumerate(values):
            word = {"buffer": f"@{worker}_parameters", "index": f"{i} : ui32"}
            signed = (value + (1 << 31)) % (1 << 32) - (1 << 31)  # bits of a float32 may be given
            text.op("aiex.npu.rtp_write", [text.constant(signed, "i32")], word)
        text.op("aiex.set_lock", [self._go[worker]], {"value": i32(1)})


def _waits(
    operations: list[Operation], plan: Configuration
) -> dict[int, tuple[list[int], list[int]]]:
    """By the number of an operation, the transfers that are awaited before it, and all that are
    then complete.

    Besides the sequence's own waits, a full queue waits for its oldest task, and a shim without a
    free descriptor for the oldest of its tasks, as the streams of src/npu do.
    """
    waits: dict[int, tuple[list[int], list[int]]] = {}
    under_way: dict[Port, list[int]] = defaultdict(list)

    def wait(number: int, port: Port, last: int) -> None:
        """Before operation `number`, for the tasks of a channel up to its `last`."""
        for_tokens, complete = waits.setdefault(number, ([], []))
        for_tokens.append(last)
        done = under_way[port].index(last) + 1
        complete += under_way[port][:done]
        del under_way[port][:done]

    for number, operation in enumerate(operations):
        if isinstance(operation, Transfer):
            port = plan.shim_ports[operation.fifo]
            if len(under_way[port]) == MAX_QUEUED_TASKS:
                wait(number, port, under_way[port][0])
            of_shim = [p for p, tasks in under_way.items() if p.tile == port.tile and tasks]
            if sum(len(under_way[p]) for p in of_shim) == TILES["shim"].descriptors:
                oldest = min(of_shim, key=lambda p: under_way[p][0])
                wait(number, oldest, under_way[oldest][0])
            under_way[port].append(number)
        elif isinstance(operation, Wait):
            for fifo in operation.fifos:
                port = plan.shim_ports[fifo]
                of_fifo = [n for n in under_way[port] if _fifo(operations[n]) == fifo]
                if of_fifo:
                    wait(number, port, of_fifo[-1])
            if operation.everything:
                _, complete = waits.setdefault(number, ([], []))
                complete += sorted(n for tasks in under_way.values() for n in tasks)
                under_way.clear()
    return waits


def _fifo(operation: Operation) -> str:
    assert isinstance(operation, Transfer)
    return operation.fifo
