"""Words of a configuration, decoded and compared: a small design's, damaged ones, some by hand."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from configuration_words.compare import differences
from configuration_words.decode import decode
from configuration_words.walk import walk
from every_operation import EveryOperation
from small_designs import add_worker, empty, relay

from ort_aie_ep.npu.simulator import txn
from ort_aie_ep.npu.terms.configuration import Configuration, Port, configure
from ort_aie_ep.npu.terms.design import Layout
from ort_aie_ep.npu.terms.device import Tile, device
from ort_aie_ep.npu.terms.errors import StreamError


def configured(name: str = "npu2_2col") -> Configuration:
    """With a split and a layout in a memory tile, and packets that share a shim channel."""
    design = empty(name, "configured")
    tiled = Layout(((2, 16), (4, 32), (4, 4)))
    whole = design.fifo("whole", "u8", 256, design.shim(0, 0), design.mem(0))
    parts = [
        design.fifo(f"part{r}", "u8", 128, design.mem(0, layout=tiled), design.core(0, r))
        for r in range(2)
    ]
    design.split(whole, parts)
    shared = [
        design.fifo(f"shared{r}", "u8", 64, design.shim(1, 0), design.core(1, r), packet=3 + r)
        for r in range(2)
    ]
    for i, fifo in enumerate([*parts, *shared]):
        column, row = divmod(i, 2)
        out = design.fifo(f"out{i}", "u8", 64, design.core(column, row), design.shim(column))
        add_worker(design, column, row, [fifo], [out])
    return configure(design)


@pytest.fixture
def words() -> np.ndarray:
    """What configures `configured`: the routes are this project's, and mlir-aie's tools choose
    others (`tests/mlir/test_real_words.py`)."""
    text = Path(__file__).with_name("configuration_words.txt").read_text()
    return np.array([int(word, 16) for word in text.split()], np.uint32)


def test_words_say_what_the_configuration_says(words: np.ndarray) -> None:
    assert differences(configured(), decode(words)) == []


# --- errors are found -----------------------------------------------------------------------------
def test_tokens_under_another_id_are_noticed(words: np.ndarray) -> None:
    (slot,) = (
        op
        for op in txn.decode(words).operations
        if isinstance(op, txn.Write) and op.address == 0x3F200  # the shim's control port
    )
    assert slot.value >> 24 == 15
    words[slot.offset + 4] = slot.value & 0xFFFFFF | 3 << 24
    (difference,) = differences(configured(), decode(words))
    assert "id 15" in difference


def value_places(words: np.ndarray) -> list[tuple[txn.Operation, int]]:
    """Every word that a register gets: (operation, index among its values)."""
    places: list[tuple[txn.Operation, int]] = []
    for op in txn.decode(words).operations:
        count = len(op.words) if isinstance(op, txn.BlockWrite) else 1
        places += [(op, i) for i in range(count)]
    return places


def same_meaning(op: txn.Operation, place: int, bit: int) -> bool:
    """Bits that may change without changing the meaning: in a rule, ids that nothing sends; in a
    master, a selection that no rule names; the wrap of a dimension that is the outermost, or that
    the next one outside continues."""
    assert isinstance(op, txn.Write | txn.BlockWrite | txn.MaskWrite)
    offset = op.address & 0xFFFFF
    if isinstance(op, txn.BlockWrite):
        if offset >= 0xA0000:
            return place in (2, 3, 4) and bit in range(17, 27)
        return place == 3 and bit in range(13, 29)
    if offset in range(0x3F200, 0x3F400) or offset in range(0xB0200, 0xB0400):
        return bit in range(16, 29)
    masters = offset in range(0x3F000, 0x3F060) or offset in range(0xB0000, 0xB0044)
    return masters and bit in range(3, 7)


def test_a_flipped_bit_is_noticed(words: np.ndarray) -> None:
    configuration, rng, noticed = configured(), random.Random(17), 0
    for op, place in rng.sample(value_places(words), 150):
        bit = rng.randrange(32)
        flipped = words.copy()
        flipped[op.offset + 4 + place] ^= 1 << bit
        try:
            found = bool(differences(configuration, decode(flipped)))
        except StreamError:
            found = True
        assert found or same_meaning(op, place, bit), (op, place, bit)
        noticed += found
    assert noticed > 140


def test_a_missing_operation_is_noticed(words: np.ndarray) -> None:
    operations = txn.decode(words).operations
    ends = [op.offset for op in operations[1:]] + [len(words)]
    for op, end in random.Random(3).sample(list(zip(operations, ends, strict=True)), 40):
        shorter = np.delete(words, range(op.offset, end))
        shorter[2] -= 1
        shorter[3] = 4 * len(shorter)
        try:
            found = bool(differences(configured(), decode(shorter)))
        except StreamError:
            found = True
        assert found, op


def test_configurations_are_told_apart(words: np.ndarray) -> None:
    assert len(differences(configure(relay(name="npu2_2col")), decode(words))) > 50
    (difference,) = differences(configured("npu1_2col"), decode(words))
    assert "(4, 2, 6)" in difference


@pytest.mark.parametrize(
    ("address", "value", "message"),
    [
        (0x2 << 20 | 0x3FF00, 1, "no register of a configuration is at 0x3ff00"),
        (0x2 << 20 | 0x1F000, 64, "lock 0 of core tile .* is 64"),
        (0x2 << 20 | 0x3F100, 1 << 30, "slave core 0: 0x40000000 is not a valid word"),
        (0x2 << 20 | 0x3F000, 0x80000000 | 25, "master core 0: 0x80000019 names no slave"),
        (0x2 << 20 | 0x1DE04, 1 << 20 | 0x10, "bits that a queue"),
        (0x9 << 25, 0, r"tile \(9, 0\), which does not exist"),
        (0x1F000, 2 << 10, "south 3: attached to 2, not DMA"),
    ],
)
def test_words_that_configure_nothing_known_are_refused(
    address: int, value: int, message: str
) -> None:
    out = EveryOperation(device("npu2_1col"))
    out.write(address, value)
    with pytest.raises(StreamError, match=message):
        decode(out.finish())


def circuit(out: EveryOperation, tile: int, slave: int, master: int) -> None:
    out.write(tile << 20 | 0x3F100 + 4 * slave, 1 << 31)
    out.write(tile << 20 | 0x3F000 + 4 * master, 1 << 31 | slave)


def test_a_stream_that_goes_nowhere_is_found() -> None:
    out = EveryOperation(device("npu2_1col"))
    circuit(out, 2, 1, 13)  # DMA 0 to north 0, where nothing receives it
    with pytest.raises(StreamError, match=r"core tile \(0, 3\): .* slave south 0"):
        walk(decode(out.finish()))
    circuit(out, 3, 5, 1)  # south 0 to DMA 0
    (reach,) = walk(decode(out.finish()))
    assert reach.destinations == {Port(Tile(0, 3), "S2MM", 0)}
    out.write(3 << 20 | 0x3F100 + 4 * 6, 1 << 31)  # slave south 1, which nothing reaches
    with pytest.raises(StreamError, match="no stream enters"):
        walk(decode(out.finish()))


def test_a_memory_tile_that_changes_the_number_is_refused() -> None:
    out = EveryOperation(device("npu2_1col"))
    circuit(out, 2, 1, 5)  # DMA 0 of the lowest core to south 0
    out.write(1 << 20 | 0xB0100 + 4 * 13, 1 << 31)  # slave north 0
    out.write(1 << 20 | 0xB0000 + 4 * 8, 1 << 31 | 13)  # master south 1
    with pytest.raises(StreamError, match=r"mem tile .* slave north 0"):
        walk(decode(out.finish()))
