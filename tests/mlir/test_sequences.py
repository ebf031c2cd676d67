"""A sequence, as printed for a shape, moves the bytes that its statements say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from combinations import DESIGNS, SEQUENCES, shapes
from generic_form import Operation, read
from mlir_opt import MISSING, MLIR_OPT, refusal

from ort_aie_ep.aie_kernels.mlir.module import print_module
from ort_aie_ep.aie_kernels.mlir.sequences import Run, ShapeError
from ort_aie_ep.npu.terms.configuration import configure
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.device import device
from ort_aie_ep.npu.terms.sequence import Sequence, evaluate


def plain(body: Any, values: dict[str, int]) -> Iterator[tuple[Any, ...]]:
    """A sequence's statements as (fifo, argument, byte of every word), starts and waits."""
    for s in body:
        if "let" in s:
            values[s["let"]] = evaluate(s["value"], values)
        elif "for" in s:
            for i in range(evaluate(s["count"], values)):
                yield from plain(s["do"], values | {s["for"]: i})
        elif "if" in s:
            if evaluate(s["if"], values):
                yield from plain(s["do"], values)
        elif "transfer" in s:
            words = np.array([evaluate(s["offset"], values)])
            for n, stride in [*s["outer"], [["//", s["run"], 4], 4]]:
                steps = np.arange(evaluate(n, values)) * evaluate(stride, values)
                words = (words[:, None] + steps).ravel()
            if words.size:
                yield ("move", s["transfer"], s["argument"], words)
        elif "start" in s:
            yield ("start", s["start"], [evaluate(v, values) for v in s["values"]])
        elif "wait" in s or "arrive" in s:
            yield ("wait", s.get("wait") or s["arrive"], "wait" in s)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.in_turn)])
@pytest.mark.parametrize(("design", "name"), SEQUENCES)
def test_a_sequence_moves_the_same_bytes_and_starts_the_same_workers(
    design: Design, name: str, every: bool
) -> None:
    """For every small shape, or for the smallest that the compiler takes and the next one."""
    sequence = design.sequences[name]
    compared = 0
    for shape in shapes(sequence):
        if not every and compared == 2:
            break
        try:
            text = print_module(design, Run(sequence, shape))
        except ShapeError:  # the runtime's streams can, one of the compiler's cannot
            continue
        (printed,) = read(text).all("aie.runtime_sequence")
        _compare(design, sequence, shape, printed)
        compared += 1
    assert compared > 0


def _compare(design: Design, sequence: Sequence, shape: dict[str, int], printed: Operation) -> None:
    (block,) = printed.regions[0]
    names = [a.name for a in sequence.arguments]
    assert len(block.arguments) == len(names)
    constants = {o.result: o.attributes["value"] for o in printed.all("arith.constant")}
    events = iter([o for o in block.operations if o.name != "arith.constant"])
    tasks: dict[str, tuple[str, bool]] = {}  # under way
    ports = configure(design).shim_ports

    def next_event(channel: Any = None) -> Operation:
        """Waits for the oldest task make room in a queue, or free a descriptor of a shim."""
        while (event := next(events)).name in ("aiex.dma_await_task", "aiex.dma_free_task"):
            assert channel is not None
            (done,) = event.operands
            of_shim = [t for t, (f, _) in tasks.items() if ports[f].tile == channel.tile]
            of_queue = [t for t in of_shim if ports[tasks[t][0]] == channel]
            assert (len(of_queue) == 4 and done == of_queue[0]) or (
                len(of_shim) == 16 and done == of_shim[0]
            )
            assert tasks.pop(done)[1] is (event.name == "aiex.dma_await_task")
        return event

    for kind, *wanted in plain(sequence.body, dict(shape)):
        if kind == "move":
            fifo, argument, words = wanted
            task = next_event(ports[fifo])
            assert task.name == "aiex.dma_configure_task_for"
            assert task.attributes["alloc"] == f"@{fifo}"
            (descriptor,) = task.all("aie.dma_bd")
            assert descriptor.operands == [block.arguments[names.index(argument)]]
            np.testing.assert_array_equal(_words(task, descriptor) * 4, words)
            packet = design.fifos[fifo].packet
            sends = ports[fifo].direction == "MM2S"
            assert ("packet" in descriptor.attributes) == (packet is not None and sends)
            if "packet" in descriptor.attributes:
                assert descriptor.attributes["packet"].endswith(f"pkt_id = {packet}>")
            start = next(events)
            assert (start.name, start.operands) == ("aiex.dma_start_task", [task.result])
            tasks[task.result] = (fifo, task.attributes["issue_token"])
        elif kind == "start":
            worker, values = wanted
            for i, value in enumerate(values):
                write = next(events)
                assert write.attributes == {"buffer": f"@{worker}_parameters", "index": i}
                assert (constants[write.operands[0]] - value) % (1 << 32) == 0
            go = next(events)
            assert (go.name, go.attributes) == ("aiex.set_lock", {"value": 1})
            assert go.operands == [f"%{worker}_go"]
        else:
            fifos, everything = wanted
            complete = []
            for fifo in fifos:
                of_fifo = [task for task, (f, _) in tasks.items() if f == fifo]
                if of_fifo:
                    await_ = next(events)
                    assert (await_.name, await_.operands) == ("aiex.dma_await_task", of_fifo[-1:])
                    assert tasks[of_fifo[-1]] == (fifo, True)
                    before = [t for t, (f, _) in tasks.items() if ports[f] == ports[fifo]]
                    complete += before[: before.index(of_fifo[-1])]
                    for task in (*before[: before.index(of_fifo[-1])], of_fifo[-1]):
                        del tasks[task]
            if everything:
                complete += tasks
                assert not any(token for _, token in tasks.values())
                tasks.clear()
            for task in complete:
                free = next(events)
                assert (free.name, free.operands) == ("aiex.dma_free_task", [task])
    assert not list(events)


def _words(task: Operation, descriptor: Operation) -> np.ndarray:
    sizes, strides = (descriptor.attributes[f"static_{n}"] for n in ("sizes", "strides"))
    runs = task.attributes["repeat_count"] + 1
    if len(sizes) < 4:  # the queue repeats the descriptor unchanged
        sizes, strides = [runs, *sizes], [0, *strides]
    assert sizes[0] == runs
    assert len(sizes) <= 4
    assert descriptor.attributes["static_len"] * runs == np.prod(sizes)
    words = np.array([descriptor.attributes["static_offset"]])
    for count, stride in zip(sizes, strides, strict=True):
        words = (words[:, None] + np.arange(count) * stride).ravel()
    return words


@pytest.mark.skipif(MLIR_OPT is None, reason=MISSING)
def test_sequences_are_mlir_too() -> None:
    for param in SEQUENCES:
        design, name = param.values
        if design.name in ("fused_dqp", "vector_ops") and design.device.architecture == "aie2p":
            shape = shapes(design.sequences[name])[0]
            assert refusal(print_module(design, Run(design.sequences[name], shape))) == ""


def test_a_full_queue_waits_for_its_oldest_task() -> None:
    (design,) = (p.values[0] for p in DESIGNS if p.id == "fused_dqp-npu2_1col-1")
    assert design.device == device("npu2_1col")
    sequence, shape = design.sequences["matvec"], {"N": 1024, "K": 256, "bias": 0}
    text = print_module(design, Run(sequence, shape))
    (printed,) = read(text).all("aie.runtime_sequence")
    assert len(printed.all("aiex.dma_await_task")) > 1
    _compare(design, sequence, shape, printed)
