"""The arguments of a sequence as the buffers of a run: a run has few buffers, a layer many
arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

RUN_BUFFERS = 5  # that a run has at most (src/npu/stream.h, kRunBuffers)
PAGE = 4096  # bytes: the alignment of arguments in one buffer


def together(sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """(buffer 0, byte offset) of each argument, by their sizes in bytes: one after another."""
    ends = np.cumsum([0, *map(_pages, sizes.values())])
    return {name: (0, int(end)) for name, end in zip(sizes, ends, strict=False)}


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


@dataclass(frozen=True)
class RunBuffers:
    """Arguments, by name, and the buffers of their run.

    `arrays` are the arguments themselves, or a single copy of them all if a run has not so many
    buffers. `places` has (buffer, byte offset) of each argument.
    """

    arguments: Mapping[str, NDArray[Any]]
    arrays: tuple[NDArray[Any], ...]
    places: Mapping[str, tuple[int, int]]

    @classmethod
    def of(cls, arguments: Mapping[str, NDArray[Any]]) -> RunBuffers:
        """The buffers for contiguous `arguments`."""
        if len(arguments) <= RUN_BUFFERS:
            places = {name: (i, 0) for i, name in enumerate(arguments)}
            return cls(arguments, tuple(arguments.values()), places)
        sizes = {name: array.nbytes for name, array in arguments.items()}
        made = cls(arguments, (np.zeros(sum(map(_pages, sizes.values())), np.uint8),),
                   together(sizes))  # fmt: skip
        for name, array in arguments.items():
            made._bytes(made.arrays[0], name)[:] = array.reshape(-1).view(np.uint8)
        return made

    def unpack(self, after: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The arguments in the contents of the buffers after a run."""
        if len(after) == len(self.arguments):
            return dict(zip(self.arguments, after, strict=True))
        return {
            name: self._bytes(after[0], name).view(array.dtype).reshape(array.shape)
            for name, array in self.arguments.items()
        }

    def _bytes(self, buffer: NDArray[Any], name: str) -> NDArray[Any]:
        start = self.places[name][1]
        return buffer[start : start + self.arguments[name].nbytes]
