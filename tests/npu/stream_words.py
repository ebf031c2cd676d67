"""Instruction streams written by hand from aie-rt's tables, for tests of the simulator alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

QUEUES = {("S2MM", 0): 0x1D204, ("S2MM", 1): 0x1D20C, ("MM2S", 0): 0x1D214, ("MM2S", 1): 0x1D21C}


@dataclass
class Words:
    """A TXN 0.1 stream to which operations are added."""

    generation: int = 4
    columns: int = 1
    operations: list[list[int]] = field(default_factory=list)

    def write(self, column: int, row: int, offset: int, value: int) -> None:
        address = column << 25 | row << 20 | offset
        self.operations.append([0, 0, address, 0, value & 0xFFFFFFFF, 0x18])

    def descriptor(
        self,
        column: int,
        number: int,
        words: int,
        *,
        dimensions: list[tuple[int, int]] | None = None,
        packet: int | None = None,
        valid: bool = True,
        acquire: tuple[int, int] | None = None,
        following: int | None = None,
    ) -> None:
        """Descriptor of `words` words; `dimensions` (count, step in words), innermost first;
        `acquire` (lock, signed value); `following` the next descriptor."""
        bd = [words, 0, 0, 0, 0x80000000, 2 << 24, 0, int(valid) << 25]
        if acquire is not None:
            bd[7] |= 1 << 12 | (acquire[1] & 0x7F) << 5 | acquire[0]
        if following is not None:
            bd[7] |= 1 << 26 | following << 27
        if packet is not None:
            bd[2] = 1 << 30 | packet << 19
        for i, (count, step) in enumerate(dimensions or []):
            bd[3 + i] |= (step - 1) | (count << 20 if i < 2 else 0)
        address = column << 25 | 0x1D000 + 0x20 * number
        self.operations.append([1, 0, address, 16 + 32, *bd])

    def patch(self, column: int, number: int, argument: int, offset: int = 0) -> None:
        address = column << 25 | 0x1D000 + 0x20 * number + 4
        plus = offset + (0x80000000 if argument >= 5 else 0)
        self.operations.append([0x81, 0x30, 0, 0, 0, 0, address, 0, argument, 0, plus, 0])

    def push(
        self,
        column: int,
        channel: tuple[str, int],
        number: int,
        *,
        runs: int = 1,
        token: bool = False,
    ) -> None:
        self.write(column, 0, QUEUES[channel], number | (runs - 1) << 16 | int(token) << 31)

    def move(
        self, column: int, channel: tuple[str, int], number: int, words: int, argument: int,
        offset: int = 0, *, token: bool = False, packet: int | None = None,
        dimensions: list[tuple[int, int]] | None = None,
    ) -> None:  # fmt: skip
        """The descriptor, patch and push of one transfer."""
        self.descriptor(column, number, words, dimensions=dimensions, packet=packet)
        self.patch(column, number, argument, offset)
        self.push(column, channel, number, token=token)

    def mask_write(self, column: int, offset: int, value: int, mask: int) -> None:
        self.operations.append([3, 0, column << 25 | offset, 0, value, mask, 0x1C])

    def wait(self, column: int, channel: tuple[str, int]) -> None:
        direction, index = channel
        self.operations.append(
            [0x80, 0x10, int(direction == "MM2S") | column << 16, 1 << 8 | 1 << 16 | index << 24]
        )

    def words(self) -> npt.NDArray[np.uint32]:
        body = [word for operation in self.operations for word in operation]
        header = [
            6 << 24 | self.generation << 16 | 1 << 8,
            1 << 8 | self.columns,
            len(self.operations),
            16 + 4 * len(body),
        ]
        return np.array(header + body, dtype=np.uint32)
