"""The words of configurations: every design in both directions, words written by hand,
mutations."""

from __future__ import annotations

import random

import numpy as np
import pytest
from combinations import admitted
from typer.testing import CliRunner

from ort_aie_ep.aie_kernels.build import find_designs, make_design
from ort_aie_ep.cli import app
from ort_aie_ep.npu.checks.ports import Circuit, PacketMaster, PacketSwitch, Rule, Switch
from ort_aie_ep.npu.configuration_words.compare import differences
from ort_aie_ep.npu.configuration_words.decode import decode
from ort_aie_ep.npu.configuration_words.encode import encode
from ort_aie_ep.npu.configuration_words.text import format_view
from ort_aie_ep.npu.configuration_words.transaction import TransactionWriter
from ort_aie_ep.npu.configuration_words.view import LockUse, MasterView, SlaveView, SlotView
from ort_aie_ep.npu.configuration_words.walk import walk
from ort_aie_ep.npu.simulator import txn
from ort_aie_ep.npu.terms.configuration import (
    Channel,
    Configuration,
    Descriptor,
    Lock,
    Port,
    configure,
)
from ort_aie_ep.npu.terms.design import Design, Layout
from ort_aie_ep.npu.terms.device import Tile, device
from ort_aie_ep.npu.terms.errors import StreamError
from ort_aie_ep.npu.terms.switch import SwitchPort


@pytest.mark.parametrize("name", find_designs())
def test_words_say_what_the_configuration_says(name: str) -> None:
    designs = admitted(name)
    assert designs
    for design in designs:
        configuration = configure(design)
        assert differences(configuration, decode(encode(configuration))) == [], design.device.name


# --- words by hand, from aie-rt's register tables ------------------------------------------------


def one_ring(tile: Tile, descriptors: int, layout: Layout | None, packet: int | None) -> np.ndarray:
    """A design with one sending channel, whose ring has the given number of descriptors."""
    design = Design("small", device("npu2_1col"))
    peer = design.shim(0)
    design.fifo("f", "i32", 64, design.mem(0) if tile.row == 1 else design.core(0, 0), peer)
    design.fifos["f"].packet = packet
    free, filled = Lock(tile, 0, 2, "free"), Lock(tile, 1, 0, "filled")
    ring = tuple(
        Descriptor(i, 0x400 + 0x100 * i, 64, layout, filled, free) for i in range(descriptors)
    )
    configuration = Configuration(design)
    configuration.channels.append(Channel(tile, "MM2S", 1, "f", ring))
    return encode(configuration, {})


def block(words: np.ndarray, address: int) -> list[str]:
    (found,) = (
        op.words
        for op in txn.decode(words).operations
        if isinstance(op, txn.BlockWrite) and op.address == address
    )
    return [f"{word:08X}" for word in found]


def test_a_compute_tiles_descriptor() -> None:
    """64 words at byte 0x400; lock 1 at least 1, lock 0 plus 1, packet id 5."""
    words = one_ring(Tile(0, 2), 2, Layout(((4, 64), (16, 4))), 5)
    # The pattern is contiguous, so it is linear.
    assert block(words, 0x21D000) == [
        f"{64 | 0x100 << 14:08X}",
        f"{1 << 30 | 5 << 19:08X}",
        "00000000",
        "00000000",
        "00000000",
        f"{1 | 0x7F << 5 | 1 << 12 | 0 << 13 | 1 << 18 | 1 << 25 | 1 << 26 | 1 << 27:08X}",
    ]
    words = one_ring(Tile(0, 2), 1, Layout(((4, 16), (4, 64), (4, 4))), None)
    found = block(words, 0x21D000)
    # Four adjacent words, four such groups 16 words apart, and all that four times, each 4 words
    # on.
    assert found[1:4] == ["00000000", f"{15 << 13:08X}", f"{3 | 4 << 13 | 4 << 21:08X}"]
    # A ring's only descriptor is followed by itself.
    assert int(found[5], 16) >> 26 == 1


def test_a_memory_tiles_descriptor() -> None:
    """In its DMA's view, its own memory begins at word 0x20000 and its own locks at 64."""
    words = one_ring(Tile(0, 1), 2, Layout(((4, 16), (4, 64), (4, 4))), 5)
    assert block(words, 0x1A0020) == [
        f"{64 | 5 << 23 | 1 << 31:08X}",
        f"{0x20000 + 0x500 // 4 | 1 << 19 | 0 << 20:08X}",
        f"{0 | 4 << 17:08X}",
        f"{15 | 4 << 17:08X}",
        f"{3 | 4 << 17:08X}",
        "00000000",
        "00000000",
        f"{65 | 0x7F << 8 | 1 << 15 | 64 << 16 | 1 << 24 | 1 << 31:08X}",
    ]


