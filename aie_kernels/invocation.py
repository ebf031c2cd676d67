"""What a closed form of a sequence is given, and what it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from ort_aie_ep.aie_kernels.machine import Step
from ort_aie_ep.formats.q4nx import BlockForm

#: Of a token or a prompt.
Part = Literal["layers", "projections", "gemm", "dequant", "attention", "vector", "lm_head"]


@dataclass(frozen=True)
class Invocation:
    """An invocation of a sequence on npu2, with weights in a form."""

    parameters: Mapping[str, int]
    form: BlockForm


#: By sequence, the part to which its time belongs, and its closed form.
Costs = Mapping[str, tuple[Part, Callable[[Invocation], tuple[Step, ...]]]]
