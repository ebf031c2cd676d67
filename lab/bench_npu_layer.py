"""Whole decoder layers of real models on the simulated NPU, compared bit by bit with numpy.

    python lab/bench_npu_layer.py                               # three models, 1,024 keys
    python lab/bench_npu_layer.py llama-3.2-1b --context 4096
    python lab/bench_npu_layer.py gemma4-e2b gemma4-e4b  # layers with a window, without the
                                                         # per-layer input

Simulates the sequence `layer` of the overlay `fused_layer`, byte by byte, with
random weights, and computes the same layer operator by operator in numpy, with the chip's kernels
compiled for this CPU. Fails unless all bits of the output and of the caches agree. The last column
is the time in which DDR alone would read the same bytes. Times are those of the modelled device;
nothing here has run on an NPU yet.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from rich.console import Console
from rich.table import Table

from ort_aie_ep.aie_kernels.fused_layer import design as fused_layer
from ort_aie_ep.aie_kernels.fused_layer.reference import Layer, Operators
from ort_aie_ep.aie_kernels.reference import bits
from ort_aie_ep.cli.console import bar
from ort_aie_ep.models.shapes import SHAPES, Shape
from ort_aie_ep.npu.simulator.session import Session
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.device import device

MODELS = ("llama-3.2-1b", "qwen3-8b", "gemma3-4b")
FAMILIES = {"llama", "mistral", "qwen2", "qwen3", "gemma3_text"}
KEYS_OF_A_CHUNK = 4096  # elements
# Layers with a window of Gemma 4 (mlir-aie, python/iron/kernels/flm_gemma4.py).
GEMMA4 = {
    "gemma4-e2b": {"hidden": 1536, "kv_heads": 1, "ffn": 6144},
    "gemma4-e4b": {"hidden": 2560, "kv_heads": 2, "ffn": 10240},
}


def layer_of(shape: Shape, context: int) -> Layer:
    """The first layer of a model, with `context` keys, the token's own among them."""
    keys = KEYS_OF_A_CHUNK // shape.head_dim
    gemma = shape.family == "gemma3_text"
    return Layer(
        {
            "hidden": shape.hidden, "heads": shape.heads, "kv_heads": shape.kv_heads,
            "head_dim": shape.head_dim, "rotary_dim": shape.rotary or shape.head_dim,
            "interleaved": 0, "ffn": shape.ffn, "gelu": int(gemma),
            "head_norm": int(gemma or shape.family == "qwen3"), "post_norm": int(gemma),
            "bias": int(shape.family == "qwen2"), "context": context,
            "capacity": -(-context // keys) * keys,
            "window": shape.window or 0 if shape.is_local(0) else 0,
            "scale_bits": bits(shape.head_dim**-0.5), "softcap_bits": 0,
            "eps_bits": bits(shape.epsilon),
        }
    )  # fmt: skip


def gemma4_layer(name: str, context: int) -> Layer:
    """A layer with a window of 512 and heads of 256."""
    keys = KEYS_OF_A_CHUNK // 256
    return Layer(
        {
            **GEMMA4[name], "heads": 8, "head_dim": 256, "rotary_dim": 256, "interleaved": 0,
            "gelu": 1, "head_norm": 1, "post_norm": 1, "bias": 0, "context": context,
            "capacity": -(-context // keys) * keys, "window": 512, "scale_bits": bits(1.0),
            "softcap_bits": 0, "eps_bits": bits(1e-6),
        }
    )  # fmt: skip


def main() -> None:
    """Simulate, compare, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    known = [name for name, shape in SHAPES.items() if shape.family in FAMILIES]
    parser.add_argument("models", nargs="*", default=MODELS, choices=[*known, *GEMMA4, MODELS])
    parser.add_argument("--context", type=int, default=1024, help="keys with the token's own")
    options = parser.parse_args()
    design = fused_layer.build(device("npu2"))
    reference = Operators()
    console = Console()
    table = Table(
        "model", "µs", "GB/s read", "MB read", "KB written", "busiest core", "DDR alone, µs",
        title=f"a layer with {options.context} keys on the modelled npu2",
    )  # fmt: skip
    began = time.perf_counter()
    for name in options.models:
        if name in GEMMA4:
            layer = gemma4_layer(name, options.context)
        else:
            layer = layer_of(SHAPES[name], options.context)
        buffers = layer.random(seed=0)
        expected = reference.layer(layer, buffers)
        with bar(name, "operations") as progress:
            results = Session(design).run("layer", layer.parameters, buffers, progress)
        for argument, values in expected.items():
            different = np.count_nonzero(buffers[argument].view("u2") != values.view("u2"))
            if different:
                raise SystemExit(f"{name}: {different} of {values.size} numbers of {argument}")
        (result,) = results
        busiest = max(w["kernel"] for w in result.workers.values()) / result.seconds
        table.add_row(
            name, f"{result.seconds * 1e6:,.1f}", f"{result.read / result.seconds / 1e9:.1f}",
            f"{result.read / 1e6:.1f}", f"{result.written / 1e3:.1f}", f"{busiest:.0%}",
            f"{result.read / costs.DDR_READ.value * 1e6:,.1f}",
        )  # fmt: skip
    console.print(table)
    console.print(
        "y and both caches have the bits of the operators in numpy; "
        f"{time.perf_counter() - began:.0f} s in all"
    )


if __name__ == "__main__":
    main()
