"""The projections of decoder layers at 2 and 4 bits: ort_aie_ep's operators and ONNX Runtime's.

    python scripts/bench_two_bits.py                                # llama-3.2-1b, four layers
    python scripts/bench_two_bits.py --rows 1 --rounds 30

Weights are random. q, k, v, output, gate, up and down are separate MatMulNBits nodes. The same
graph is compiled for ort_aie_ep, or run by ONNX Runtime's CPU EP alone. Variants run in interleaved
rounds: a round repeats each variant for `--seconds` and uses the fastest call, and ratios are
within a round. Prints Markdown.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime

from ort_aie_ep import _native
from ort_aie_ep.cli.console import bar
from ort_aie_ep.graph_passes import run_passes
from ort_aie_ep.models.shapes import SHAPES, Shape
from ort_aie_ep.progress import Count
from ort_aie_ep.runtime.sessions import Options, open_edited, open_operator
from ort_aie_ep.tools.bench.peers.statistics import Interval, median, ratio

BLOCK = 32
REFERENCE = "2 bits, ort_aie_ep"
# Accuracy levels and their names; ONNX Runtime's level 0 has float activations.
LEVELS = {0: "bf16 (ONNX Runtime: float)", 4: "int8"}


@dataclass(frozen=True)
class Projection:
    """y (rows, n) = a (rows, k) . W^T; projections of one `a` share it."""

    name: str
    n: int
    k: int
    a: str


@dataclass(frozen=True)
class Variant:
    """A way to run the projections, and the bytes of weights that it reads for one row."""

    name: str
    run: Callable[[], None]
    bytes: int


def projections(shape: Shape, layers: int) -> list[Projection]:
    """All projections of the first `layers` layers."""
    s = shape
    sizes = [
        ("q", s.queries, s.hidden, "x"), ("k", s.keys, s.hidden, "x"), ("v", s.keys, s.hidden, "x"),
        ("o", s.hidden, s.queries, "attended"), ("gate", s.ffn, s.hidden, "normed"),
        ("up", s.ffn, s.hidden, "normed"), ("down", s.hidden, s.ffn, "gated"),
    ]  # fmt: skip
    return [Projection(f"{name}{i}", n, k, a) for i in range(layers) for name, n, k, a in sizes]


def model_of(parts: list[Projection], bits: int, level: int) -> ir.Model:
    """A MatMulNBits for each projection, symmetric, random codes and scales."""
    rng = np.random.default_rng(0)
    inputs = {p.a: _value(p.a, p.k) for p in parts}
    nodes, initializers = [], []
    for p in parts:
        blocks = p.k // BLOCK
        b = np.frombuffer(rng.bytes(p.n * p.k * bits // 8), np.uint8)
        scales = (rng.random((p.n, blocks), np.float32) + 0.5) / np.float32(2**bits * p.k**0.5)
        arrays = {"B": b.reshape(p.n, blocks, BLOCK * bits // 8), "scales": scales}
        weights = [ir.tensor(array, name=f"{p.name}.{name}") for name, array in arrays.items()]
        values = [ir.Value(name=t.name, shape=t.shape, const_value=t,
                           type=ir.TensorType(t.dtype)) for t in weights]  # fmt: skip
        initializers += values
        nodes.append(
            ir.node("MatMulNBits", [inputs[p.a], *values], domain="com.microsoft", name=p.name,
                    attributes={"K": p.k, "N": p.n, "bits": bits, "block_size": BLOCK,
                                "accuracy_level": level},
                    outputs=[_value(f"{p.name}.y", p.n)])
        )  # fmt: skip
    graph = ir.Graph(
        list(inputs.values()), [node.outputs[0] for node in nodes], nodes=nodes,
        initializers=initializers, opset_imports={"": 21, "com.microsoft": 1}, name="projections",
    )  # fmt: skip
    return ir.Model(graph, ir_version=10)


def _value(name: str, width: int) -> ir.Value:
    return ir.Value(
        name=name, shape=ir.Shape(["rows", width]), type=ir.TensorType(ir.DataType.FLOAT)
    )


def variants(parts: list[Projection], level: int, rows: int, threads: int) -> list[Variant]:
    """ort_aie_ep's and ONNX Runtime's variants at 2 and 4 bits, the reference first."""
    found = []
    for bits in (2, 4):
        model = model_of(parts, bits, level)
        source = ir.to_proto(model).SerializeToString()
        codes = sum(p.n * p.k for p in parts) * bits // 8
        groups = sum(p.n * p.k for p in parts) // BLOCK
        run_passes(model)
        compiled = ir.to_proto(model).SerializeToString()
        options = Options("host", threads=threads)
        sessions = {
            # Its scales are bfloat16.
            "ort_aie_ep": (open_operator(compiled, options), codes + 2 * groups),
            # The folder is where external weights would be.
            "ONNX Runtime": (open_edited(source, Path(), options), codes + 4 * groups),
        }
        for name, (session, size) in sessions.items():
            found.append(Variant(f"{bits} bits, {name}", _runner(session, rows), size))
    return found


def _runner(session: onnxruntime.InferenceSession, rows: int) -> Callable[[], None]:
    """A function that runs a session whose inputs and outputs are bound once."""
    rng = np.random.default_rng(1)
    binding = session.io_binding()
    for value in session.get_inputs():
        a = rng.standard_normal((rows, value.shape[1]), np.float32)
        binding.bind_ortvalue_input(value.name, onnxruntime.OrtValue.ortvalue_from_numpy(a))
    for value in session.get_outputs():
        y = np.zeros((rows, value.shape[1]), np.float32)
        binding.bind_ortvalue_output(value.name, onnxruntime.OrtValue.ortvalue_from_numpy(y))
    return lambda: session.run_with_iobinding(binding)


def time_of(run: Callable[[], None], seconds: float) -> float:
    """The fastest of the calls that fit, at least one: other programs can only slow a call down."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times)


