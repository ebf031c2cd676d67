"""GPT-2 124M's twelve matrix products on one configuration of GEMM, on a simulated NPU1.

"Paper 5" is *Unlocking the AMD Neural Processing Unit for ML Training on the Client*.

    python lab/bench_gpt2_gemms.py             # full sizes: 34 G multiply-accumulates
    python lab/bench_gpt2_gemms.py --eighth    # the largest dimension of each divided by 8

The input is bf16 and the output float32, as in the paper, and B is row-major (`matmul`): the host
converts operands and does not pack them. The script simulates every product byte
by byte, and compares all of C in float64, as |error| over the sum of |a||b|, with two products:

* the product of the bf16 operands, which the array received: this gives the error of its
  arithmetic;
* the product of the float32 operands, as in the paper: this includes their rounding to bf16. That
  rounding is independent from term to term, so its error falls with the root of K, and the largest
  error grows with the number of results.

Products whose operands' rounding alone misses the paper's largest error (those with K = 256) are
simulated again in two limbs: A B = [hi | lo | hi] [hi; hi; lo], three times the K on the same
overlay. That leaves less than `LIMB_BOUND`, whatever the operands are.

Prints the simulated time and the errors of each size, and compares the cost of a change of size
with the cost of replacing the whole configuration. Exits with 1 if the arithmetic, or what the
limbs leave, misses the paper's figures.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import numpy.typing as npt
from designs.matmul import design as matmul

from ort_aie_ep.aie_kernels.gemm import design as gemm
from ort_aie_ep.npu.simulator.session import Session
from ort_aie_ep.npu.simulator.txn import Write, core_lock_of, core_memory_of, decode
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.device import device

Floats = npt.NDArray[np.float32]
Size = tuple[int, int, int]  # M, K, N

#: Forward and backward pass, paper 5's figure 6.
SIZES: tuple[Size, ...] = (
    (256, 768, 2304), (256, 768, 768), (256, 768, 3072), (256, 768, 50304),
    (256, 3072, 768), (256, 2304, 768), (256, 50304, 768),
    (2304, 256, 768), (768, 256, 768), (3072, 256, 768), (50304, 256, 768), (768, 256, 3072),
)  # fmt: skip

# Seconds: one dispatch of the loaded design, on 4 columns; what a firmware load of another design
# adds (dispatch_micro report, Strix, XRT 2.23: 60.5 to 65.7 µs); what another xclbin with its own
# context adds (the same report). Nobody has published these times for Phoenix.
DISPATCH = 75.2e-6
FIRMWARE_LOAD = 65.7e-6
NEW_CONTEXT = 40e-3
PAPER_MEAN, PAPER_LARGEST = 6e-4, 1e-3  # paper 5, VII-A
#: Of |a||b|: lo lo is at most 2^-8 * 2^-8, and each operand is 2^-16 off its two limbs; twice the
#: first order is more than the rest. The arithmetic comes on top.
LIMB_BOUND = 3 * 2.0**-16 * (1 + 2.0**-7)
PAPER_RATIO = 3.5  # paper 5, VII-A: first iteration of a size, whole array against minimal


@dataclass(frozen=True)
class Errors:
    """Mean, standard deviation and largest of |error| over the sum of |a||b|.

    `norm` is another reading of a relative error: root of the sum of error², by that of results².
    """

    mean: float
    deviation: float
    largest: float
    norm: float


@dataclass(frozen=True)
class Outcome:
    """One product: seconds, bytes read, errors against bf16 and against float32 operands.

    `in_limbs` is the same in two limbs, if that was needed: `arithmetic` and `rounding` are then
    both against float32 operands.
    """

    size: Size
    seconds: float
    read: int
    arithmetic: Errors
    rounding: Errors
    in_limbs: Outcome | None = None


def eighth(size: Size) -> Size:
    """The size with its largest dimension (the last of equal ones) divided by 8."""
    at = max(range(3), key=lambda i: (size[i], i))
    m, k, n = (x // 8 if i == at else x for i, x in enumerate(size))
    return m, k, n


def padded(size: Size) -> Size:
    """MatMul's shape: K to 256 with zeros, as paper 5 pads 50304 to 50432."""
    m, k, n = size
    return m, -(-k // gemm.SLAB) * gemm.SLAB, n


def operands(size: Size) -> tuple[Floats, Floats]:
    """A (M, K) and B (K, N), standard normal."""
    m, k, n = size
    rng = np.random.default_rng(size)
    return rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)


