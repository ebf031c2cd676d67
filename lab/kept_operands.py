#!/usr/bin/env python
"""What a prompt would gain if memory tiles kept an operand of its products: what bounds a step of K
of `gemm_bfp16`, and whole prompts of which the products read an operand once, by the closed forms.

    python lab/kept_operands.py
    python lab/kept_operands.py --simulate

`gemm_bfp16` reads A once for each 512 columns of C, and B once for each 512 rows. Nothing of it has
been measured.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from math import ceil

from ort_aie_ep.aie_kernels.gemm.cost import GEMM_SLAB, SUPERTILE, gemm
from ort_aie_ep.aie_kernels.gemm_bfp16.design import build
from ort_aie_ep.aie_kernels.kernel_cycles import (
    GEMM_COLUMNS,
    GEMM_DEPTH,
    GEMM_ROWS,
    OURS,
    kernels_of,
)
from ort_aie_ep.aie_kernels.machine import BF16, Machine, Step, stream, weights_bytes
from ort_aie_ep.npu.simulator.session import Session, random_buffers
from ort_aie_ep.npu.terms.configuration import configure
from ort_aie_ep.npu.terms.device import TILES, device
from ort_aie_ep.npu.terms.eras import ERAS, SILICON_2026, Era
from ort_aie_ep.prediction.composition import compose, schedule
from ort_aie_ep.prediction.shapes import plans_of, shape_of
from ort_aie_ep.prediction.simulation import machine

MODELS = ("llama-3.2-1b", "qwen3-4b", "llama-3.1-8b")
#: Cycles of AMD's kernel for 64^3 with both operands in bfp16 (mlir-aie's kernel table, AIE2P).
BOTH_BFP16 = 951
STEP_COLUMNS = GEMM_COLUMNS // GEMM_DEPTH  # of 64^3 in a core's step of K

Product = tuple[int, int, int]  # M, K, N
Steps = tuple[Step, ...]


@dataclass(frozen=True)
class Room:
    """The K up to which an operand fits a memory tile beside what else `gemm_bfp16` has there."""

    a: int
    b: int

    @classmethod
    def of_design(cls) -> Room:
        """By the buffers of the design on npu2; an operand's own are part of its room."""
        memory = configure(build(device("npu2"))).memory
        left = TILES["mem"].memory - max(n for tile, n in memory.items() if tile.kind == "mem")
        of_a, of_b = GEMM_ROWS * BF16, weights_bytes(GEMM_COLUMNS, bfp16=True)  # of one k

        def k(bytes_of_k: int) -> int:
            return (left // bytes_of_k + 2 * GEMM_SLAB) // GEMM_SLAB * GEMM_SLAB

        return cls(k(of_a), k(of_b))


def as_built(product: Product) -> Steps:
    """The steps of `gemm_bfp16`."""
    return gemm(*product, OURS, bfp16=True)


def a_read_once(product: Product) -> Steps:
    """The same, if a memory tile kept the rows of A of its column."""
    m, k, n = product
    first, *rest = as_built(product)
    padded, passes = ceil(k / GEMM_SLAB) * GEMM_SLAB, ceil(m / SUPERTILE)
    a = passes * SUPERTILE * padded * BF16
    return (replace(first, read=a + passes * weights_bytes(padded * n, bfp16=True)), *rest)


def nothing_read(product: Product) -> Steps:
    """The same with a memory that takes no time: more than any reuse could give."""
    return tuple(replace(step, read=0) for step in as_built(product))


def a_in_bfp16(product: Product) -> Steps:
    """The same with A in bfp16 in memory too, and AMD's kernel for it."""
    first, *rest = as_built(product)
    narrow = (2 * weights_bytes(8, bfp16=True)) / (8 * BF16 + weights_bytes(8, bfp16=True))
    faster = STEP_COLUMNS * BOTH_BFP16 / OURS.gemm_step_bfp16
    return (replace(first, read=first.read * narrow, kernels=first.kernels * faster), *rest)


VARIANTS: dict[str, Callable[[Product], Steps]] = {
    "A read once": a_read_once,
    "no time to read": nothing_read,
    "A in bfp16": a_in_bfp16,
}


@dataclass(frozen=True)
class Prompt:
    """A prompt on a machine: its seconds, and how often `gemm_bfp16` computes which product."""

    on: Machine
    seconds: float
    products: Counter[Product]

    @classmethod
    def of(cls, model: str, tokens: int, era: Era) -> Prompt:
        """By this library's plan and the costs of its designs."""
        on = replace(machine("npu2", era), kernels=kernels_of(era))
        plans = plans_of(shape_of(model))
        found: Counter[Product] = Counter()
        for plan in plans:
            scheduled = schedule(plan, tokens, tokens, one_xclbin=on.one_context)
            for stage in scheduled["stages"]:
                for part in chain.from_iterable(s["parts"] for s in stage["submissions"]):
                    for sequence, p in part["invocations"]:
                        if (part["design"], sequence) == ("gemm_bfp16", "gemm"):
                            found[p["M"], p["K"], p["N"]] += 1
        return cls(on, compose(plans, tokens, tokens, on).timing.seconds, found)

    def of_products(self, steps_of: Callable[[Product], Steps]) -> float:
        """Seconds."""
        return sum(n * self.on.seconds(steps_of(p)) for p, n in self.products.items())

    def read(self, steps_of: Callable[[Product], Steps]) -> float:
        """GB of the products."""
        return sum(n * s.read for p, n in self.products.items() for s in steps_of(p)) / 1e9

    def up_to(self, most: int) -> float:
        """The share of multiplications that are in products of no larger K."""
        work = {p: n * p[0] * p[1] * p[2] for p, n in self.products.items()}
        return sum(size for p, size in work.items() if p[1] <= most) / sum(work.values())


def print_step(eras: list[Era]) -> None:
    """What bounds 64 of K on all cores, µs by era."""
    print("| a step of K, µs | kernel | reads | B's channel | A's channel |")
    print("|---|---:|---:|---:|---:|")
    b = weights_bytes(GEMM_DEPTH * GEMM_COLUMNS, bfp16=True)
    for era in eras:
        on = Machine.of(era)
        read = SUPERTILE * GEMM_DEPTH * BF16 + SUPERTILE // GEMM_COLUMNS * b
        cycles = OURS.gemm_step_bfp16, stream(b), stream(GEMM_ROWS * GEMM_DEPTH * BF16)
        kernel, of_b, of_a = (c / on.clock_hz * 1e6 for c in cycles)
        reads = read / on.ddr_read * 1e6
        print(f"| {era.name} | {kernel:.2f} | {reads:.2f} | {of_b:.2f} | {of_a:.2f} |")


def print_prompts(tokens: int, eras: list[Era], room: Room) -> None:
    """Whole prompts, by model and era."""
    heads = ["s", "products", "GB", "GB, A once", "fits", *VARIANTS]
    print(f"\n| a prompt of {tokens:,} | era | {' | '.join(heads)} |")
    print("|---|---|" + "---:|" * len(heads))
    for model in MODELS:
        for era in eras:
            prompt = Prompt.of(model, tokens, era)
            now, whole = prompt.of_products(as_built), prompt.seconds
            cells = [
                model, era.name, f"{whole:.3f}", f"{now / whole:.0%}",
                f"{prompt.read(as_built):.1f}", f"{prompt.read(a_read_once):.1f}",
                f"{prompt.up_to(room.a):.0%}",
                *(f"{(prompt.of_products(v) - now) / whole:+.1%}" for v in VARIANTS.values()),
            ]  # fmt: skip
            print(f"| {' | '.join(cells)} |")


def print_simulated(product: Product, era: Era) -> None:
    """A product on the simulator, with the era's memory and with one four times as fast."""
    design = build(device("npu2"))
    shape = dict(zip("MKN", product, strict=True))
    for faster in (1, 4):
        memory = replace(era.ddr_read, value=faster * era.ddr_read.value)
        session = Session(design, era=replace(era, ddr_read=memory))
        results = session.run("gemm", shape, random_buffers(design, "gemm", shape))
        taken = sum(result.seconds for result in results) * 1e6
        print(f"{product}, {era.name}, simulated: {taken:.1f} µs at {memory.value / 1e9:.1f} GB/s")


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1024, help="of a prompt (default: 1024)")
    parser.add_argument(
        "--simulate", action="store_true", help="a product on the simulator instead (a minute)"
    )
    args = parser.parse_args()
    if args.simulate:
        print_simulated((1024, 2048, 2048), SILICON_2026)
        return
    eras, room = list(ERAS.values()), Room.of_design()
    print(f"A fits up to K = {room.a:,}, B of a row of cores up to K = {room.b:,}\n")
    print_step(eras)
    print_prompts(args.tokens, eras, room)


if __name__ == "__main__":
    main()
