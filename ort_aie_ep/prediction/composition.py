"""A token or a prompt of a plan: the schedule of src/targets/npu, and the time of its streams.

Nothing here decides what an NPU does: `_npu.Packages.schedule` is the scheduler that sessions
use, asked with tensors that have no data. The time of each invocation is that of its instruction
stream (`src/npu/prediction.h`), with the costs of predictions (`npu/terms/costs.py`).
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import pairwise
from typing import Literal

from ort_aie_ep import _npu
from ort_aie_ep.aie_kernels.build import BUILT_FORMS, find_packages
from ort_aie_ep.errors import AieError
from ort_aie_ep.formats.q4nx import FORMS, SHIPPING, BlockForm
from ort_aie_ep.npu.packages.package import manifest, predicted
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.device import device
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.prediction.recipes import PlanNode, Plans

#: The packages that are built for npu2.
OVERLAYS: Set[str] = frozenset(
    name for form in BUILT_FORMS for name in _npu.packages(form.group, form.minima)
)

#: Of a token or a prompt.
Part = Literal[
    "layers", "projections", "gemm", "dequant", "attention", "vector", "lm_head", "dispatch",
    "switches",
]  # fmt: skip
#: By sequence; the others are of vectors.
_PARTS: Mapping[str, Part] = {
    "layer": "layers", "head": "lm_head", "matvec": "projections", "matvec_part": "projections",
    "gemm": "gemm", "project": "gemm", "dequant": "dequant", "attention": "attention",
}  # fmt: skip


@dataclass(frozen=True)
class Timing:
    """Seconds of a token or a prompt, in all and by part.

    `runs` are dispatches, `switches` changes of overlay. `read` and `write` are DDR bytes.
    """

    seconds: float
    parts: dict[Part, float]
    runs: int
    switches: int
    read: int
    write: int


@dataclass(frozen=True)
class Composition:
    """A token or a prompt of a plan.

    `tokens` are new; `context` counts them and the earlier ones. `overlays` are parts of
    submissions by design, `host_steps` the number of steps that the device leaves to the host, by
    reason; their time is not counted. `layers_refused` says why a token's layers do not run on
    `fused_layer`; empty if they do.
    """

    tokens: int
    context: int
    submissions: int
    device_steps: int
    host_steps: dict[str, int]
    overlays: dict[str, int]
    timing: Timing
    layers_refused: str = ""


@lru_cache(maxsize=8)
def packages(overlays: frozenset[str], *, one_xclbin: bool = False) -> _npu.Packages:
    """The packages of npu2 with these names, as the scheduler reads them; `one_xclbin`: they share
    a hardware context."""
    names = overlays & find_packages(FORMS).keys()
    return _npu.Packages(set(names), _manifest, one_xclbin)


@cache
def _manifest(package: str) -> tuple[str, str]:
    npu2 = device("npu2")
    of_sessions = manifest(find_packages(FORMS)[package](npu2))
    return json.dumps(of_sessions), json.dumps(predicted(of_sessions, npu2))


def schedule(
    plan: PlanNode, tokens: int, context: int, overlays: Iterable[str] = OVERLAYS, *,
    one_xclbin: bool = False, int8: bool = False, layers: bool = True,
) -> _npu.Schedule:  # fmt: skip
    """What an NPU with these packages does for a call of a node.

    Raises:
        AieError: the node's tensors do not fit it.
    """
    known = packages(frozenset(overlays), one_xclbin=one_xclbin)
    try:
        return known.schedule(
            plan.recipe, plan.given(tokens, context), planned=plan.planned, int8=int8, layers=layers
        )
    except ValueError as error:
        raise AieError(str(error)) from error


def compose(
    plans: Plans, tokens: int, context: int, *, fused_layers: bool = True, one_xclbin: bool = True
) -> Composition:  # fmt: skip
    """A call with `tokens` new tokens, and `context` in all, on npu2.

    Without `fused_layers` tokens run on `decode`. The packages share a hardware context, unless
    not `one_xclbin`: then the schedule is that of a context for each, its changes' time is not.

    Raises:
        DesignError: `tokens` is more than `context`.
        AieError: a node's tensors do not fit it, or it has experts, which its data choose.
    """
    if not 1 <= tokens <= context:
        raise DesignError(f"{tokens} tokens: a context of {context} has 1 to {context}")
    call = _Call(tokens, context, fused_layers, one_xclbin)
    for plan in plans:
        call.plan(plan)
    return call.composition()


@lru_cache(maxsize=16)  # a prompt asks for the token after it too
def _scheduled(
    plan: PlanNode, tokens: int, context: int, one_xclbin: bool, layers: bool
) -> _npu.Schedule:
    return schedule(plan, tokens, context, one_xclbin=one_xclbin, layers=layers)


@dataclass
class _Call:
    tokens: int
    context: int
    fused_layers: bool
    one_xclbin: bool
    overlays: list[str] = field(default_factory=list)  # of parts of submissions, in order
    submissions: int = 0
    host_steps: Counter[str] = field(default_factory=Counter)
    device_steps: int = 0
    runs: int = 0
    token_overlay: str = "decode"
    layers_refused: str = ""
    parts: dict[Part, float] = field(default_factory=lambda: defaultdict(float))  # seconds
    read: int = 0
    write: int = 0

    def _schedule(self, plan: PlanNode, tokens: int) -> _npu.Schedule:
        return _scheduled(plan, tokens, self.context, self.one_xclbin, self.fused_layers)

    def plan(self, plan: PlanNode) -> None:
        """Add the schedule of a node."""
        scheduled = self._schedule(plan, self.tokens)
        of_token = scheduled if self.tokens == 1 else self._schedule(plan, 1)
        if any(stage["layers"] for stage in of_token["stages"]):
            self.token_overlay = "fused_layer"
        if self.tokens == 1 and self.fused_layers:
            self.layers_refused = scheduled["layers_refused"] or self.layers_refused
        for stage in scheduled["stages"]:
            if stage["experts"]:
                raise AieError(
                    f"node '{stage['steps'][0]}': a prediction does not know its experts"
                )
            self.device_steps += stage["device_steps"]
            self.host_steps.update(stage["before"] + stage["after"])
            if stage["host"] is not None:
                self.host_steps[stage["host"]] += 1
            for submission in stage["submissions"]:
                self.submissions += submission["lists"]
                for part in submission["parts"]:
                    self.overlays.append(part["design"])
                    self.runs += part["runs"]
                    self.read += part["read"]
                    self.write += part["written"]
                    for sequence, seconds in part["invocations"]:
                        self.parts[_PARTS.get(sequence, "vector")] += seconds

    def composition(self) -> Composition:
        """Of all nodes."""
        # A call begins and ends in the overlay of tokens.
        order = [self.token_overlay, *self.overlays, self.token_overlay]
        switches = sum(a != b for a, b in pairwise(order))
        self.parts["dispatch"] = self.runs * costs.DISPATCH.value
        self.parts["switches"] = switches * costs.PDI_SWITCH.value
        timing = Timing(
            sum(self.parts.values()), dict(self.parts), self.runs, switches, self.read, self.write
        )
        return Composition(
            self.tokens, self.context, self.submissions, self.device_steps,
            dict(self.host_steps), dict(Counter(self.overlays)), timing,
            self.layers_refused,
        )  # fmt: skip


def form_of(plans: Sequence[PlanNode]) -> BlockForm:
    """The form in which the device reads the quantised weights of the largest node."""
    largest = max(plans, key=lambda plan: len(plan.recipe), default=None)
    return SHIPPING if largest is None else BlockForm(4, *schedule(largest, 1, 2)["form"])
