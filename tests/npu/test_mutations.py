"""Bytes move only as descriptors say: every change to a field shows.

500 seeded changes to streams, and 100 that give another valid design. Each must be refused,
deadlock, leave work behind, or give a wrong result. None survives: a change that did would be
listed here with the reason why it is equivalent.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from mutations import fields, mutate_design, stream_mutation

from ort_aie_ep.aie_kernels.flow_kv import design as flow_kv
from ort_aie_ep.aie_kernels.flow_kv.kernels import FLOW_KV_SCORES
from ort_aie_ep.aie_kernels.fused_dqp import design as fused_dqp
from ort_aie_ep.aie_kernels.gemm import design as gemm
from ort_aie_ep.aie_kernels.short_gemm import design as short_gemm
from ort_aie_ep.errors import AieError
from ort_aie_ep.npu.kernels import Kernels
from ort_aie_ep.npu.simulator.machine import Machine
from ort_aie_ep.npu.simulator.parts import aligned_bytes
from ort_aie_ep.npu.simulator.session import Session
from ort_aie_ep.npu.terms.configuration import configure
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.device import device
from ort_aie_ep.npu.terms.errors import SimulationError
from ort_aie_ep.npu.terms.kernel import DTYPES, Array

Buffers = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Case:
    """A small problem: `build()` makes the design; `sequence` runs with `parameters` on
    `buffers()`."""

    build: Callable[[], Design]
    sequence: str
    parameters: dict[str, int]
    buffers: Callable[[], Buffers]


def _fused_dqp_buffers() -> Buffers:
    rng = np.random.default_rng(1)
    n, k = 256, 512
    blocks = rng.integers(0, 256, (n // 32, k // 256, 5120), dtype=np.uint8)
    scales = (rng.standard_normal((*blocks.shape[:2], 512)) * 0.1).astype(ml_dtypes.bfloat16)
    blocks[:, :, :1024] = scales.view(np.uint8)
    return {
        "x": rng.standard_normal(k).astype(ml_dtypes.bfloat16),
        "w": blocks,
        "bias": rng.standard_normal(n).astype(ml_dtypes.bfloat16),
        "y": np.zeros(n, dtype=ml_dtypes.bfloat16),
    }


def _gemm_buffers() -> Buffers:
    rng = np.random.default_rng(2)
    return {
        "a": rng.standard_normal((64, 512)).astype(ml_dtypes.bfloat16),
        "b": rng.standard_normal((512, 512)).astype(ml_dtypes.bfloat16),
        "c": np.zeros((64, 512), dtype=ml_dtypes.bfloat16),
    }


def _short_gemm_buffers() -> Buffers:
    rng = np.random.default_rng(4)
    return {
        "a": rng.standard_normal((64, 512)).astype(ml_dtypes.bfloat16),
        "w": _fused_dqp_buffers()["w"],
        "c": np.zeros((64, 256), dtype=ml_dtypes.bfloat16),
    }


def _flow_kv_buffers() -> Buffers:
    rng = np.random.default_rng(3)
    return {
        "q": rng.standard_normal((4, 256)).astype(ml_dtypes.bfloat16),
        "k": rng.standard_normal((2, 48, 256)).astype(ml_dtypes.bfloat16),
        "v": rng.standard_normal((2, 48, 256)).astype(ml_dtypes.bfloat16),
        "o": np.zeros((4, 256), dtype=ml_dtypes.bfloat16),
    }


CASES = {
    "fused_dqp": Case(
        lambda: fused_dqp.build(device("npu2_1col")),
        "matvec",
        {"N": 256, "K": 512, "bias": 1},
        _fused_dqp_buffers,
    ),
    "gemm": Case(
        lambda: gemm.build(device("npu1_1col")),
        "gemm",
        {"M": 64, "K": 512, "N": 512},
        _gemm_buffers,
    ),
    "short_gemm": Case(
        lambda: short_gemm.build(device("npu1_1col")),
        "project",
        {"M": 64, "K": 512, "N": 256},
        _short_gemm_buffers,
    ),
    "flow_kv": Case(
        lambda: flow_kv.build(device("npu2_2col")),
        "attention",
        {
            "heads": 4,
            "kv_heads": 2,
            "head_dim": 256,
            "context": 40,
            "capacity": 48,
            "window": 0,
            "scale_bits": int(np.float32(1 / 16).view(np.int32)),
            "softcap_bits": 0,
        },
        _flow_kv_buffers,
    ),
}
STREAM_MUTATIONS = 501  # 167 per case, a seventh of them values of run-time parameters
DESIGN_MUTATIONS = 102


def simulate(design: Design, words: npt.NDArray[np.uint32], buffers: Buffers) -> bytes:
    """The contents of all buffers after the run, which changes them in place."""
    flat = [(name, array.reshape(-1).view(np.uint8)) for name, array in buffers.items()]
    Machine(design).run(words, flat)
    return b"".join(array.tobytes() for array in buffers.values())


def outcome(run: Callable[[], bytes], expected: bytes) -> str:
    """How a changed run ends: the kind of error, "wrong result" or "survived"."""
    try:
        return "survived" if run() == expected else "wrong result"
    except AieError as error:
        text = str(error)
        for kind in ("deadlock", "left work behind"):
            if kind in text:
                return kind
        return "refused"


@pytest.mark.parametrize(
    "name", [pytest.param(c, marks=pytest.mark.in_turn if i else []) for i, c in enumerate(CASES)]
)
def test_every_change_of_a_stream_shows(name: str) -> None:
    case = CASES[name]
    design = case.build()
    (words,) = Session(design).build(case.sequence, case.parameters, list(case.buffers()))
    expected = simulate(design, words, case.buffers())
    choices, rng = fields(words, case.build()), random.Random(name)
    outcomes: Counter[str] = Counter()
    survivors = []
    for _ in range(STREAM_MUTATIONS // len(CASES)):
        mutation = stream_mutation(words, choices, rng)
        end = outcome(lambda m=mutation: simulate(design, m.words, case.buffers()), expected)
        outcomes[end] += 1
        if end == "survived":
            survivors.append(str(mutation))
    print(name, dict(outcomes))
    assert survivors == [], outcomes
    assert len(outcomes) == 4, outcomes


def test_a_broken_promise_names_the_worker_the_kernel_and_the_promise() -> None:
    case = CASES["flow_kv"]
    design = case.build()
    words = Session(design).build(case.sequence, case.parameters, list(case.buffers()))[0]
    head_dim = next(f for f in fields(words, design) if "head_dim of a score" in f.name)
    with pytest.raises(
        SimulationError,
        match=r"worker score\d calls flow_kv_scores with \(2, 100, 0, 16, .*does not define",
    ):
        simulate(design, head_dim.set(words, 100), case.buffers())
    # Without limits, the same call reaches the kernel, which promises its compiler at least one
    # trip.
    bare = replace(FLOW_KV_SCORES, limits=None)
    scalars = (2, 512, 0, 8, 0, 0)
    buffers = [a for a in bare.arguments if isinstance(a, Array)]
    arrays = [aligned_bytes(a.bytes).view(DTYPES[a.element]) for a in buffers]
    with pytest.raises(SimulationError, match="flow_kv_scores"):
        Kernels("aie2p").call(bare, *arrays, *scalars)


@pytest.mark.parametrize(
    "name", [pytest.param(c, marks=pytest.mark.in_turn if i else []) for i, c in enumerate(CASES)]
)
def test_every_change_of_a_design_shows(name: str) -> None:
    case = CASES[name]
    original = case.build()
    (words,) = Session(original).build(case.sequence, case.parameters, list(case.buffers()))
    expected = simulate(original, words, case.buffers())
    rng = random.Random(name)
    outcomes: Counter[str] = Counter()
    survivors = []
    while sum(outcomes.values()) < DESIGN_MUTATIONS // len(CASES):
        design = case.build()
        text = mutate_design(design, rng)
        if not rewrites(design, case, words):
            continue  # of a statement that this shape does not use, or a dimension of one step

        def run(design: Design = design) -> bytes:
            session = Session(design)
            (stream,) = session.build(case.sequence, case.parameters, list(case.buffers()))
            return simulate(design, stream, case.buffers())

        end = outcome(run, expected)
        outcomes[end] += 1
        if end == "survived":
            survivors.append(text)
    print(name, dict(outcomes))
    assert survivors == [], outcomes
    # The simulator shows them.
    assert outcomes["refused"] < sum(outcomes.values()) / 2, outcomes


def rewrites(design: Design, case: Case, words: npt.NDArray[np.uint32]) -> bool:
    """Whether the words for this shape, or what they drive, have changed."""
    try:
        (stream,) = Session(design).build(case.sequence, case.parameters, list(case.buffers()))
    except AieError:
        return True
    original, changed = configure(case.build()), configure(design)
    return not np.array_equal(stream, words) or original.channels != changed.channels
