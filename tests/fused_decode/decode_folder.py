"""A folder as mlir-air's `make compile-decode` writes it, with made-up overlays.

This library encodes the words, task by task from facts about the design: each column's share of a
phase of weights through its own shim channels, each half of a share as a task; norms, keys and
values as one task; logits chunk by chunk; and for every layer the length for eight attention cores
and the place of the token's row in four regions.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sizes import BLOCK, PHASES, SIZES

from ort_aie_ep import _npu

Operation = tuple[Any, ...]

HIDDEN = {  # x, layers, rows in a chunk of the LM head, KV heads of a group, head_dim, group
    "llama-3.2-1b": (2048, 16, 18_432, 4, 64, 0),
    "gemma3-4b": (2560, 34, 2_560, 2, 256, 0),
    "qwen3-8b": (4096, 36, 8_192, 4, 128, 9),
}
_SHIMS = (0, 1, 6, 7)  # columns of cores that multiply
_QUEUES = {("S2MM", 0): 0x1D204, ("S2MM", 1): 0x1D20C, ("MM2S", 0): 0x1D214, ("MM2S", 1): 0x1D21C}
_ATTENTION = [(3, row) for row in (2, 3, 4, 5)] + [(4, row) for row in (2, 3, 4, 5)]


@dataclass
class DecodeFolder:
    """The folder's contents; each test changes one thing."""

    path: Path
    model: str = "llama-3.2-1b"
    windows: tuple[int, ...] = (2048,)
    channels: int = 2
    head_rows: int = 0  # in a chunk; 0: the model's number
    layers: int = 0
    kernel: str = "MLIR_AIE"
    flags: str | None = None
    stamp: str | None = None
    _bd: dict[int, int] = field(default_factory=dict)

    def write(self) -> Path:
        self.path.mkdir(parents=True, exist_ok=True)
        for window in self.windows:
            for length in (window, window - 1):
                self.words(length).tofile(self.path / f"decode_L{length}.insts.bin")
                (self.path / f"decode_L{length}.xclbin").write_bytes(xclbin(self.kernel))
        group = HIDDEN[self.model][5]
        flags = f"W_DUAL_CHAN={self.channels - 1}" + (f" DECODE_WGROUP={group}" if group else "")
        (self.path / ".decode_flags").write_text((self.flags or flags) + "\n")
        if self.stamp is not None or len(self.windows) > 1:
            stamp = self.stamp or " ".join(map(str, self.windows))
            (self.path / ".decode_windows").write_text(stamp + "\n")
        return self.path

    def words(self, length: int) -> npt.NDArray[np.uint32]:
        return _npu.encode(4, 6, 8, list(self.operations(length)))

    def operations(self, length: int) -> Iterator[Operation]:
        self._bd.clear()
        positions = (length + 15) // 16 * 16
        hidden, layers, head_rows, heads, dim, group = HIDDEN[self.model]
        layers = self.layers or layers
        weights, rms, _, before_logits, _ = SIZES[self.model]
        rows, columns, _ = PHASES[self.model]
        region = positions * heads * dim * 2
        logits = 2 * before_logits
        yield from self.task(2, "MM2S", 0, 0, 0, 2 * hidden)
        yield from self.task(2, "MM2S", 1, 2, 0, 2 * rms)
        at = 0
        for layer in range(layers):
            for column, row in _ATTENTION:
                yield "write", _npu.register(column, row, 0x400), length
            argument = 1 if not group or layer < group else 4 + layer // group
            if group and layer % group == 0:
                at = 0
            for n, k in zip(rows, columns, strict=True):
                yield from self.shares(argument, at, n * k * BLOCK)
                at += n * k * BLOCK
            for part in range(4):
                place = (4 * layer + part) * region
                row_of_token = place + (length - 1) * heads * dim * 2
                yield from self.task(2, "S2MM", part // 2, 4, row_of_token, heads * dim * 2)
                yield from self.task(3 + part // 2, "MM2S", part % 2, 4, place, region)
        if group:
            argument, at = 4 + len(weights) - 1, 0
        chunk = self.head_rows or head_rows
        for _ in range(weights_of_head(self.model) // (chunk * hidden // 8192 * BLOCK)):
            yield from self.shares(argument, at, chunk * hidden // 8192 * BLOCK)
            yield from self.task(2, "S2MM", 0, 3, logits, 2 * chunk)
            at += chunk * hidden // 8192 * BLOCK
            logits += 2 * chunk

    def shares(self, argument: int, at: int, size: int) -> Iterator[Operation]:
        share = size // 4
        for cx, shim in enumerate(_SHIMS):
            for task in range(4):  # two for each of two channels, or four for one
                channel = task // 2 if self.channels == 2 else 0
                place = at + cx * share + task * share // 4
                yield from self.task(shim, "MM2S", channel, argument, place, share // 4)

    def task(
        self, shim: int, direction: str, channel: int, argument: int, at: int, size: int
    ) -> Iterator[Operation]:
        number = self._bd[shim] = (self._bd.get(shim, -1) + 1) % 16
        descriptor = _npu.register(shim, 0, 0x1D000 + 0x20 * number)
        yield "block_write", descriptor, [size // 4, 0, 0, 0, 0x80000000, 2 << 24, 0, 1 << 25]
        yield "address_patch", descriptor + 4, argument, at
        yield "write", _npu.register(shim, 0, _QUEUES[direction, channel]), number


def weights_of_head(model: str) -> int:
    """Bytes of the LM head."""
    weights = SIZES[model][0]
    elements = weights[-1] if len(weights) > 1 else weights[0] - HIDDEN[model][1] * PHASES[model][2]
    return 2 * elements


def xclbin(kernel: str) -> bytes:
    """An axlf header with a made-up UUID and the XML in which XRT finds kernels."""
    xml = f'<project><kernel name="{kernel}" language="c" type="dpu"/></project>'.encode()
    head = bytearray(456 + 40)
    head[:8] = b"xclbin2\0"
    head[416:432] = uuid.uuid5(uuid.NAMESPACE_OID, kernel).bytes
    struct.pack_into("<Q", head, 304, len(head) + len(xml))
    struct.pack_into("<I", head, 448, 1)
    struct.pack_into("<I16s4xQQ", head, 456, 2, b"metadata", len(head), len(xml))
    return bytes(head) + xml
