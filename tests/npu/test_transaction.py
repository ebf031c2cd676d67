"""The Python writer of TXN binaries: published words, and every operation that the reader knows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from every_operation import EveryOperation
from hypothesis import given
from hypothesis import strategies as st

from ort_aie_ep.npu.simulator import txn
from ort_aie_ep.npu.terms.device import device
from ort_aie_ep.npu.terms.errors import StreamError


def words_of(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def add(out: EveryOperation, op: txn.Operation) -> None:
    """Writes again what was read."""
    match op:
        case txn.Write():
            out.write(op.address, op.value)
        case txn.MaskWrite():
            out.mask_write(op.address, op.value, op.mask)
        case txn.BlockWrite():
            out.block_write(op.address, op.words)
        case txn.Wait():
            out.wait(op.column, op.row, op.direction, op.channel, op.columns, op.rows)
        case txn.AddressPatch():
            out.address_patch(op.address, op.argument, op.buffer_offset)
        case txn.Other():
            out.add(*op.words)
        case _:
            raise AssertionError(op)


def again(operations: Sequence[txn.Operation], name: str, columns: int) -> np.ndarray:
    out = EveryOperation(device(name), columns=columns)
    for op in operations:
        add(out, op)
    return out.finish()


# From Xilinx/mlir-aie, test/Targets/NPU: npu_instgen and npu2_instgen without some of their
# operations (one block write repeats its tile in word 1, and headers count), and
# npu_read_reg_instgen.
@pytest.mark.parametrize(
    ("name", "columns", "golden"),
    [
        (
            "npu1", 4,
            "06030100 00000104 00000005 00000094"
            " 00000000 00000000 06400DEF 00000000 00000042 00000018"
            " 00000001 00000000 12345679 00000030"
            " 00000064 00000065 00000066 00000067 00000068 00000069 0000006A 0000006B"
            " 00000003 00000000 0430567A 00000000 00001001 F00FF00F 0000001C"
            " 00000080 00000010 00030401 05010200"
            " 00020008 00000400 12345678 00000ABC",
        ),
        ("npu2", 8, "06040100 00000108 00000001 00000014 00000306"),
        ("npu2", 8, "06040100 00000108 00000001 00000020 00000082 00000010 00000001 04300100"),
    ],
)  # fmt: skip
def test_published_words_are_written_as_they_are(name: str, columns: int, golden: str) -> None:
    words = words_of(golden)
    stream = txn.decode(words)
    assert again(stream.operations, name, columns).tolist() == words


word = st.integers(0, 2**32 - 1)
byte = st.integers(0, 255)
operations = st.one_of(
    st.builds(txn.Write, st.just(0), st.just(0), word, word),
    st.builds(txn.MaskWrite, st.just(0), st.just(0), word, word, word),
    st.builds(
        txn.BlockWrite, st.just(0), st.just(0), word,
        st.lists(word, min_size=1, max_size=9).map(tuple),
    ),
    st.builds(
        txn.Wait, st.just(0), st.just(0), byte, byte, st.integers(1, 255), st.integers(1, 255),
        st.sampled_from(["S2MM", "MM2S"]), byte,
    ),
)  # fmt: skip


def content(op: txn.Operation) -> tuple[object, ...]:
    fields = {name: getattr(op, name) for name in op.__slots__}
    return type(op), *fields.items()


@given(st.lists(operations, max_size=8))
def test_the_reader_reads_what_the_writer_writes(given_operations: list[txn.Operation]) -> None:
    stream = txn.decode(again(given_operations, "npu2_4col", 4))
    assert stream.header.columns == 4
    assert [content(op) for op in stream.operations] == [content(op) for op in given_operations]


def test_unknown_operations_are_refused_by_name_and_place() -> None:
    for opcode in (14, 15, 42, 0x85, 200):
        with pytest.raises(StreamError, match=f"operation 1 .* known opcode, found {opcode:#x}"):
            txn.decode([0x06040100, 0x108, 2, 24, 5, opcode])


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda out: out.block_write(0, []), "at least one word"),
        (lambda out: out.address_patch(0, 32, 0), "argument 0 to 31, got 32"),
        (lambda out: out.write(0, 1 << 32), "a word must be 0 to 4294967295"),
    ],
)
def test_what_a_field_cannot_hold_is_refused(write, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(StreamError, match=message):
        write(EveryOperation(device("npu2")))
