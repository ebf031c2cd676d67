"""The words of streams: published ones, the C++ encoder and the Python decoder."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ort_aie_ep import _npu
from ort_aie_ep.npu.simulator.registers import (
    QueuePush,
    ShimDescriptor,
    shim_descriptor_of,
    split_address,
)
from ort_aie_ep.npu.simulator.txn import (
    AddressPatch,
    BlockWrite,
    InstructionStream,
    MaskWrite,
    Other,
    Wait,
    Write,
    decode,
)
from ort_aie_ep.npu.terms.errors import StreamError


def words_of(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def listed(stream: InstructionStream) -> list[tuple[object, ...]]:
    """The operations as the C++ encoder takes them."""
    found: list[tuple[object, ...]] = []
    for op in stream.operations:
        match op:
            case Write():
                found.append(("write", op.address, op.value))
            case MaskWrite():
                found.append(("mask_write", op.address, op.value, op.mask))
            case BlockWrite():
                found.append(("block_write", op.address, list(op.words)))
            case Wait():
                where = (op.column, op.row, op.direction, op.channel, op.columns, op.rows)
                found.append(("wait", *where))
            case AddressPatch():
                found.append(("address_patch", op.address, op.argument, op.buffer_offset))
    return found


def encode(stream: InstructionStream) -> np.ndarray:
    """Passes a decoded stream through the C++ encoder."""
    header = stream.header
    return _npu.encode(header.generation, header.rows, header.columns, listed(stream))


# --- published words ------------------------------------------------------------------------------

# From Xilinx/mlir-aie, test/Targets/NPU: npu2_1col_header, npu2_instgen_multiple_devices, and
# npu2_instgen without its preemption point, which the encoder does not write.
EMPTY = "06040100 00000101 00000000 00000010"
ONE_WRITE = (
    "06040100 00000108 00000001 00000028 00000000 00000000 04240404 00000000 04040404 00000018"
)
INSTGEN_OPERATIONS = """
    00000000 00000000 06400DEF 00000000 00000042 00000018
    00000000 00000000 ABC00DEF 00000000 00000314 00000018
    00000001 00000000 12345679 00000030
    00000064 00000065 00000066 00000067 00000068 00000069 0000006A 0000006B
    00000001 {tile} 02100064 00000030
    00000064 00000065 00000066 00000067 00000068 00000069 0000006A 0000006B
    00000003 00000000 0430567A 00000000 00001001 F00FF00F 0000001C
    00000080 00000010 00030401 05010200
"""
INSTGEN = "06040100 00000108 00000007 000000D0" + INSTGEN_OPERATIONS.format(tile="00000101")
PREEMPT = " 00000306"

# From nod-ai/iree-amd-aie, Transforms/test/controlcode_to_transaction.mlir.
ADDRESS_PATCH = """
    06030100 00000105 00000001 00000040 00000081 00000030 00000000 00000000
    00000000 00000000 0001D004 00000000 00000000 00000000 00000000 00000000
"""
PUSH_OF_64_RUNS = """
    06030100 00000105 00000001 00000028 00000000 00000000 0601D21C 00000000 003F0002 00000018
"""
PUSH_AND_WAIT = """
    06030100 00000105 00000002 00000038 00000000 00000000 0401D214 00000000 80FF000F 00000018
    00000080 00000010 00020001 00010100
"""
PUSHES_AND_ONE_WAIT = """
    06030100 00000105 00000005 00000080
    00000000 00000000 0001D214 00000000 80000000 00000018
    00000000 00000000 0201D214 00000000 80000000 00000018
    00000000 00000000 0401D214 00000000 80000000 00000018
    00000000 00000000 0601D214 00000000 80000000 00000018
    00000080 00000010 00000001 00040100
"""
DESCRIPTOR = """
    06030100 00000105 00000001 00000040 00000001 00000000 0201D040 00000030
    00000400 00000020 40080000 01000000 81000007 0000003F 00000000 02000000
