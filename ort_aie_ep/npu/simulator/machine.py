"""Simulate a design: words in, real bytes through the array, time from documented costs.

A `Machine` is one configured overlay. `Machine.run` decodes the words of a stream with the decoder
of `txn`, which shares nothing with the encoder, and executes them. Descriptors of the shims exist
only as words that were written, patched and pushed. Kernels are those of the chip, compiled for
this CPU (`kernels`). Time comes from `costs`; the costs of the control path were measured on NPU1.

A run that cannot continue ends in a SimulationError that says who waits for what. So does a run
that leaves something behind (an incomplete transfer, an object that nobody took), because on the
device the next run would start from there.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import get_args

import numpy as np

try:
    import simpy
except ImportError as missing:
    from ort_aie_ep.errors import AieError
    from ort_aie_ep.requirements import install_line

    raise AieError(f"the simulator needs SimPy: {install_line(['simpy'])}") from missing

from ort_aie_ep.npu.kernels import Kernels
from ort_aie_ep.npu.simulator.core import CoreProcess
from ort_aie_ep.npu.simulator.dma import RingEndpoint, ShimEndpoint, StreamState, Task, pump
from ort_aie_ep.npu.simulator.parts import HostMemory, Process
from ort_aie_ep.npu.simulator.registers import (
    LOCK_BYTES,
    LOCKS,
    QueuePush,
    shim_control_of,
    shim_descriptor_of,
    shim_queue_of,
    split_address,
)  # fmt: skip
from ort_aie_ep.npu.simulator.state import ArrayState
from ort_aie_ep.npu.simulator.txn import (
    AddressPatch,
    BlockWrite,
    InstructionStream,
    MaskWrite,
    Operation,
    Other,
    Wait,
    Write,
    decode,
)  # fmt: skip
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.configuration import Direction, Port
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.device import BUFFER_REACH, TILES, WORD, Tile
from ort_aie_ep.npu.terms.errors import DesignError, SimulationError, StreamError
from ort_aie_ep.progress import Count


@dataclass(frozen=True)
class Result:
    """What a run took. Times are seconds of the modelled device.

    `seconds` is the time from the first instruction to the last wait, without the host's dispatch
    (`costs.DISPATCH`). `workers` has each worker's time in kernels and waiting, by name; `channels`
    has each channel's time moving data; `read` and `written` are bytes of DDR.
    """

    seconds: float
    workers: dict[str, dict[str, float]]
    channels: dict[str, float]
    read: int
    written: int
    operations: int


class Machine(ArrayState):
    """The array with one design on it; it keeps its state from run to run, as the device does.

    Raises DesignError for a design that `configure` refuses, or that joins streams by packets.
    `trace` records every span.
    """

    def __init__(
        self,
        design: Design,
        *,
        trace: bool = False,
        kernels: Kernels | None = None,
    ) -> None:
        super().__init__(design, trace, kernels)
        self.endpoints: dict[Port, RingEndpoint | ShimEndpoint] = {}
        self.failed: list[BaseException] = []
        self._streams: list[StreamState] = []
        self._cores: list[CoreProcess] = []
        self._build()

    # --- building ---
    def _build(self) -> None:
        for channel in self.configuration.channels:
            endpoint = RingEndpoint(self, channel)
            self.endpoints[endpoint.port] = endpoint
        for column in range(self.design.device.columns):
            for port in _shim_ports(Tile(column, 0)):
                self.endpoints[port] = ShimEndpoint(self, port)
        states: dict[Port, StreamState] = {}
        sources: dict[Port, Port] = {}  # by destination
        for stream in self.configuration.streams:
            if stream.source not in states:
                states[stream.source] = StreamState(self.endpoints[stream.source])
            states[stream.source].routes[stream.packet] = stream
            for port in stream.destinations:
                other = sources.setdefault(port, stream.source)
                if other != stream.source:
                    raise DesignError(
                        f"{other} and {stream.source} both send to {port}: the simulator has no "
                        "model of how packets of several sources interleave"
                    )
        self._streams = list(states.values())
        for state in self._streams:
            self._guard(pump(self, self.endpoints, state))
        for plan in self.configuration.workers.values():
            core = CoreProcess(self, plan)
            self._cores.append(core)
            self._guard(core.run())

    def _guard(self, process: Process) -> simpy.Process:
        """Start a process whose failure ends the run instead of vanishing."""

        def guarded() -> Process:
            try:
                result = yield from process
            except (SimulationError, StreamError) as error:
                self.failed.append(error)
                return None
            return result

        return self.env.process(guarded())

    # --- running ---
    def run(self, words: np.ndarray, buffers: Iterable[tuple[str, np.ndarray]]) -> Result:
        """Execute a stream of 32-bit `words` on host `buffers`, (n,) uint8 each, written in place.

        Raises StreamError for a malformed stream or one for another device, SimulationError for a
        deadlock, an access outside of the buffers, or work that is left behind.
        """
        return self.run_stream(decode(words), buffers)

    def run_stream(
        self,
        stream: InstructionStream,
        buffers: Iterable[tuple[str, np.ndarray]],
        count: Count | None = None,
    ) -> Result:
        """Execute a decoded stream, as `run` does; `count` advances with each operation."""
        device = self.design.device
        if stream.header.generation != device.generation:
            raise StreamError(
                f"the stream is for device generation {stream.header.generation}; "
                f"{device.name} is {device.generation}"
            )
        if (stream.header.rows, stream.header.memory_rows) != (device.rows, 1):
            raise StreamError(
                f"the stream is for {stream.header.rows} rows, {stream.header.memory_rows} of "
                f"memory tiles; {device.name} has {device.rows} and 1"
            )
        if stream.header.columns > device.columns:
            raise StreamError(
                f"the stream needs {stream.header.columns} columns; {device.name} has "
                f"{device.columns}"
            )
        self.host = HostMemory(list(buffers))
        start = self.env.now
        before = self.ddr_read.bytes, self.ddr_write.bytes
        for core in self._cores:
            core.kernel_seconds = core.wait_seconds = 0.0
        for state in self._streams:
            state.busy = 0.0
        self.failed.clear()
        ends: list[float] = []

        def commands() -> Process:
            for operation in stream.operations:
                yield from self._execute(operation)
                if count is not None:
                    count.step()
            ends.append(self.env.now)

        process = self._guard(commands())
        failed, step = self.failed, self.env.step
        with suppress(simpy.core.EmptySchedule):
            while not failed:
                step()
        if self.failed:
            raise self.failed[0]
        if process.is_alive or not ends:
            raise SimulationError("deadlock:\n" + self.who_waits())
        left = self.left_behind()
        if left:
            raise SimulationError("the run left work behind:\n" + "\n".join(left))
        return Result(
            seconds=ends[0] - start,
            workers={
                c.plan.worker.name: {"kernel": c.kernel_seconds, "wait": c.wait_seconds}
                for c in self._cores
            },
            channels={str(s.source.port): s.busy for s in self._streams},
            read=self.ddr_read.bytes - before[0],
            written=self.ddr_write.bytes - before[1],
            operations=len(stream.operations),
        )

    def who_waits(self) -> str:
        """Every process that cannot continue, and what it waits for."""
        lines = []
        if self._command_waits:
            lines.append(f"the instruction stream waits for {self._command_waits}")
        for endpoint in self.endpoints.values():
            if isinstance(endpoint, ShimEndpoint) and endpoint.dropped:
                lines.append(_overflow(endpoint))
        for core in self._cores:
            if core.waits_for and not core.idle:
                lines.append(f"worker {core.plan.worker.name} waits for {core.waits_for}")
        for state in self._streams:
            if state.sending is not None and state.sending.remaining:
                target = "its destination"
                for port in state.routes[state.sending.packet].destinations:
                    if port not in state.receiving and self.endpoints[port].waiting:
                        target = f"{port}, which waits for {self.endpoints[port].waiting}"
                lines.append(
                    f"{state.source.port} has {state.sending.remaining * WORD} bytes to send and "
                    f"waits for {target}"
                )
        return "\n".join("  " + line for line in lines) or "  (nothing waits)"

    def left_behind(self) -> list[str]:
        """Things that a completed run must not leave: queued tasks, partial buffers, objects."""
        lines = []
        for endpoint in self.endpoints.values():
            if isinstance(endpoint, ShimEndpoint):
                for task in endpoint.busy:
                    lines.append(f"  {endpoint.port}: the task of {task.source} is not complete")
                if endpoint.tokens.level:
                    lines.append(f"  {endpoint.port}: {endpoint.tokens.level} tokens not taken")
                if endpoint.dropped:
                    lines.append(f"  {_overflow(endpoint)}")
        for state in self._streams:
            for port, transfer in state.receiving.items():
                if transfer.position > 0:
                    lines.append(f"  {port}: {transfer.position} of {transfer.words} words arrived")
        for cell in self._locks.values():
            if cell.value != cell.lock.initial:
                lines.append(
                    f"  lock {cell.lock.id} of {cell.lock.tile} ({cell.lock.name}) is "
                    f"{cell.value}, but was {cell.lock.initial} at the start"
                )
        for core in self._cores:
            if not core.idle:
                lines.append(
                    f"  worker {core.plan.worker.name} has not returned to its start; it waits "
                    f"for {core.waits_for or 'nothing'}"
                )
        return lines

    # --- the command processor ---
    _command_waits = ""

    def _execute(self, operation: Operation) -> Process:
        env, clock = self.env, self.clock
        start = env.now
        match operation:
            case Write():
                yield env.timeout(clock.cost(costs.WRITE32))
                self._write(operation.address, [operation.value], operation)
            case BlockWrite():
                cycles = costs.BLOCKWRITE.value + costs.BLOCKWRITE_WORD.value * len(operation.words)
                yield env.timeout(clock.seconds(cycles))
                self._write(operation.address, list(operation.words), operation)
            case MaskWrite():
                yield env.timeout(clock.cost(costs.MASKWRITE))
                self._mask_write(operation)
            case AddressPatch():
                yield env.timeout(clock.cost(costs.DDR_PATCH))
                self._patch(operation)
            case Wait():
                yield from self._wait(operation)
                yield env.timeout(clock.cost(costs.TCT_WAIT))
            case Other(name=name):
                raise StreamError(
                    f"operation {operation.index}, {name}: the simulator does not model it"
                )
        self.trace.span("instruction stream", type(operation).__name__, start, env.now)

    def _tile(self, address: int, operation: Operation) -> tuple[Tile, int]:
        column, row, offset = split_address(address)
        device = self.design.device
        if column >= device.columns or row >= device.rows:
            raise StreamError(
                f"operation {operation.index} writes to tile ({column}, {row}), outside of "
                f"{device.name}"
            )
        return Tile(column, row), offset

    def _write(self, address: int, values: list[int], operation: Operation) -> None:
        tile, offset = self._tile(address, operation)
        what = f"operation {operation.index}"
        if tile.kind == "shim":
            if shim_descriptor_of(address + WORD * (len(values) - 1)) is not None:
                self._write_descriptors(address, values, what)
                return
            queue = shim_queue_of(address)
            if queue is not None and len(values) == 1:
                push = QueuePush.from_word(values[0])
                task = Task(push.descriptor, push.runs, push.token, what)
                self._shim(Port(tile, queue.direction, queue.channel)).push(task)
                return
            if shim_control_of(address) is not None and len(values) == 1:
                self._require_token_control(values[0], operation)
                return
        number, rest = divmod(offset - LOCKS[tile.kind], LOCK_BYTES)
        if rest == 0 and 0 <= number < TILES[tile.kind].locks and len(values) == 1:
            self.lock_by_id(tile, number).set(values[0])
            return
        if tile.kind != "shim" and offset + 4 * len(values) <= TILES[tile.kind].memory:
            data = np.array(values, dtype=np.uint32).view(np.uint8)
            self.memory(tile)[offset : offset + data.size] = data
            self._written.update((tile, offset + WORD * i) for i in range(len(values)))
            return
        raise StreamError(
            f"{what} writes {len(values)} words to offset {offset:#x} of {tile}: the simulator "
            "knows descriptors, task queues and channel controls of shims, locks and data memory"
        )

    def _shim(self, port: Port) -> ShimEndpoint:
        endpoint = self.endpoints[port]
        assert isinstance(endpoint, ShimEndpoint)
        return endpoint

    def _write_descriptors(self, address: int, values: list[int], what: str) -> None:
        for i, value in enumerate(values):
            place = shim_descriptor_of(address + WORD * i)
            if place is None:
                raise StreamError(f"{what} starts before the descriptors of a shim")
            column, number, word = place
            tile = Tile(column, 0)
            self._require_unused(tile, number, what)
            words = self._shim_words.setdefault((tile, number), np.zeros(8, dtype=np.uint32))
            words[word] = value
            self._iterations.pop((tile, number), None)

    def _require_unused(self, tile: Tile, number: int, what: str) -> None:
        for port in _shim_ports(tile):
            for task in self._shim(port).busy:
                if task.descriptor == number:
                    raise SimulationError(
                        f"{what} rewrites descriptor {number} of {tile}, which the task of "
                        f"{task.source} still uses"
                    )

    def _mask_write(self, operation: MaskWrite) -> None:
        tile, offset = self._tile(operation.address, operation)
        if shim_control_of(operation.address) is not None:
            self._require_token_control(operation.mask, operation)
            return
        raise StreamError(
            f"operation {operation.index}: mask write to offset {offset:#x} of {tile}; the "
            "simulator knows channel controls of shims"
        )

    def _require_token_control(self, bits: int, operation: Operation) -> None:
        """Write a channel's control: only the controller's id, 15:8, which goes into tokens."""
        if bits & ~0xFF00:
            raise StreamError(
                f"operation {operation.index} writes {bits & ~0xFF00:#x} to a channel's control; "
                "the simulator knows the controller's id in bits 15:8, but neither resets nor modes"
            )

    def _patch(self, operation: AddressPatch) -> None:
        tile, offset = self._tile(operation.address, operation)
        what = f"operation {operation.index}"
        place = shim_descriptor_of(operation.address)
        if place is None or place[2] != 1:
            raise StreamError(
                f"{what} patches offset {offset:#x} of {tile}; it must be word 1 of a descriptor "
                "of a shim"
            )
        if operation.buffer_offset >= BUFFER_REACH:
            raise SimulationError(
                f"{what} patches in byte {operation.buffer_offset:,} of argument "
                f"{operation.argument}; descriptors reach {BUFFER_REACH:,} bytes of a buffer"
            )
        number = place[1]
        self._require_unused(tile, number, what)
        words = self._shim_words.get((tile, number))
        if words is None:
            raise StreamError(f"{what} patches descriptor {number} of {tile} before it is written")
        base = (int(words[2]) & 0xFFFF) << 32 | int(words[1])
        total = base + self.host.argument_address(operation.argument, what) + operation.plus
        words[1] = total & 0xFFFF_FFFC
        words[2] = (int(words[2]) & 0xFFFF_0000) | ((total >> 32) & 0xFFFF)

    def _wait(self, operation: Wait) -> Process:
        for column in range(operation.column, operation.column + operation.columns):
            for row in range(operation.row, operation.row + operation.rows):
                port = Port(Tile(column, row), operation.direction, operation.channel)
                endpoint = self.endpoints.get(port)
                if not isinstance(endpoint, ShimEndpoint):
                    raise StreamError(
                        f"operation {operation.index} waits for a token of {port}, which the "
                        "simulator's command processor does not receive"
                    )
                self._command_waits = f"a token of {port} (operation {operation.index})"
                yield endpoint.tokens.get(1)
        self._command_waits = ""


def _overflow(endpoint: ShimEndpoint) -> str:
    return f"{endpoint.port}: its queue was full, and {endpoint.dropped} tasks were dropped"


def _shim_ports(tile: Tile) -> list[Port]:
    return [
        Port(tile, direction, index)
        for direction in get_args(Direction)
        for index in range(TILES["shim"].mm2s)
    ]
