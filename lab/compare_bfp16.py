#!/usr/bin/env python
"""What weights in bfp16 give a prompt, by the closed forms: times of the products of llama-3.2-1b
and of their dequantisation, beside those in bfloat16. Nothing of it has been measured."""

from __future__ import annotations

import argparse
from dataclasses import replace

from ort_aie_ep.aie_kernels.dequant.cost import dequant
from ort_aie_ep.aie_kernels.gemm.cost import gemm
from ort_aie_ep.aie_kernels.kernel_cycles import OURS
from ort_aie_ep.aie_kernels.machine import Machine, Step
from ort_aie_ep.npu.terms.eras import ERAS

#: In-features and out-features: queries, keys and values; output; gate and up; down.
PRODUCTS = ((2048, 3072), (2048, 2048), (2048, 16384), (8192, 2048))


def of_layer(tokens: int, bfp16: bool) -> dict[str, list[Step]]:
    """The steps of a layer's products, by what they are."""
    return {
        "products": [step for k, n in PRODUCTS for step in gemm(tokens, k, n, OURS, bfp16=bfp16)],
        "dequantisation": [
            step for k, n in PRODUCTS for step in dequant(n, k, kernels=OURS, bfp16=bfp16)
        ],
    }


def main() -> None:
    """Prints one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1024, help="of a prompt (default: 1024)")
    tokens = parser.parse_args().tokens
    print(f"| a layer of llama-3.2-1b, {tokens:,} tokens | era | bf16, µs | bfp16, µs | ratio |")
    print("|---|---|---:|---:|---:|")
    for era in ERAS.values():
        machine = replace(Machine.of(era), kernels=OURS)
        wide, narrow = of_layer(tokens, False), of_layer(tokens, True)
        for part in wide:
            before, after = (machine.seconds(tuple(steps[part])) * 1e6 for steps in (wide, narrow))
            ratio = f"{before / after:.2f}"
            print(f"| {part} | {era.name} | {before:,.0f} | {after:,.0f} | {ratio} |")


if __name__ == "__main__":
    main()
