"""A device with operators placed as the papers and their variants place them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ort_aie_ep.aie_kernels import machine
from ort_aie_ep.aie_kernels.flow_kv.cost import PAIRS
from ort_aie_ep.aie_kernels.machine import Step


@dataclass(frozen=True)
class Machine(machine.Machine):
    """A device, and where the operators are on it.

    `fused_dqp_columns` is 4 (activations have their own channel, and FlowKV is beside it) or 8;
    `flow_kv_pairs` is 4 or 8, each with a shim channel for keys and one for values; `vector_copies`
    is the number of copies of each vector operator that share the rows of a prompt.
    """

    fused_dqp_columns: int = 4
    flow_kv_pairs: int = PAIRS
    vector_copies: int = 1


def copies(steps: tuple[Step, ...], count: int) -> tuple[Step, ...]:
    """Steps of a one-core operator, shared by `count` copies with a core and channels each."""
    return tuple(replace(s, shim=s.shim / count, kernels=s.kernels / count) for s in steps)