def test_switches_and_queues() -> None:
    words = TransactionWriter(device("npu2_1col"))
    design = Design("small", device("npu2_1col"))
    north, dma = SwitchPort("north", 0), SwitchPort("dma", 1)
    switch = Switch(
        (Circuit(SwitchPort("south", 2), (north,)),),
        (
            PacketSwitch(
                SwitchPort("south", 3), 2, (Rule(4, 0x1C, 0), Rule(3, 0x1F, 1)),
                (
                    PacketMaster(SwitchPort("north", 1), frozenset({0, 1}), drop_header=False),
                    PacketMaster(dma, frozenset({1}), drop_header=True),
                ),
            ),
        ),
    )  # fmt: skip
    words = encode(Configuration(design), {Tile(0, 2): switch})
    written = {
        op.address: f"{op.value:08X}"
        for op in txn.decode(words).operations
        if isinstance(op, txn.Write)
    }
    assert written == {
        0x23F11C: "80000000",  # slave south 2, number 7
        0x23F034: "80000007",  # master north 0, number 13, takes slave 7
        0x23F120: "C0000000",  # slave south 3, number 8
        0x23F280: "041C0102",  # its slots: id 4 of mask 11100, arbiter 2, selection 0
        0x23F284: "031F0112",
        0x23F038: "C000001A",  # master north 1: selections 0 and 1 of arbiter 2
        0x23F008: "C0000092",  # master DMA 1: selection 1, without header
    }
    tile = decode(words).tiles[Tile(0, 2)]
    assert tile.masters[north] == MasterView(SwitchPort("south", 2))
    assert tile.masters[dma] == MasterView(None, 2, frozenset({1}), drop_header=True)
    assert tile.slaves[SwitchPort("south", 3)] == SlaveView(
        True, (SlotView(4, 0x1C, 2, 0), SlotView(3, 0x1F, 2, 1))
    )


def test_cores_are_reset_and_let_go_and_rings_started() -> None:
    configuration = configure(make_design("dequant", device("npu2_1col")))
    control = [
        (op.value, op.mask)
        for op in txn.decode(encode(configuration)).operations
        if isinstance(op, txn.MaskWrite) and op.address == 0x232000
    ]
    assert control == [(2, 2), (0, 2), (1, 1)]
    view = decode(encode(configuration)).tiles[Tile(0, 2)]
    assert (view.core, view.was_reset) == ("on", True)
    first = view.descriptors[view.queues["S2MM", 0][0].descriptor]
    assert first.acquire == LockUse(0, -1)


def test_words_that_mlir_aie_makes() -> None:
    """Words of dequant on npu2_1col, printed and run through aie-opt and aie-translate of mlir-aie
    7e00b579 with aie-rt e2aca220. `tests/mlir/test_real_words.py` compares all words where the
    tools are installed."""
    words = encode(configure(make_design("dequant", device("npu2_1col"))))
    core, memory = " ".join(block(words, 0x21D000)), " ".join(block(words, 0x1A0000))
    assert core == "00800500 00000000 00000000 00000000 00000000 0E043FE0"
    assert memory == "00000500 001A0000 00000000 00000000 00000000 00000000 00000000 8141FF40"
    writes = {
        (op.address, op.value) for op in txn.decode(words).operations if isinstance(op, txn.Write)
    }
    # A queue and its channel, locks, the demultiplexed south, and the slot and master of tokens,
    # except arbiter and selection.
    assert {(0x21DE04, 0), (0x21DE00, 1), (0x21DE14, 2), (0x21DE10, 1), (0x21F000, 2)} <= writes
    assert {(0x3F100, 0xC0000000), (0x3F200, 0x0F1F0100), (0x3F008, 0xC0000008)} <= writes


# --- errors are found -----------------------------------------------------------------------------
def test_tokens_under_another_id_are_noticed() -> None:
    configuration = configure(make_design("dequant", device("npu2_1col")))
    words = encode(configuration)
    (slot,) = (
        op
        for op in txn.decode(words).operations
        if isinstance(op, txn.Write) and op.address == 0x3F200  # the shim's control port
    )
    assert slot.value >> 24 == 15
    words[slot.offset + 4] = slot.value & 0xFFFFFF | 3 << 24
    (difference,) = differences(configuration, decode(words))
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


