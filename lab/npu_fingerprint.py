"""Hashes of all that the NPU's designs come to: run it before and after a change that keeps them.

    python lab/npu_fingerprint.py > before        # then the change
    python lab/npu_fingerprint.py | diff before -

A line for each design, form of weights and device has the hashes of the printed MLIR, of the
manifest, of its kernels (arguments, limits, cycles), and of the instruction words of each sequence
for small shapes. Sources are named by their files, wherever those are.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ort_aie_ep import _npu
from ort_aie_ep.aie_kernels.build import designs_on
from ort_aie_ep.aie_kernels.mlir.module import print_module
from ort_aie_ep.npu.checks.progress import small_shapes
from ort_aie_ep.npu.packages.package import manifest
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.device import DEVICES
from ort_aie_ep.npu.terms.kernel import Kernel
from ort_aie_ep.npu.terms.sequence import Sequence

SCALARS = (0, 1, 8, 32, 64, 128, 256)  # of which each kernel's cycles and limits are asked


def main() -> None:
    """Print them."""
    for device in DEVICES.values():
        for package, design in sorted(designs_on(device).items()):
            for what, value in facts(design):
                digest = hashlib.sha256(value.encode()).hexdigest()[:16]
                print(package, device.name, what, digest)


def facts(design: Design) -> list[tuple[str, str]]:
    """What a design comes to, as texts."""
    described = json.dumps(manifest(design), sort_keys=True)
    kernels = {k.name: k for w in design.workers.values() for k in w.kernels}
    return [
        ("mlir", print_module(design)),
        ("manifest", described),
        ("kernels", "\n".join(described_kernel(kernels[name], design) for name in sorted(kernels))),
        *((f"words {name}", words(described, s)) for name, s in sorted(design.sequences.items())),
    ]


def described_kernel(kernel: Kernel, design: Design) -> str:
    """A kernel, with its cycles and limits for a few scalars."""
    count = sum(argument is int for argument in kernel.arguments)
    samples = [(value,) * count for value in SCALARS]
    samples += [tuple(SCALARS[(i + shift) % 7] for i in range(count)) for shift in range(7)]
    asked = [
        [answer(kernel.cycles, design.device.architecture, scalars), answer(kernel.limits, scalars)]
        for scalars in samples
    ]
    return repr((
        kernel.name, Path(kernel.source).name, kernel.arguments, kernel.architectures,
        asked,
    ))  # fmt: skip


def answer(question: Any, *arguments: Any) -> str:
    """What a function gives, or why it does not."""
    try:
        return repr(question(*arguments)) if question else "any"
    except (ArithmeticError, LookupError) as error:
        return type(error).__name__


def words(described: str, sequence: Sequence) -> str:
    """The words of a sequence for its small shapes, with each argument in a buffer of its own."""
    views = {argument.name: (i, 0) for i, argument in enumerate(sequence.arguments)}
    found = []
    for shape in small_shapes(sequence):
        step = {"sequence": sequence.name, "parameters": shape, "arguments": views}
        try:
            runs = _npu.build(described, [step])
            found += (f"{run['words'].tolist()} {run['predicted_seconds']}" for run in runs)
        except ValueError as error:
            found.append(str(error))
    return "\n".join(found)


if __name__ == "__main__":
    main()