def multiply(session: Session, a: Floats, b: Floats) -> tuple[Floats, float, int]:
    """C (M, N) of a simulated MatMul, its seconds, and the bytes it read."""
    (m, k), n = a.shape, b.shape[1]
    _, deep, _ = padded((m, k, n))
    rows = max(m, gemm.ROWS)
    x = np.zeros((rows, deep), ml_dtypes.bfloat16)
    x[:m, :k] = a.astype(ml_dtypes.bfloat16)
    y = np.zeros((deep, n), ml_dtypes.bfloat16)
    y[:k] = b.astype(ml_dtypes.bfloat16)
    c = np.full((rows, n), np.nan, np.float32)
    results = session.run("matmul", {"M": m, "K": deep, "N": n}, {"a": x, "b": y, "c": c})
    return c[:m], sum(r.seconds for r in results), sum(r.read for r in results)


def relative_errors(c: Floats, a: Floats, b: Floats) -> Errors:
    """|C - A B| / (|A| |B|) over all of C, in float64."""
    right = b.astype(np.float64)
    magnitude = np.abs(right)
    total = squares = largest = wrong = right_ones = 0.0
    rows = max(1, (1 << 26) // (8 * c.shape[1]))  # 64 MB at a time
    for start in range(0, len(a), rows):
        left = a[start : start + rows].astype(np.float64)
        expected = left @ right
        difference = c[start : start + rows] - expected
        wrong += float((difference**2).sum())
        right_ones += float((expected**2).sum())
        error = np.abs(difference) / (np.abs(left) @ magnitude)
        total += float(error.sum())
        squares += float((error**2).sum())
        largest = max(largest, float(error.max()))
    mean = total / c.size
    deviation = max(0.0, squares / c.size - mean**2) ** 0.5
    return Errors(mean, deviation, largest, (wrong / right_ones) ** 0.5)


def rounded(values: Floats) -> Floats:
    """To bf16 and back."""
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def limbs(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """(M, 3K) and (3K, N) of bf16 values, whose product is that of (M, K) and (K, N) in two limbs.

    It leaves out lo lo.
    """
    high_a, high_b = rounded(a), rounded(b)
    low_a, low_b = rounded(a - high_a), rounded(b - high_b)
    return np.hstack([high_a, low_a, high_a]), np.vstack([high_b, high_b, low_b])


def measure(session: Session, size: Size) -> Outcome:
    """Simulates one product and judges it; again in two limbs if rounding alone misses the paper's
    largest error."""
    a, b = operands(size)
    c, seconds, read = multiply(session, a, b)
    arithmetic = relative_errors(c, rounded(a), rounded(b))
    outcome = Outcome(size, seconds, read, arithmetic, relative_errors(c, a, b))
    if outcome.rounding.largest <= PAPER_LARGEST:
        return outcome
    return replace(outcome, in_limbs=measure_limbs(session, size))


def measure_limbs(session: Session, size: Size) -> Outcome:
    """Simulates one product in two limbs and judges it against float32 operands."""
    a, b = operands(size)
    c, seconds, read = multiply(session, *limbs(a, b))
    errors = relative_errors(c, a, b)
    return Outcome(size, seconds, read, errors, errors)


def switch_seconds(session: Session, size: Size) -> float:
    """Time of a stream's writes to the cores: parameters and go locks. Every run has them."""
    m, k, n = padded(size)
    writes = sum(
        isinstance(operation, Write)
        and (core_memory_of(operation.address) or core_lock_of(operation.address)) is not None
        for words in session.build("matmul", {"M": m, "K": k, "N": n}, ["a", "b", "c"])
        for operation in decode(words).operations
    )
    return session.machine.clock.seconds(writes * costs.WRITE32.value)


def main() -> int:
    """Simulates all sizes and returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--eighth", action="store_true", help="simulate an eighth of every size")
    sizes = tuple(map(eighth, SIZES)) if parser.parse_args().eighth else SIZES
    session = Session(matmul.build(device("npu1"), "f32"))
    work = sum(m * k * n for m, k, n in sizes)
    print(f"{len(sizes)} products, {work / 1e9:.1f} G multiply-accumulates, on npu1", flush=True)
    print(
        "errors: mean and largest, of bf16 operands; mean, std, largest and norm, of float32 ones"
    )
    outcomes: list[Outcome] = []
    done, start = 0, time.monotonic()
    for size in sizes:
        outcomes.append(measure(session, size))
        done += size[0] * size[1] * size[2]
        passed = time.monotonic() - start
        print(f"{_line(outcomes[-1])}   {done / work:4.0%}, {passed:.0f} s", flush=True)
        if (again := outcomes[-1].in_limbs) is not None:
            print(f"{_line(again)}   in two limbs", flush=True)
    best = [(o.in_limbs or o).rounding for o in outcomes]
    for name, errors in (
        ("arithmetic", [o.arithmetic for o in outcomes]),
        ("with the rounding of the operands", [o.rounding for o in outcomes]),
        ("the same, in two limbs where that is more than the paper's", best),
    ):
        print(
            f"{name}: mean at most {max(e.mean for e in errors):.3g} (paper 5: {PAPER_MEAN:g}), "
            f"largest {max(e.largest for e in errors):.3g} (paper 5: {PAPER_LARGEST:g})"
        )
    means = [o.rounding.mean for o in outcomes]
    print(
        f"of the means of the {len(means)} products: mean {np.mean(means):.4%}, "
        f"std {np.std(means):.4%}, largest {max(means):.4%}"
    )
    _print_switches(session, outcomes)
    return int(
        any(
            errors.mean > PAPER_MEAN or errors.largest > PAPER_LARGEST
            for errors in (*(o.arithmetic for o in outcomes), *best)
        )
    )


def _line(outcome: Outcome) -> str:
    m, k, n = outcome.size
    own, all_in = outcome.arithmetic, outcome.rounding
    rate = 2 * m * k * n / outcome.seconds / 1e12
    return (
        f"{f'{m} x {k} x {n}':>18} {outcome.seconds * 1e6:9.1f} µs {rate:5.2f} TFLOP/s, "
        f"reads {outcome.read / 1e6:6.1f} MB; "
        f"{own.mean:.1e} {own.largest:.1e}; "
        f"{all_in.mean:.4%} {all_in.deviation:.4%} {all_in.largest:.4%} {all_in.norm:.4%}"
    )


def _print_switches(session: Session, outcomes: list[Outcome]) -> None:
    first = [DISPATCH + o.seconds for o in outcomes]
    own = max(switch_seconds(session, o.size) for o in outcomes)
    print(
        f"change of size: {own * 1e6:.1f} µs for two parameters and the go lock of each core, "
        "which every run writes: no more than repeating the same size"
    )

    def ratio(more: float) -> float:
        return float(np.mean([1 + more / seconds for seconds in first]))

    for name, more in (("firmware load (Strix)", FIRMWARE_LOAD), ("new context", NEW_CONTEXT)):
        print(
            f"whole configuration, {name}: {more * 1e6:.1f} µs more; the first run of a size takes "
            f"{ratio(more):.1f} times as long"
        )
    needed = (PAPER_RATIO - 1) / float(np.mean([1 / seconds for seconds in first]))
    print(f"paper 5's {PAPER_RATIO} times would be {needed * 1e6:.0f} µs with these runs")


if __name__ == "__main__":
    sys.exit(main())
