"""Chains of runs, as XRT's runlist submits them: do all runs happen, and in order?

Each run reads what the previous run left in memory: the first object of a buffer goes to the second
place, from there to the third and so on. Chains use only the overlay `micro`.
"""

from __future__ import annotations

import numpy as np

from ort_aie_ep.aie_kernels.reference import BF16, Output, Reference, doubles, generator
from ort_aie_ep.bringup.device import MAX_CHAIN, Context
from ort_aie_ep.npu.packages.package import Package, build_runs

DESIGN, SEQUENCE = "micro", "passthrough"
NAME = "chain"  # in reports, in place of a sequence
LENGTHS = (1, 2, MAX_CHAIN)
_ELEMENTS = 4096  # bf16, of an object
_SHAPE = {"bytes": 2 * _ELEMENTS, "lanes": 1, "first": 0}


def run_chain(
    context: Context, package: Package, runs: int, repetitions: int
) -> tuple[Output, list[float]]:
    """(the output to compare, seconds of each repetition). Raises Fault and DesignError."""
    objects = np.full((runs + 1, _ELEMENTS), np.nan, BF16)
    objects[0] = generator({"runs": runs}).standard_normal(_ELEMENTS).astype(BF16)
    buffer = context.buffer(0, objects)
    programs = []
    for i in range(runs):
        places = {"x": (0, i * 2 * _ELEMENTS), "y": (0, (i + 1) * 2 * _ELEMENTS)}
        built = build_runs(package.manifest, SEQUENCE, _SHAPE, places)
        programs += [context.program(each["words"], [buffer]) for each in built]
    chain = context.chain(programs)
    chain()
    exact = np.repeat(doubles(objects[:1]), runs, axis=0)
    got = doubles(buffer.read()[1:])
    output = Output("objects", got, Reference(exact, np.zeros_like(exact)))
    return output, [chain() for _ in range(repetitions)]
