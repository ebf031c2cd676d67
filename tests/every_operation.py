"""Writes TXN binaries for tests, word by word (mlir-aie's TxnEncoding.h, aie-rt's xaie_txn.h)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ort_aie_ep.npu.terms.device import Device


class EveryOperation:
    """Appends operations; `finish` returns the words, header included."""

    def __init__(self, device: Device) -> None:
        self._head = [
            device.rows << 24 | device.generation << 16 | 1 << 8,
            1 << 8 | device.columns,  # one row of memory tiles
        ]
        self._body: list[int] = []
        self._operations = 0

    def finish(self) -> npt.NDArray[np.uint32]:
        """The words of the transaction."""
        size = 4 * (len(self._body) + 4)
        return np.array([*self._head, self._operations, size, *self._body], dtype=np.uint32)

    def write(self, address: int, value: int) -> None:
        """Write `value` to the register at `address`."""
        self._add(0, 0, address, 0, value, 0x18)

    def _add(self, *words: int) -> None:
        self._body += words
        self._operations += 1
