"""Bytes move only as descriptors say: every change to a field of a stream shows.

500 seeded changes, each to a field in use: by one, in one bit, or to any value. Each must be
refused, deadlock, leave work behind, or give another result. None survives.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from ort_aie_ep.aie_kernels.build import make_design
from ort_aie_ep.aie_kernels.flow_kv import reference as flow_kv
from ort_aie_ep.aie_kernels.flow_kv.kernels import FLOW_KV_SCORES
from ort_aie_ep.aie_kernels.fused_dqp import reference as fused_dqp
from ort_aie_ep.aie_kernels.gemm import reference as gemm
from ort_aie_ep.aie_kernels.reference import Context, Problem, bits
from ort_aie_ep.aie_kernels.short_gemm import reference as short_gemm
from ort_aie_ep.errors import AieError
from ort_aie_ep.npu.kernels import Kernels
from ort_aie_ep.npu.simulator.machine import Machine
from ort_aie_ep.npu.simulator.parts import aligned_bytes
from ort_aie_ep.npu.simulator.registers import (
    ShimDescriptor,
    core_lock_of,
    core_memory_of,
    shim_descriptor_of,
    shim_queue_of,
)
from ort_aie_ep.npu.simulator.session import Session
from ort_aie_ep.npu.simulator.txn import AddressPatch, BlockWrite, Wait, Write, decode
from ort_aie_ep.npu.terms.configuration import configure
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.device import WORD, device
from ort_aie_ep.npu.terms.errors import SimulationError
from ort_aie_ep.npu.terms.kernel import DTYPES, Array

Words = npt.NDArray[np.uint32]
CASES: dict[str, tuple[ModuleType, str, str, dict[str, int]]] = {
    "fused_dqp": (fused_dqp, "npu2_1col", "matvec", {"N": 256, "K": 512, "bias": 1}),
    "gemm": (gemm, "npu1_1col", "gemm", {"M": 64, "K": 512, "N": 512}),
    "short_gemm": (short_gemm, "npu1_1col", "project", {"M": 64, "K": 512, "N": 256}),
    "flow_kv": (
        flow_kv, "npu2_2col", "attention",
        {"heads": 4, "kv_heads": 2, "head_dim": 256, "context": 40, "capacity": 48, "window": 0,
         "scale_bits": bits(1 / 16), "softcap_bits": 0},
    ),
}  # fmt: skip
MUTATIONS = 125  # of each case
#: By worker (without its number) and parameter: why another value can mean the same.
EQUIVALENT = {
    ("score", "group"): "scores come in pairs of heads, and surplus heads are not used",
    ("value", "group"): "surplus heads are not sent out",
    ("score", "softcap"): "a cap far above the scores does not change them",
}


class Field(NamedTuple):
    """Bits `low` .. `low + width - 1` of word `word` of a stream; `kind` is the category."""

    kind: str
    name: str
    word: int
    low: int
    width: int

    def get(self, words: Words) -> int:
        return int(words[self.word]) >> self.low & (1 << self.width) - 1

    def set(self, words: Words, value: int) -> Words:
        mask = ((1 << self.width) - 1) << self.low
        changed = words.copy()
        changed[self.word] = (int(words[self.word]) & ~mask & 0xFFFFFFFF) | value << self.low
        return changed


def fields(words: Words, design: Design) -> list[Field]:
    """Every field in use: strides, wraps, lengths, locks, addresses, queues and parameters."""
    parameters = {
        (tile.column, tile.row, plan.parameters + WORD * i): (worker.rstrip("0123456789"), name)
        for worker, plan in configure(design).workers.items()
        for tile in [plan.worker.tile]
        for i, name in enumerate(plan.worker.parameters)
    }
    return [
        Field(kind, f"op {op.index} {name}", op.offset + word, low, width)
        for op in decode(words).operations
        for kind, name, word, low, width in _fields_of(op, parameters)
    ]


def _fields_of(
    op: Any, parameters: dict[tuple[int, int, int], tuple[str, str]]
) -> Iterator[tuple[str, str, int, int, int]]:
    match op:
        case BlockWrite() if shim_descriptor_of(op.address) is not None:
            descriptor = ShimDescriptor.from_words(op.words)
            yield "length", "length", 4, 0, 24
            last = len(descriptor.dimensions) - 1
            for i in range(last + 1):
                if last > 0:
                    yield "stride", f"D{i} step", 7 + i, 0, 20
                if i < last:
                    yield "wrap", f"D{i} wrap", 7 + i, 20, 10
            if descriptor.iteration_count > 1:
                yield "stride", "iteration step", 10, 0, 20
                yield "wrap", "iteration wrap", 10, 20, 6
            yield "lock", "release value", 11, 18, 7
        case AddressPatch():
            # Addresses are words: bits 1:0 do not exist.
            yield "address", "patched offset", 10, 2, 30
            yield "address", "argument", 8, 0, 3
            yield "address", "patched descriptor", 6, 5, 4
        case Write() if shim_queue_of(op.address) is not None:
            yield "queue", "descriptor", 4, 0, 4
            yield "queue", "repeats", 4, 16, 8
            yield "queue", "channel", 2, 3, 2
            yield "queue", "token", 4, 31, 1
        case Write() if core_lock_of(op.address) is not None:
            yield "lock", "value", 4, 0, 6
            yield "lock", "lock", 2, 4, 4
            yield "lock", "row", 2, 20, 3
        case Write() if (place := core_memory_of(op.address)) is not None:
            yield "address", "parameter word", 2, 2, 3
            worker, name = parameters[place]
            if (worker, name) not in EQUIVALENT:
                low = 16 if name == "scale" else 0  # bfloat16 results show only that much of it
                yield "parameter", f"value of {name} of a {worker}", 4, low, 32 - low
        case Wait():
            yield "queue", "waits for channel", 3, 24, 1
            yield "queue", "waits for direction", 2, 0, 1


def mutation(words: Words, choices: list[Field], rng: random.Random) -> tuple[str, Words]:
    """A random change to one of `choices`, and a description of it."""
    by_kind: dict[str, list[Field]] = {}
    for f in choices:
        by_kind.setdefault(f.kind, []).append(f)
    field = rng.choice(by_kind[rng.choice(sorted(by_kind))])
    before, limit = field.get(words), 1 << field.width
    while True:
        after = rng.choice(
            [before + 1, before - 1, before ^ 1 << rng.randrange(field.width), rng.randrange(limit)]
        )
        if "iteration wrap" in field.name and after > before:
            continue  # a counter would not reach it before the task ends
        if 0 <= after < limit and after != before:
            return f"{field.kind}: {field.name} {before} -> {after}", field.set(words, after)


def case_of(name: str) -> tuple[Design, Words, Callable[[], Problem]]:
    """A small problem of a design, and its stream."""
    reference, on, sequence, parameters = CASES[name]
    design = make_design(name, device(on))

    def problem() -> Problem:
        made: Problem = reference.problem(Context.of(design, sequence), parameters)
        return made

    (words,) = Session(design).build(sequence, parameters, list(problem().buffers))
    return design, words, problem


def simulate(design: Design, words: Words, problem: Problem) -> bytes:
    """The contents of all buffers after the run."""
    buffers = problem.buffers
    flat = [(name, array.reshape(-1).view(np.uint8)) for name, array in buffers.items()]
    Machine(design).run(words, flat)
    return b"".join(array.tobytes() for array in buffers.values())


@pytest.mark.parametrize(
    "name", [pytest.param(c, marks=pytest.mark.in_turn if i else []) for i, c in enumerate(CASES)]
)
def test_every_change_of_a_stream_shows(name: str) -> None:
    design, words, problem = case_of(name)
    expected = simulate(design, words, problem())
    choices, rng = fields(words, design), random.Random(name)
    outcomes: Counter[str] = Counter()
    survivors = []
    for _ in range(MUTATIONS):
        text, changed = mutation(words, choices, rng)
        try:
            same = simulate(design, changed, problem()) == expected
            outcomes["survived" if same else "wrong result"] += 1
            survivors += [text] * same
        except AieError as error:
            kinds = [kind for kind in ("deadlock", "left work behind") if kind in str(error)]
            outcomes[(*kinds, "refused")[0]] += 1
    print(name, dict(outcomes))
    assert survivors == [], outcomes
    assert len(outcomes) == 4, outcomes


def test_a_broken_promise_names_the_worker_the_kernel_and_the_promise() -> None:
    design, words, problem = case_of("flow_kv")
    head_dim = next(f for f in fields(words, design) if "head_dim of a score" in f.name)
    with pytest.raises(
        SimulationError,
        match=r"worker score\d calls flow_kv_scores with \(2, 100, 0, 16, .*does not define",
    ):
        simulate(design, head_dim.set(words, 100), problem())
    # Without limits, the same call reaches the kernel, which promises its compiler at least one
    # trip.
    bare = replace(FLOW_KV_SCORES, limits=None)
    buffers = [a for a in bare.arguments if isinstance(a, Array)]
    arrays = [aligned_bytes(a.bytes).view(DTYPES[a.element]) for a in buffers]
    with pytest.raises(SimulationError, match="flow_kv_scores"):
        Kernels("aie2p").call(bare, *arrays, 2, 512, 0, 8, 0, 0)
