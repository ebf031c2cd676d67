"""What a closed form of a sequence is given, and what it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from ort_aie_ep.aie_kernels.machine import Step
from ort_aie_ep.formats.q4nx import BlockForm

#: Of a token or a prompt.
Part = Literal["layers", "projections", "gemm", "dequant", "attention", "vector", "lm_head"]

#: By sequence, the part to which its time belongs, and its closed form on npu2: of the parameters
#: and the form of weights.
Costs = Mapping[str, tuple[Part, Callable[[Mapping[str, int], BlockForm], tuple[Step, ...]]]]
