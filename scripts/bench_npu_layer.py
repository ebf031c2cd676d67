"""One decoder layer of a real model on the simulated NPU: every step, and all in one stream.

    python scripts/bench_npu_layer.py                               # llama-3.2-1b, 1,024 keys
    python scripts/bench_npu_layer.py --model llama-3.2-3b --context 4096

The script simulates the layer on the overlay `decode`, byte by byte, with random weights: first
each step alone, then all steps as one run. It prints the closed forms of the performance model
beside them. Times are those of the modelled device; nothing here has run on an NPU yet.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from rich.console import Console
from rich.table import Table

from ort_aie_ep import _native
from ort_aie_ep.aie_kernels.designs import decode
from ort_aie_ep.cli.console import bar
from ort_aie_ep.models.shapes import SHAPES, Shape
from ort_aie_ep.npu.packages.package import manifest
from ort_aie_ep.npu.simulator.machine import Machine, Result
from ort_aie_ep.npu.speed.kernels import OURS
from ort_aie_ep.npu.speed.operators import Machine as Model
from ort_aie_ep.npu.speed.phases import decode as predict
from ort_aie_ep.npu.vocabulary import costs
from ort_aie_ep.npu.vocabulary.device import device
from ort_aie_ep.progress import Count

EPSILON_BITS = int(np.float32(1e-5).view(np.int32))
KEYS_OF_A_CHUNK = 4096  # elements


@dataclass
class Layer:
    """A layer's steps, in the form that `npu_build` accepts, and the sizes of its five buffers."""

    shape: Shape
    context: int
    steps: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)  # byte offsets of activations
    activations: int = 0
    weights: int = 0

    def __post_init__(self) -> None:
        s = self.shape
        keys = KEYS_OF_A_CHUNK // s.head_dim
        self.capacity = -(-self.context // keys) * keys
        rope = {
            "tokens": 1, "head_dim": s.head_dim, "rotary_dim": s.head_dim, "interleaved": 0,
            "norm": 0, "eps_bits": 0,
        }  # fmt: skip
        tables = {"weight": (2, 0), "table": (2, 2 * s.hidden)}
        cached = {
            "kv_heads": s.kv_heads, "position": self.context - 1, "capacity": self.capacity,
        }  # fmt: skip
        wide = s.queries + 2 * s.keys
        self._norm("input norm", "x", "normed")
        self._matvec("q, k, v", wide, s.hidden, "normed", "qkv")
        self._add("rope", "q rotated", {"heads": s.heads} | rope, x=self._at("qkv", wide),
                  y=self._at("q", s.queries), **tables)  # fmt: skip
        self._add("append", "k into the cache", cached | rope,
                  x=self._at("qkv", wide, s.queries), cache=(3, 0), **tables)  # fmt: skip
        self._add("append", "v into the cache", cached | rope | {"rotary_dim": 0},
                  x=self._at("qkv", wide, s.queries + s.keys), cache=(4, 0), **tables)  # fmt: skip
        self._add(
            "attention", "attention",
            {
                "heads": s.heads, "kv_heads": s.kv_heads, "head_dim": s.head_dim,
                "context": self.context, "capacity": self.capacity, "window": 0,
                "scale_bits": int(np.float32(s.head_dim**-0.5).view(np.int32)),
                "softcap_bits": 0,
            },
            q=self._at("q", s.queries), k=(3, 0), v=(4, 0), o=self._at("o", s.queries),
        )  # fmt: skip
        self._matvec("output", s.hidden, s.queries, "o", "projected")
        self._norm("norm and residual", "projected", "normed", residual=True)
        self._matvec("gate and up", 2 * s.ffn, s.hidden, "normed", "gate_up")
        self._add("glu", "SiLU times up", {"n": s.ffn, "rows": 1, "kind": 0},
                  gate_up=self._at("gate_up", 2 * s.ffn), y=self._at("gated", s.ffn))  # fmt: skip
        self._matvec("down", s.hidden, s.ffn, "gated", "down")

    def _at(self, name: str, size: int, element: int = 0) -> tuple[int, int]:
        if name not in self.places:
            self.places[name] = self.activations
            self.activations += 2 * size
        return 0, self.places[name] + 2 * element

    def _add(
        self, sequence: str, title: str, parameters: dict[str, int], **places: tuple[int, int]
    ) -> None:
        step = {"sequence": sequence, "parameters": parameters, "arguments": places}
        self.steps.append((title, step))

    def _matvec(self, title: str, n: int, k: int, x: str, y: str) -> None:
        self._add("matvec", title, {"N": n, "K": k, "bias": 0, "activation": 0},
                  x=self._at(x, k), w=(1, self.weights), bias=(1, 0), y=self._at(y, n))  # fmt: skip
        self.weights += n // 32 * (k // 256) * 5120

    def _norm(self, title: str, x: str, y: str, *, residual: bool = False) -> None:
        n = self.shape.hidden
        self._add(
            "rms_norm", title,
            {"n": n, "rows": 1, "residual": int(residual), "eps_bits": EPSILON_BITS},
            x=self._at(x, n), residual=self._at("x", n), weight=(2, 0),
            sum=self._at("x" if not residual else "sum", n), y=self._at(y, n),
        )  # fmt: skip

    def buffers(self) -> list[tuple[str, np.ndarray]]:
        """Random numbers that are finite as bfloat16 and as Q4NX."""
        rng = np.random.default_rng(0)
        cache = 2 * self.shape.keys * self.capacity
        sizes = {
            "activations": self.activations, "weights": self.weights,
            "constants": 2 * self.shape.hidden + 512, "k": cache, "v": cache,
        }  # fmt: skip
        return [
            (n, (rng.standard_normal(b // 2) * 0.02).astype(ml_dtypes.bfloat16).view(np.uint8))
            for n, b in sizes.items()
        ]


def run(machine: Machine, described: str, layer: Layer, steps: list[dict[str, Any]]) -> Result:
    """The result of the steps as one stream."""
    runs = _native.npu_build(described, steps)
    results = [machine.run(np.asarray(r["words"]), layer.buffers()) for r in runs]
    if len(results) != 1:
        raise SystemExit(f"{len(results)} runs; a layer should be one")
    return results[0]


def main() -> None:
    """Simulate, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="llama-3.2-1b", choices=[
        name for name, shape in SHAPES.items() if shape.family == "llama"
    ])  # fmt: skip
    parser.add_argument(
        "--context", type=int, default=1024, help="number of keys, including the token's own"
    )
    options = parser.parse_args()
    shape = SHAPES[options.model]
    design = decode.build(device("npu2"))
    described = json.dumps(manifest(design))
    layer, machine = Layer(shape, options.context), Machine(design)
    console = Console()
    table = Table("step", "µs", "GB/s read", "busiest core", title=(
        f"one layer of {options.model}, {options.context} keys, on the modelled npu2"
    ))  # fmt: skip
    began = time.perf_counter()
    with bar("simulate", "steps") as progress:
        count = Count(progress, 2 * len(layer.steps))
        for title, step in layer.steps:
            count.begin(title)
            result = run(machine, described, layer, [step])
            busiest = max(w["kernel"] for w in result.workers.values()) / result.seconds
            rate = result.read / result.seconds / 1e9
            table.add_row(title, f"{result.seconds * 1e6:.1f}", f"{rate:.1f}", f"{busiest:.0%}")
            count.step()
        count.begin("all, one stream")
        whole = run(machine, described, layer, [step for _, step in layer.steps])
        count.step(len(layer.steps))
    rate = whole.read / whole.seconds / 1e9
    table.add_section()
    table.add_row("all, one stream", f"{whole.seconds * 1e6:.1f}", f"{rate:.1f}", "")
    model = predict(shape, options.context, Model(kernels=OURS))
    parts = sum(model.parts[p] for p in ("projections", "attention", "vector")) / shape.layers
    table.add_row("the performance model", f"{parts * 1e6:.1f}", "", "")
    console.print(table)
    console.print(
        f"{whole.operations} operations; DDR {costs.DDR_READ.value / 1e9:.1f} GB/s; simulated in "
        f"{time.perf_counter() - began:.1f} s"
    )


if __name__ == "__main__":
    main()