def measure(parts: list[Projection], level: int, rows: int, options: argparse.Namespace) -> None:
    """One table: all variants at one accuracy level and number of rows."""
    found = variants(parts, level, rows, options.threads)
    for variant in found:
        variant.run()
    rounds: dict[str, list[float]] = {variant.name: [] for variant in found}
    title = f"{rows} rows, {LEVELS[level]}"
    with bar(title, "rounds") as progress:
        count = Count(progress, options.rounds)
        count.begin("")
        for _ in range(options.rounds):
            for variant in found:
                rounds[variant.name].append(time_of(variant.run, options.seconds))
            count.step()
    flops = 2 * rows * sum(p.n * p.k for p in parts)
    print(f"\n**{rows} row{'s' if rows > 1 else ''}, {LEVELS[level]}**\n")
    rate = "GB/s of weights" if rows == 1 else "GFLOP/s"
    print(f"| | ms | {rate} | time / {REFERENCE} |\n|---|---:|---:|---:|")
    for variant in found:
        times = rounds[variant.name]
        speed = (variant.bytes if rows == 1 else flops) / median(times).value / 1e9
        relative = ratio(times, rounds[REFERENCE])
        print(f"| {variant.name} | {_text(median(times), 1e3)} | {speed:.1f} | {_text(relative)} |")


def _text(interval: Interval, factor: float = 1) -> str:
    value, low, high = (x * factor for x in (interval.value, interval.low, interval.high))
    return f"{value:.2f} ({low:.2f}-{high:.2f})"


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="llama-3.2-1b", choices=list(SHAPES))
    parser.add_argument(
        "--layers", type=int, default=4, help="enough to exceed the caches (default 4)"
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 128])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.2, help="time for a variant in a round")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    parts = projections(SHAPES[options.model], options.layers)
    print(
        f"{options.layers} layers of {options.model}, {len(parts)} projections of "
        f"{sum(p.n * p.k for p in parts) / 1e6:.0f} million weights; {options.threads} thread(s); "
        f"kernels {_native.selected_isa()}; onnxruntime {onnxruntime.__version__}; median of "
        f"{options.rounds} rounds with its 95 % bounds"
    )
    for rows in options.rows:
        for level in LEVELS:
            measure(parts, level, rows, options)


if __name__ == "__main__":
    main()
