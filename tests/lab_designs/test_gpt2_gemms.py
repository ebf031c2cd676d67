"""Paper 5's claim: one configuration of MatMul serves all of GPT-2 124M's sizes, on npu1.

The streams have the full sizes; the products are simulated at an eighth: the largest dimension of
each is divided by 8 (the last of equal ones), and most of them only in turn.
lab/bench_gpt2_gemms.py runs the full sizes.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from designs.matmul import design as matmul

from ort_aie_ep.npu.simulator.session import Session
from ort_aie_ep.npu.simulator.txn import (
    AddressPatch,
    BlockWrite,
    MaskWrite,
    Operation,
    Wait,
    Write,
    decode,
    shim_control_of,
    shim_descriptor_of,
    shim_queue_of,
)
from ort_aie_ep.npu.terms.configuration import Configuration, configure
from ort_aie_ep.npu.terms.device import device

pytestmark = pytest.mark.in_turn  # nothing that ships uses these designs


def load_bench() -> ModuleType:
    path = Path(__file__).parents[2] / "lab" / "bench_gpt2_gemms.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # its dataclasses look up their own module
    spec.loader.exec_module(module)
    return module


bench = load_bench()
# A short and a long K, and one whose rounding needs limbs.
QUICK = [(256, 768, 768), (256, 3072, 768), (768, 256, 768)]
SIZES = [
    pytest.param(
        size, id="x".join(map(str, size)), marks=[] if size in QUICK else [pytest.mark.in_turn]
    )
    for size in bench.SIZES
]


@pytest.fixture(scope="module")
def session() -> Session:
    """One configured array for all products of this file."""
    return Session(matmul.build(device("npu1"), "f32"))


def static(plan: Configuration) -> dict[str, Any]:
    """The contents of an overlay, as values that can be compared."""
    return {
        "channels": plan.channels,
        "streams": plan.streams,
        "locks": plan.locks,
        "memory": plan.memory_items,
        "shims": plan.shim_ports,
        "workers": {
            name: (w.worker.tile, w.pools, w.buffers, w.parameters, w.go, w.worker.stack)
            for name, w in plan.workers.items()
        },
    }


def operations(session: Session, size: tuple[int, int, int]) -> Iterator[Operation]:
    m, k, n = bench.padded(size)
    (words,) = session.build("matmul", {"M": m, "K": k, "N": n}, ["a", "b", "c"])
    yield from decode(words).operations


def is_of_a_shim(operation: Operation) -> bool:
    """The shims' descriptors, pushes, patches, token control and waits."""
    match operation:
        case Write(address=address):
            return shim_queue_of(address) is not None
        case BlockWrite(address=address) | AddressPatch(address=address):
            return shim_descriptor_of(address) is not None
        case MaskWrite(address=address):
            return shim_control_of(address) is not None
        case Wait(row=row, rows=rows):
            return (row, rows) == (0, 1)
    return False


def test_all_sizes_differ_in_shim_transfers_and_two_parameters_only(session: Session) -> None:
    plan = configure(session.design)
    lock_register = 0x1F000  # in core tiles (aie-rt)
    expected = []
    for worker in plan.workers.values():
        base = worker.worker.tile.column << 25 | worker.worker.tile.row << 20
        parameters = base + worker.parameters
        expected += [parameters, parameters + 4, base + lock_register + 16 * worker.go.id]
    assert len(expected) == 3 * 16
    seen = set()
    for size in bench.SIZES:
        m, k, n = bench.padded(size)
        rest = [op for op in operations(session, size) if not is_of_a_shim(op)]
        assert all(isinstance(op, Write) for op in rest)
        written = {op.address: op.value for op in rest if isinstance(op, Write)}
        assert len(written) == len(rest)
        assert sorted(written) == sorted(expected)
        values = [written[address] for address in expected]
        # Megatiles of 4 x 64 rows and 4 x 64 columns.
        blocks = -(-m // 256) * -(-n // 256)
        # The last k-step of a block is not in the loop: parts of C leave during it.
        assert values == [k // 64 - 1, blocks, 1] * 16
        seen.add((k // 64, blocks))
    assert len(seen) > 6


def test_the_configuration_has_nothing_of_a_size_in_it(session: Session) -> None:
    """One machine runs every size below, and `build` takes no size; another output type is another
    overlay."""
    configured = static(session.machine.configuration)
    assert static(configure(matmul.build(device("npu1"), "f32"))) == configured
    assert static(configure(matmul.build(device("npu1"), "bf16"))) != configured


@pytest.fixture(scope="module", params=SIZES)
def outcome(request: pytest.FixtureRequest, session: Session) -> Any:
    """An eighth of one of the products, simulated."""
    return bench.measure(session, bench.eighth(request.param))


def test_an_eighth_of_each_size_has_the_papers_exactness(outcome: Any) -> None:
    assert outcome.arithmetic.mean <= bench.PAPER_MEAN
    assert outcome.arithmetic.largest <= bench.PAPER_LARGEST
    # And more: each addition of eight products is off by at most ten times 2^-24 of the mass
    # (test_gemm.py).
    _, k, _ = bench.padded(outcome.size)
    assert outcome.arithmetic.largest <= k / 8 * 10 * 2.0**-24


# Paper 5 compares with a product of float32 operands. Rounding both to bf16 moves a term by 2^-7 at
# most. In the mean over K = 256 terms and more, little of that remains.
def test_the_rounding_of_float32_operands_stays_in_the_papers_mean(outcome: Any) -> None:
    assert outcome.rounding.mean <= bench.PAPER_MEAN
    assert outcome.rounding.largest <= 2.0**-7 + 2.0**-16 + outcome.arithmetic.largest


def test_rounding_the_operands_alone_exceeds_the_papers_largest_error() -> None:
    # With standard normal operands and K = 256 the error has a standard deviation of 2.3e-4. The
    # largest of n normal errors is near sqrt(2 ln n) of these: 5.1 for 768 x 768, so 1.2e-3. No
    # multiplier can avoid that, and this one is exact.
    a, b = bench.operands((768, 256, 768))
    exact = bench.rounded(a).astype(np.float64) @ bench.rounded(b).astype(np.float64)
    assert bench.relative_errors(exact, a, b).largest > bench.PAPER_LARGEST


def test_two_limbs_meet_the_papers_largest_error(session: Session) -> None:
    size = bench.eighth((2304, 256, 768))
    errors = bench.measure_limbs(session, size).rounding
    _, k, _ = size
    assert errors.largest <= bench.LIMB_BOUND + 3 * k / 8 * 10 * 2.0**-24
    assert errors.largest <= bench.PAPER_LARGEST
    assert errors.norm <= bench.PAPER_LARGEST


def test_two_limbs_are_exact_enough_for_operands_that_round_worst(session: Session) -> None:
    # Just below the middle of 1 and the next bf16: all roundings are the largest, in one direction.
    a = np.full((64, 256), 1 + 2.0**-8 - 2.0**-20, np.float32)
    b = a.T.copy()
    single, _, _ = bench.multiply(session, a, b)
    assert bench.relative_errors(single, a, b).largest > 7 * bench.PAPER_LARGEST
    double, _, _ = bench.multiply(session, *bench.limbs(a, b))
    assert bench.relative_errors(double, a, b).largest <= bench.LIMB_BOUND + 96 * 10 * 2.0**-24