@pytest.mark.parametrize(
    "name", ["dequant", *(pytest.param(n, marks=pytest.mark.in_turn) for n in ("flow_kv", "gemm"))]
)
def test_a_flipped_bit_is_noticed(name: str) -> None:
    small = "npu2_2col" if name == "flow_kv" else "npu2_1col"
    configuration = configure(make_design(name, device(small)))
    words = encode(configuration)
    places = value_places(words)
    rng = random.Random(17)
    noticed = 0
    for op, place in rng.sample(places, 150):
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


@pytest.mark.parametrize("name", ["dequant", "flow_kv"])
def test_a_missing_operation_is_noticed(name: str) -> None:
    configuration = configure(make_design(name, device("npu2_2col")))
    words = encode(configuration)
    operations = txn.decode(words).operations
    ends = [op.offset for op in operations[1:]] + [len(words)]
    for op, end in random.Random(3).sample(list(zip(operations, ends, strict=True)), 40):
        shorter = np.delete(words, range(op.offset, end))
        shorter[2] -= 1
        shorter[3] = 4 * len(shorter)
        try:
            found = bool(differences(configuration, decode(shorter)))
        except StreamError:
            found = True
        assert found, op


def test_configurations_are_told_apart() -> None:
    words = encode(configure(make_design("dequant", device("npu2_2col"))))
    other = configure(make_design("gemm", device("npu2_2col")))
    assert len(differences(other, decode(words))) > 50
    elsewhere = configure(make_design("dequant", device("npu1_2col")))
    (difference,) = differences(elsewhere, decode(words))
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
    out = TransactionWriter(device("npu2_1col"))
    out.write(address, value)
    with pytest.raises(StreamError, match=message):
        decode(out.finish())


def circuit(out: TransactionWriter, tile: int, slave: int, master: int) -> None:
    out.write(tile << 20 | 0x3F100 + 4 * slave, 1 << 31)
    out.write(tile << 20 | 0x3F000 + 4 * master, 1 << 31 | slave)


def test_a_stream_that_goes_nowhere_is_found() -> None:
    out = TransactionWriter(device("npu2_1col"))
    circuit(out, 2, 1, 13)  # DMA 0 to north 0, where nothing receives it
    with pytest.raises(StreamError, match=r"core tile \(0, 3\): .* slave south 0"):
        walk(decode(out.finish()))
    circuit(out, 3, 5, 1)  # south 0 to DMA 0
    (reach,) = walk(decode(out.finish()))
    assert reach.destinations == {Port(Tile(0, 3), "S2MM", 0)}


def test_a_memory_tile_that_changes_the_number_is_refused() -> None:
    out = TransactionWriter(device("npu2_1col"))
    circuit(out, 2, 1, 5)  # DMA 0 of the lowest core to south 0
    out.write(1 << 20 | 0xB0100 + 4 * 13, 1 << 31)  # slave north 0
    out.write(1 << 20 | 0xB0000 + 4 * 8, 1 << 31 | 13)  # master south 1
    with pytest.raises(StreamError, match=r"mem tile .* slave north 0"):
        walk(decode(out.finish()))


def test_text_names_fifos_locks_and_ends() -> None:
    configuration = configure(make_design("flow_kv", device("npu2_2col")))
    text = format_view(decode(encode(configuration)), configuration)
    for stream in configuration.streams:
        assert f"({stream.fifo}): " in text
    assert "NPU2, 2 columns, 6 rows" in text
    for lock in configuration.locks:
        assert f"lock {lock.id} = {lock.initial} ({lock.name})" in text


def test_the_command_shows_words_and_what_they_say() -> None:
    def ort_aie(*words: str) -> str:
        result = CliRunner().invoke(app, ["kernels", "words", *words])
        assert result.exit_code == 0, result.output
        return result.output

    where = ("fused_dqp", "--device", "npu2", "--columns", "2")
    configuration = configure(make_design("fused_dqp", device("npu2"), columns=2))
    words = [int(word, 16) for word in ort_aie(*where, "--raw").split()]
    assert differences(configuration, decode(words)) == []
    assert ort_aie(*where).rstrip("\n") == format_view(decode(words), configuration)
