"""Taps of buffers as shim tasks: the words that the tap names move, in its order."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_checks import (
    FIFOS,
    Pushed,
    build,
    call,
    check_same,
    manifest,
    observe,
    say,
    sequence_of,
)

from ort_aie_ep import _npu
from ort_aie_ep.npu.simulator.registers import ShimDescriptor
from ort_aie_ep.npu.simulator.txn import AddressPatch, BlockWrite, Write, decode
from ort_aie_ep.npu.terms.sequence import Value


def span(run: int, outer: list[tuple[int, int]]) -> int:
    return run + sum((count - 1) * stride for count, stride in outer)


@st.composite
def taps(draw: st.DrawFn) -> tuple[int, int, list[tuple[int, int]]]:
    """Taps that a shim can express: a run of up to 1023 words, or the product of two such runs."""
    small = st.integers(1, 7)
    wide = draw(st.sampled_from(["none", "run", "middle", "outermost", "apart", "repeat"]))
    run = 4 * draw(st.integers(1, 9))
    depth = draw(st.integers(0, 3))
    if wide == "run":
        run = 4 * draw(st.sampled_from([1024, 1536, 2002, 1023 * 3]))
        depth = min(depth, 2)
    counts = [draw(small) for _ in range(depth)]
    strides = [4 * draw(st.integers(1, 50)) for _ in range(depth)]
    if wide == "middle" and depth == 2:
        counts[1] = draw(st.sampled_from([1024, 1400, 1023]))
    if wide == "outermost" and depth:
        counts[0] = draw(st.integers(60, 200))
    if wide == "apart" and depth:
        strides[0] = draw(st.sampled_from([1 << 22, (1 << 22) + 4, 1 << 24]))
    if wide == "repeat" and depth:
        counts, strides = counts[:3], [0, *strides[1:3]]
        counts[0] = draw(st.integers(2, 600))
    return 4 * draw(st.integers(0, 5)), run, list(zip(counts, strides, strict=True))


@given(taps(), st.sampled_from(["a0", "p7", "y1"]))
@settings(max_examples=200)
def test_words_move_in_the_order_of_the_tap(
    tap: tuple[int, int, list[tuple[int, int]]], fifo: str
) -> None:
    offset, run, outer = tap
    s = sequence_of(bytes=offset + span(run, outer))
    argument = "y" if fifo.startswith("y") else "x"
    s.transfer(fifo, argument, offset=offset, run=run, outer=list(outer))
    s.wait(fifo)
    check_same(observe(build(s)), say(s, call(s)))


def pushes(runs: list[dict[str, Any]]) -> list[Pushed]:
    return observe(runs).pushed


def one_transfer(
    offset: int, run: int, outer: list[tuple[Value, Value]], bytes: int = 1 << 30, **changes: Any
) -> list[Pushed]:
    s = sequence_of(bytes=bytes)
    s.transfer("a0", "x", offset=offset, run=run, outer=outer)
    s.wait("a0")
    return pushes(build(s, **changes))


def test_outermost_strides_beyond_a_step_become_several_tasks() -> None:
    apart = (1 << 22) + 4
    tasks = one_transfer(8, 16, [(2, 8 * apart), (3, apart), (4, 512), (3, 64)])
    offsets = [8 + i * 8 * apart + j * apart for i in range(2) for j in range(3)]
    assert [task.patch.buffer_offset for task in tasks] == offsets
    assert all(task.descriptor.dimensions == ((4, 512), (3, 64), (4, 4)) for task in tasks)
    # 2048 rows are 4 times 512, and 512 rows of 16 KiB are more than a step.
    tasks = one_transfer(0, 64, [(2048, 1 << 14)])
    assert [task.descriptor.dimensions for task in tasks] == [((1, 4), (512, 1 << 14), (16, 4))] * 4
    assert [task.patch.buffer_offset for task in tasks] == [512 * i << 14 for i in range(4)]
    # The largest step.
    (task,) = one_transfer(8, 16, [(2, 1 << 22)])
    assert task.descriptor.dimensions[0] == (1, 4)
    assert task.descriptor.dimensions[1] == (2, 1 << 22)


def test_outermost_stride_of_0_repeats_the_task() -> None:
    tasks = one_transfer(0, 16, [(300, 0), (4, 512), (3, 64)])
    assert [task.runs for task in tasks] == [256, 44]
    assert all(task.descriptor.iteration_count == 1 for task in tasks)


def test_published_descriptors_come_out_of_transfers() -> None:
    # Xilinx/mlir-aie, dma_to_npu_iter_repeat: 64 words of argument 0 on column 0's MM2S 0, pushed
    # to run four times as BD 1 on npu1. BLOCKWRITE data, queue address, queue word.
    s = sequence_of()
    s.transfer("a0", "x", offset=0, run=256, outer=[(4, 0)])
    s.wait("a0")
    bds = {"0": [1], "1": [1]}
    (run,) = build(s, bds=bds, generation=3)
    block, patch, _, push, _ = decode(run["words"], device_generation=3).operations
    assert isinstance(block, BlockWrite)
    assert isinstance(push, Write)
    assert block.words == (64, 0, 0, 0, 0x80000000, 33554432, 0, 33554432)
    assert (push.address, push.value & 0x7FFFFFFF) == (119316, 196609)
    # nod-ai/iree-amd-aie, controlcode_to_transaction: sizes 4, 16, 16 and strides 64, 8, 1 from
    # word 8 on, packet id 1, BD 2 of column 1. There the descriptor holds the offset, which this
    # library adds in the address patch, and AxCACHE is 0 (2 in newer streams of mlir-aie).
    s = sequence_of()
    s.transfer("p3", "x", offset=32, run=64, outer=[(4, 256), (16, 32)])
    s.wait("p3")
    fifos = FIFOS | {"p3": FIFOS["p3"] | {"packet": 1}}
    (run,) = build(s, bds={"0": [0], "1": [2]}, generation=3, fifos=fifos)
    block, patch, *_ = decode(run["words"], device_generation=3).operations
    assert isinstance(block, BlockWrite)
    assert isinstance(patch, AddressPatch)
    published = [0x400, 0x20, 0x40080000, 0x01000000, 0x81000007, 0x3F, 0, 0x02000000]
    published[1] -= patch.plus
    published[5] |= 2 << 24
    assert (block.address, block.words) == (0x0201D040, tuple(published))


def test_published_descriptor_moves_the_same_bytes() -> None:
    # mlir-aie's npu_dma_memcpy: sizes 2, 32, 32 and strides 2048, 64, 1 from word 4096 on. Here the
    # outer two, which continue each other, become one.
    (task,) = one_transfer(16384, 128, [(2, 8192), (32, 256)])
    published = np.array([2048, 0, 0, 33554432, -2113929153, 2047, 0, 33554432]).astype(np.uint32)
    theirs = replace(task, descriptor=ShimDescriptor.from_words(published))
    np.testing.assert_array_equal(task.words(), theirs.words())


def test_stream_of_one_transfer_word_for_word() -> None:
    # From the field tables: BD 2 of column 1, byte 0x100 + 0x40 of the plan's buffer 6, the run's
    # first, 6 x 8 words with a stride of 32 bytes more, packet 3, burst 3 on generation 4.
    s = sequence_of()
    s.transfer("p3", "x", offset=0x40, run=32, outer=[(6, 64)])
    s.start("left", -1, 7)
    s.wait("p3")
    text = json.dumps(manifest(s, bds={"0": [0], "1": [2]}))
    (run,) = _npu.build(text, [call(s, x=(6, 0x100))])
    expected = [
        *(0x06040100, 0x00000102, 8, 4 * 63),
        *(1, 0, 0x0201D040, 0x30),
        *(48, 0, 1 << 30 | 3 << 19, 8 << 20, 3 << 30 | 6 << 20 | 15, 2 << 24, 0, 1 << 25),
        *(0x81, 0x30, 0, 0, 0, 0, 0x0201D044, 0, 0, 0, 0x140, 0),
        *(3, 0, 0x0201D210, 0, 0xF00, 0x1F00, 0x1C),
        *(0, 0, 0x0201D214, 0, 1 << 31 | 2, 0x18),
        *(0, 0, 0x00200400, 0, 0xFFFFFFFF, 0x18),
        *(0, 0, 0x00200404, 0, 7, 0x18),
        *(0, 0, 0x0021F0F0, 0, 1, 0x18),
        *(0x80, 0x10, 1 << 16 | 1, 0x00010100),
    ]
    assert run["words"].tolist() == expected
    assert run["buffers"] == [6]
    assert run["variable"].tolist() == [8, 26, 27, 45, 51]
    assert run["sources"] == ["[0] run body[0]"] * 4 + ["[0] run body[1]"] * 3 + ["[0] run body[2]"]


@pytest.mark.parametrize(
    ("offset", "run", "outer", "message"),
    [
        (0, 16, [(2, 8192), (2, 2048), (2, 512), (2, 128)], "has 5 dimensions"),
        (0, 16, [(3, 0), (2, 2048), (2, 512), (2, 128)], "has 5 dimensions"),
        (0, 4 * 2048, [(2, 1 << 18), (2, 1 << 16), (2, 1 << 14)], "has 5 dimensions"),
        (0, 4 * 1031, [(2, 1 << 16), (2, 1 << 14)], "has 5 dimensions"),
        (0, 16, [(2, 0), (2, (1 << 22) + 4), (2, 64)], "stride of 4194308 bytes .* most 4194304"),
        (0, 16, [(2, 64), (2, (1 << 22) + 4)], "stride of 4194308 bytes .* most 4194304"),
        (0, 16, [(2, 4096), (2, 0), (2, 64)], "has a stride of 0"),
        (2, 16, [], "offset must be a multiple of 4 bytes and not negative, got 2"),
        (-4, 16, [], "offset must be .* got -4"),
        (0, 6, [], "the run must be a multiple of 4 bytes and not negative, got 6"),
        (0, 16, [(2, 6)], "stride of outer dimension 0 must be a multiple of 4 .* got 6"),
        (0, 16, [(-1, 16)], "count of outer dimension 0 must not be negative, got -1"),
        (0, 1 << 30, [(2, 4)], "touches bytes up to 1073741828 of a buffer of 1073741824"),
        (4, 1 << 30, [], "touches bytes up to 1073741828"),
        (0, 4, [(1 << 62, 1 << 40)], "overflows 64 bits"),
        (0, 4, [(1 << 62, 0)], "takes 18014398509481984 tasks, expected at most 2097152"),
    ],
)
def test_transfers_that_a_shim_cannot_make_are_refused(
    offset: int, run: int, outer: list[tuple[Value, Value]], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as error:
        one_transfer(offset, run, outer)
    assert 'sequence "run" (), body[0]: fifo "a0", argument "x": ' in str(error.value)


def test_transfers_of_too_many_tasks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"2097152"):
        one_transfer(0, 4, [(1 << 33, 1 << 23)], bytes=1 << 60)


@given(taps())
def test_buffer_one_word_too_small_is_refused(tap: tuple[int, int, list[tuple[int, int]]]) -> None:
    offset, run, outer = tap
    with pytest.raises(ValueError, match="touches bytes up to"):
        one_transfer(offset, run, list(outer), bytes=offset + span(run, outer) - 4)
