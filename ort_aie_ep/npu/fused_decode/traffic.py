"""The transfers between a run's buffers and the array that a stream of words describes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ort_aie_ep.npu.simulator.registers import (
    QueuePush,
    ShimDescriptor,
    shim_descriptor_of,
    shim_queue_of,
)
from ort_aie_ep.npu.simulator.txn import AddressPatch, BlockWrite, InstructionStream, Write
from ort_aie_ep.npu.terms.configuration import Direction
from ort_aie_ep.npu.terms.errors import StreamError

_DESCRIPTOR_WORDS = 8
_MOST_CHAINED = 16  # descriptors of a shim


@dataclass(frozen=True, slots=True)
class Task:
    """A descriptor that a channel was told to run: bytes [first, end) of buffer `argument`.

    The range has gaps unless the descriptor is `linear`.
    """

    column: int
    direction: Direction
    channel: int
    argument: int
    first: int
    end: int
    linear: bool

    @property
    def port(self) -> tuple[int, int]:
        """The column and the channel."""
        return self.column, self.channel


@dataclass(slots=True)
class _Descriptor:
    words: list[int]
    patch: AddressPatch | None = None


def tasks_of(stream: InstructionStream) -> Iterator[Task]:
    """The tasks of all shim channels, in the order of the stream.

    Raises StreamError for a task whose descriptor was not written, or has no buffer.
    """
    descriptors: dict[tuple[int, int], _Descriptor] = {}

    def store(address: int, words: tuple[int, ...]) -> None:
        for at, word in enumerate(words):
            place = shim_descriptor_of(address + 4 * at)
            if place is None:
                continue
            column, number, index = place
            known = descriptors.setdefault((column, number), _Descriptor([0] * _DESCRIPTOR_WORDS))
            known.words[index] = word
            if index == 1:
                known.patch = None

    for operation in stream.operations:
        match operation:
            case BlockWrite():
                store(operation.address, operation.words)
            case AddressPatch():
                place = shim_descriptor_of(operation.address)
                if place is None or place[:2] not in descriptors:
                    raise StreamError(
                        f"operation {operation.index} patches {operation.address:#x}, which is not "
                        "the address of a descriptor that the stream has written"
                    )
                descriptors[place[:2]].patch = operation
            case Write():
                channel = shim_queue_of(operation.address)
                if channel is None:
                    store(operation.address, (operation.value,))
                    continue
                push = QueuePush.from_word(operation.value)
                number: int | None = push.descriptor
                for _ in range(_MOST_CHAINED):
                    if number is None:
                        break
                    known = descriptors.get((channel.column, number))
                    if known is None or known.patch is None:
                        raise StreamError(
                            f"operation {operation.index} starts descriptor {number} of shim "
                            f"{channel.column}, which has no buffer"
                        )
                    bd = ShimDescriptor.from_words(known.words)
                    yield _task(
                        (channel.column, channel.direction, channel.channel), bd, known.patch,
                        push.runs,
                    )  # fmt: skip
                    number = bd.next


def _task(
    where: tuple[int, Direction, int], bd: ShimDescriptor, patch: AddressPatch, runs: int
) -> Task:
    first = bd.address + patch.buffer_offset
    length = 4 + sum((count - 1) * step for count, step in bd.dimensions)
    rounds = min(runs, bd.iteration_count)
    moved = 4 * bd.length * rounds
    end = first + length + (rounds - 1) * bd.iteration_step
    return Task(*where, patch.argument, first, end, linear=end - first == moved)