"""
# The same push as written by an older aie-rt: the first word has stray bytes.
STRAY_BYTES = (
    "06030100 00000104 00000001 00000028 00140000 00000000 0001D214 00000000 00000000 00000018"
)


@pytest.mark.parametrize(
    "golden",
    [EMPTY, ONE_WRITE, ADDRESS_PATCH, PUSH_OF_64_RUNS, PUSH_AND_WAIT, PUSHES_AND_ONE_WAIT,
     DESCRIPTOR],
)  # fmt: skip
def test_published_words_are_encoded_as_they_are(golden: str) -> None:
    words = words_of(golden)
    np.testing.assert_array_equal(encode(decode(words)), np.array(words, dtype=np.uint32))


def test_every_operation_of_a_published_stream_is_encoded_as_it_is() -> None:
    words = words_of(INSTGEN + PREEMPT)
    # mlir-aie repeats a block write's tile in its second word if it was given one; otherwise it
    # leaves that word zero, as the encoder does. One operation and one word fewer.
    head = "06040100 00000108 00000006 000000CC"
    expected = words_of(head + INSTGEN_OPERATIONS.format(tile="00000000"))
    np.testing.assert_array_equal(encode(decode(words)), np.array(expected, dtype=np.uint32))


def test_published_stream_is_decoded() -> None:
    stream = decode(words_of(INSTGEN + PREEMPT), device_generation=4)
    assert (stream.header.columns, stream.header.rows) == (8, 6)
    data = tuple(range(100, 108))
    assert stream.operations == (
        Write(0, 4, 0x06400DEF, 0x42),
        Write(1, 10, 0xABC00DEF, 0x314),
        BlockWrite(2, 16, 0x12345679, data),
        BlockWrite(3, 28, 0x02100064, data),
        MaskWrite(4, 40, 0x0430567A, 0x1001, 0xF00FF00F),
        Wait(5, 47, column=3, row=4, columns=1, rows=2, direction="MM2S", channel=5),
        Other(6, 51, "PREEMPT", (0x306,)),
    )


def test_stray_bytes_beside_the_opcode_are_passed_over() -> None:
    stream = decode(words_of(STRAY_BYTES))
    assert stream.operations == (Write(0, 4, 0x1D214, 0),)
    assert QueuePush.from_word(0) == QueuePush(descriptor=0, runs=1, token=False)
    # The encoder says the same with clean words.
    assert decode(encode(stream)) == stream


def test_published_operations_that_are_only_read() -> None:
    # From mlir-aie's npu_instgen and npu_read_reg_instgen.
    pdi = decode(words_of("06030100 00000104 1 20 00020008 00000400 12345678 00000ABC"))
    assert pdi.operations == (Other(0, 4, "LOADPDI", (0x20008, 0x400, 0x12345678, 0xABC)),)
    read = decode(words_of("06040100 00000108 1 20 00000082 00000010 00000001 04300100"))
    assert read.operations == (Other(0, 4, "READ_REGS", (0x82, 16, 1, 0x04300100)),)


# From mlir-aie's npu_address_patch_arg_plus_64bit and npu_address_patch_ddr_offset.
@pytest.mark.parametrize(
    ("argument", "offset", "low", "high"),
    [
        (0, 0xFFFFFFFF, 0xFFFFFFFF, 0),
        (0, 1 << 32, 0, 1),
        (0, (8 << 30) + 0x100, 0x100, 2),
        (4, 0x100, 0x100, 0),
        (5, 0x100, 0x80000100, 0),
    ],
)
def test_address_patch_has_64_bits_and_the_aperture_from_argument_5_on(
    argument: int, offset: int, low: int, high: int
) -> None:
    words = _npu.encode(4, 6, 8, [("address_patch", 0x12340, argument, offset)])
    assert words[10:].tolist() == [0x12340, 0, argument, 0, low, high]
    (patch,) = decode(words).operations
    assert isinstance(patch, AddressPatch)
    assert (patch.argument, patch.buffer_offset) == (argument, offset)


def test_encoder_keeps_20_bits_of_an_offset() -> None:
    # As in npu2_instgen_multiple_devices: 0x04040404 within tile (2, 2).
    assert _npu.register(2, 2, 0x04040404) == 0x04240404
    assert split_address(0x04240404) == (2, 2, 0x40404)


# --- descriptors ----------------------------------------------------------------------------------


def test_published_descriptors_are_decoded() -> None:
    # DESCRIPTOR: sizes 4, 16, 16 with strides 64, 8, 1 words and packet id 1.
    (op,) = decode(words_of(DESCRIPTOR)).operations
    assert isinstance(op, BlockWrite)
    assert shim_descriptor_of(op.address) == (1, 2, 0)
    bd = ShimDescriptor.from_words(op.words)
    assert (bd.length, bd.address) == (1024, 32)
    assert bd.dimensions == ((4, 256), (16, 32), (16, 4))
    assert (bd.packet_enabled, bd.packet_id, bd.packet_type) == (True, 1, 0)
    assert (bd.burst, bd.valid, bd.next, bd.iteration_count) == (2, True, None, 1)
    # mlir-aie's dma_to_npu_iter_repeat: 64 words, four iterations of a step of 64 words.
    words = [64, 0, 0, 0, 0x80000000, 33554432, 3145791, 33554432]
    bd = ShimDescriptor.from_words(words)
    assert bd.dimensions == ((64, 4),)
    assert (bd.iteration_count, bd.iteration_step, bd.iteration_current) == (4, 256, 0)
    assert (bd.ax_cache, bd.packet_enabled) == (2, False)
    # mlir-aie's dma_to_npu: packet id 2 of type 3.
    words[2] = 1074987008
    bd = ShimDescriptor.from_words(words)
    assert (bd.packet_enabled, bd.packet_id, bd.packet_type) == (True, 2, 3)


def test_every_bit_of_a_descriptor_is_in_one_field() -> None:
    # Lock values and the next descriptor count only if they are enabled or not zero.
    words = [0] * 7 + [1 << 12 | 1 << 18 | 1 << 26]
    reference = ShimDescriptor.from_words(words)
    unused = {(1, 0), (1, 1), (2, 31), (3, 31), (7, 4), (7, 17)}
    seen = set()
    for word in range(8):
        for bit in range(32):
            changed = ShimDescriptor.from_words(
                [value ^ (1 << bit if i == word else 0) for i, value in enumerate(words)]
            )
            fields = [
                name
                for name in ShimDescriptor.__slots__
                if getattr(changed, name) != getattr(reference, name)
            ]
            assert len(fields) == (0 if (word, bit) in unused else 1), (word, bit, fields)
            seen.update(fields)
    assert seen == set(ShimDescriptor.__slots__)


def test_lock_values_are_signed() -> None:
    # mlir-aie's descriptors acquire with -1 and release with +1.
    bd = ShimDescriptor.from_words([0] * 7 + [3 | 0x7F << 5 | 1 << 12 | 4 << 13 | 1 << 18])
    assert bd.acquire is not None
    assert (bd.acquire.id, bd.acquire.value) == (3, -1)
    assert bd.release is not None
    assert (bd.release.id, bd.release.value) == (4, 1)


def test_wraps_that_do_not_divide_the_length_leave_the_last_round_open() -> None:
    bd = ShimDescriptor.from_words([10, 0, 0, 4 << 20, 2 << 20 | 7, 15, 0, 1 << 25])
    assert bd.dimensions == ((2, 64), (2, 32), (4, 4))


def test_malformed_descriptors_and_pushes_are_refused() -> None:
    with pytest.raises(StreamError, match="8 words, found 6"):
        ShimDescriptor.from_words([0] * 6)
    with pytest.raises(StreamError, match="runs - 1 in 23:16"):
        QueuePush.from_word(0x10)


# --- version 1.0 and text -------------------------------------------------------------------------


def test_short_layouts_of_version_1_0() -> None:
    header = [0x06030001, 0x104, 6]
    body = words_of("0 1D214 5  3 1D210 F00 F00  4 1D220 0 400000  1 1D000 14 7 8")
    body += words_of("81 18 1D004 2 10 1  80 10 1 10100")
    stream = decode([*header, 4 * (4 + len(body)), *body])
    assert stream.operations == (
        Write(0, 4, 0x1D214, 5),
        MaskWrite(1, 7, 0x1D210, 0xF00, 0xF00),
        Other(2, 11, "MASKPOLL", (4, 0x1D220, 0, 0x400000)),
        BlockWrite(3, 15, 0x1D000, (7, 8)),
        AddressPatch(4, 20, 0x1D004, 2, (1 << 32) + 0x10),
        Wait(5, 26, column=0, row=0, columns=1, rows=1, direction="MM2S", channel=0),
    )


def test_long_address_patch_in_version_1_0() -> None:
    long = words_of("81 30 0 0 0 0 1D004 0 3 0 40 0")
    stream = decode([0x06030001, 0x104, 1, 64, *long])
    assert stream.operations == (AddressPatch(0, 4, 0x1D004, 3, 0x40),)


def test_padded_masked_operations_advance_by_their_size() -> None:
    poll = words_of("7 0 1D220 0 0 400000 20 0")
    write = words_of("0 0 1D214 0 0 18")
    stream = decode([0x06030100, 0x104, 2, 4 * 18, *poll, *write])
    first, second = stream.operations
    assert first == Other(0, 4, "MASKPOLL_BUSY", tuple(poll))
    assert second.offset == 12


# --- malformed streams ----------------------------------------------------------------------------


def changed(golden: str, **words: int) -> list[int]:
    result = words_of(golden)
    for name, value in words.items():
        result[int(name[1:])] = value
    return result


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([0x06040100, 0x101, 0], "header, word 3: expected 4 words, found the end after 3"),
        (changed(EMPTY, w0=0x06040200), "word 0: expected version 0.1 or 1.0, found 0.2"),
        (changed(EMPTY, w0=0x06050100), "word 0: expected device generation 3 or 4, found 5"),
        (changed(EMPTY, w1=0x10101), "word 1: expected zero padding, found 0x1"),
        (changed(EMPTY, w2=1), "word 2: expected a count of 0, .*, found 1"),
        (changed(ONE_WRITE, w2=0), "after 0 operations, found 6 more words at word 4"),
        (changed(ONE_WRITE, w4=0x70), "word 4: expected a known opcode, found 0x70"),
        (changed(ONE_WRITE, w4=3), r"\(MASKWRITE\), word 10: expected 7 words .* end after 6"),
        (changed(PUSH_AND_WAIT, w12=2), "word 12: expected a direction of 0x0 or 0x1, found 0x2"),
        (changed(ADDRESS_PATCH, w12=32), "word 12: expected an argument index of at most 31"),
        (changed(ADDRESS_PATCH, w12=5), "expected 0x80000000 within the offset"),
        ([1.5], "a list of 32-bit words, got float64"),
        ([-1], "outside of 0 to 0xFFFFFFFF"),
    ],
)  # fmt: skip
def test_malformed_streams_say_where_and_what(words: list[int], message: str) -> None:
    with pytest.raises(StreamError, match=message):
        decode(words)


def test_stream_for_another_device_is_refused() -> None:
    with pytest.raises(StreamError, match="4, found 3"):
        decode(words_of(PUSH_AND_WAIT), device_generation=4)


GOLDENS = [
    ONE_WRITE, INSTGEN + PREEMPT, ADDRESS_PATCH, PUSH_AND_WAIT, PUSHES_AND_ONE_WAIT, DESCRIPTOR,
]  # fmt: skip


@given(st.sampled_from(GOLDENS), st.data())
def test_truncated_streams_are_refused(golden: str, data: st.DataObject) -> None:
    words = words_of(golden)
    cut = data.draw(st.integers(0, len(words) - 1))
    with pytest.raises(StreamError):
        decode(words[:cut])
    if cut > 4:  # with a header that says so
        words[3] = 4 * cut
        with pytest.raises(StreamError):
            decode(words[:cut])


# --- the encoder ----------------------------------------------------------------------------------

_operations = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 0xFFFFFFFF), st.integers(0, 0xFFFFFFFF)),
    st.tuples(st.just("mask_write"), *[st.integers(0, 0xFFFFFFFF)] * 3),
    st.tuples(
        st.just("block_write"),
        st.integers(0, 0xFFFFFFFF),
        st.lists(st.integers(0, 0xFFFFFFFF), min_size=1, max_size=9),
    ),
    st.tuples(
        st.just("wait"),
        *[st.integers(0, 255)] * 2,
        st.sampled_from(["S2MM", "MM2S"]),
        st.integers(0, 255),
        *[st.integers(1, 255)] * 2,
    ),
    st.tuples(
        st.just("address_patch"),
        st.integers(0, 0xFFFFFFFF),
        st.integers(0, 31),
        st.integers(0, (1 << 48) - 1),
    ),
)


@given(st.sampled_from([3, 4]), st.integers(1, 8), st.lists(_operations, max_size=12))
def test_what_is_encoded_is_what_is_decoded(
    generation: int, columns: int, operations: list[tuple[object, ...]]
) -> None:
    stream = decode(_npu.encode(generation, 6, columns, operations), generation)
    assert (stream.header.columns, stream.header.rows) == (columns, 6)
    assert listed(stream) == operations


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((5, 6, 8, []), "device generation must be 3 or 4, got 5"),
        ((4, 0, 8, []), "1 to 32 rows"),
        ((4, 6, 8, [("block_write", 0, [])]), "at least one word"),
        ((4, 6, 8, [("wait", 256, 0, "MM2S", 0, 1, 1)]), "8 bits, got 256"),
        ((4, 6, 8, [("wait", 0, 0, "up", 0, 1, 1)]), "S2MM or MM2S, got up"),
        ((4, 6, 8, [("address_patch", 0, 32, 0)]), "an argument from 0 to 31, got 32"),
        ((4, 6, 8, [("write", 0)]), "takes 2 arguments, got 1"),
        ((4, 6, 8, [("jump", 0)]), "unknown operation jump"),
        ((4, 6, 8, [()]), "empty tuple"),
    ],
)
def test_encoder_refuses_what_the_words_cannot_say(
    arguments: tuple[int, int, int, list[tuple[object, ...]]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _npu.encode(*arguments)
