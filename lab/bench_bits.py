"""Projections at 2, 4 and 8 bits: ort_aie_ep's operators and ONNX Runtime's.

    python lab/bench_bits.py                                # llama-3.2-1b, four layers
    python lab/bench_bits.py --rows 1 --rounds 30
    python lab/bench_bits.py --bits 8 4 --lm-head 32768     # an lm_head alone
    python lab/bench_bits.py --bits 8 --lm-head 32768 --ggml FOLDER

Weights are random. q, k, v, output, gate, up and down are separate MatMulNBits nodes. The same
graph is compiled for ort_aie_ep, or run by ONNX Runtime's CPU EP alone. Variants run in interleaved
rounds: a round repeats each variant for `--seconds` and uses the fastest call, and ratios are
within a round. Prints Markdown.

FOLDER has llama.cpp's libggml-base.so and libggml-cpu.so, as the package llama-cpp-python installs
them: an lm_head of one row is also multiplied as Q8_0.
"""

from __future__ import annotations

import argparse
import ctypes
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
from ort_aie_ep.tools.bench.statistics import Interval, median, ratio

BLOCK = 32
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


def variants(
    parts: list[Projection], every_bits: list[int], level: int, rows: int, threads: int
) -> list[Variant]:
    """ort_aie_ep's and ONNX Runtime's variants at each number of bits, the reference first."""
    found = []
    for bits in every_bits:
        model = model_of(parts, bits, level)
        source = ir.to_proto(model).SerializeToString()
        codes = sum(p.n * p.k for p in parts) * bits // 8
        groups = sum(p.n * p.k for p in parts) // BLOCK
        run_passes(model)
        compiled = ir.to_proto(model).SerializeToString()
        options = Options("host", threads=threads)
        sessions = {
            # Its scales are bfloat16, or float32 with 8 bits.
            "ort_aie_ep": (
                open_operator(compiled, options),
                codes + (4 if bits == 8 else 2) * groups,
            ),
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


class _InitParams(ctypes.Structure):
    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


def q8_0(folder: Path, n: int, k: int, threads: int) -> Variant:
    """A row by (n, k) weights of Q8_0: blocks of 32 codes and a float16 scale."""
    base = ctypes.CDLL(str(folder / "libggml-base.so"), ctypes.RTLD_GLOBAL)
    cpu = ctypes.CDLL(str(folder / "libggml-cpu.so"), ctypes.RTLD_GLOBAL)
    pointer, size = ctypes.c_void_p, n * k // 32 * 34
    base.ggml_init.argtypes, base.ggml_init.restype = [_InitParams], pointer
    base.ggml_new_tensor_2d.argtypes = [pointer, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    base.ggml_new_tensor_2d.restype = base.ggml_mul_mat.restype = pointer
    base.ggml_mul_mat.argtypes = [pointer] * 3
    base.ggml_get_data.argtypes, base.ggml_get_data.restype = [pointer], pointer
    base.ggml_new_graph.argtypes, base.ggml_new_graph.restype = [pointer], pointer
    base.ggml_build_forward_expand.argtypes = [pointer] * 2
    cpu.ggml_graph_compute_with_ctx.argtypes = [pointer, pointer, ctypes.c_int]
    cpu.ggml_cpu_init()
    # Each computation takes working memory from the context, so it has its own.
    weights_context = base.ggml_init(_InitParams(size + (1 << 20), None, False))
    w = base.ggml_new_tensor_2d(weights_context, 8, k, n)  # GGML_TYPE_Q8_0
    a = base.ggml_new_tensor_2d(weights_context, 0, k, 1)  # GGML_TYPE_F32
    rng = np.random.default_rng(0)
    blocks = np.empty((n * k // 32, 34), np.uint8)
    blocks[:, 2:] = rng.integers(0, 256, (n * k // 32, 32), np.uint8)
    blocks[:, :2] = np.full((len(blocks), 1), 0.01, np.float16).view(np.uint8)
    ctypes.memmove(base.ggml_get_data(w), blocks.ctypes.data, size)
    row = rng.standard_normal(k, np.float32)
    ctypes.memmove(base.ggml_get_data(a), row.ctypes.data, row.nbytes)
    memory = np.empty(64 << 20, np.uint8)

    def run() -> None:
        context = base.ggml_init(_InitParams(memory.nbytes, memory.ctypes.data, False))
        graph = base.ggml_new_graph(context)
        base.ggml_build_forward_expand(graph, base.ggml_mul_mat(context, w, a))
        cpu.ggml_graph_compute_with_ctx(context, graph, threads)
        base.ggml_free(ctypes.c_void_p(context))

    return Variant("Q8_0, llama.cpp", run, size)


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
    found = variants(parts, options.bits, level, rows, options.threads)
    reference = found[0].name
    if options.ggml is not None and rows == 1 and options.lm_head:
        (head,) = parts
        found.append(q8_0(options.ggml, head.n, head.k, options.threads))
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
    print(f"| | ms | {rate} | time / {reference} |\n|---|---:|---:|---:|")
    for variant in found:
        times = rounds[variant.name]
        speed = (variant.bytes if rows == 1 else flops) / median(times).value / 1e9
        relative = ratio(times, rounds[reference])
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
    parser.add_argument("--bits", type=int, nargs="+", default=[2, 4], choices=[2, 4, 8])
    parser.add_argument("--lm-head", type=int, metavar="N", help="an lm_head alone, of this width")
    parser.add_argument("--ggml", type=Path, metavar="FOLDER", help="llama.cpp's libraries")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 128])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.2, help="time for a variant in a round")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    parts = projections(SHAPES[options.model], options.layers)
    what = f"{options.layers} layers"
    if options.lm_head:
        what = "the lm_head"
        parts = [Projection("lm_head", options.lm_head, SHAPES[options.model].hidden, "x")]
    print(
        f"{what} of {options.model}, {len(parts)} projections of "
        f"{sum(p.n * p.k for p in parts) / 1e6:.0f} million weights; {options.threads} thread(s); "
        f"kernels {_native.selected_isa()}; onnxruntime {onnxruntime.__version__}; median of "
        f"{options.rounds} rounds with its 95 % bounds"
    )
    for rows in options.rows:
        for level in LEVELS:
            measure(parts, level, rows, options)


if __name__ == "__main__":
    main()
