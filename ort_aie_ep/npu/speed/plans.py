"""A plan's steps composed into submissions and runs, bytes and seconds: what the product does.

`compose` goes through the steps as src/targets/npu/executor.cc does, a token's in as few
submissions as their order allows, a prompt's one by one, and has `_native.npu_build` divide each
submission into runs with the manifests of the real designs, as src/npu's BuildStream does in a
session.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from itertools import pairwise
from math import ceil
from typing import Any

from ort_aie_ep import _native
from ort_aie_ep.aie_kernels.designs import decode, dequant, flow_qkv, gemm
from ort_aie_ep.npu.packages.package import manifest
from ort_aie_ep.npu.speed import operators as op
from ort_aie_ep.npu.speed.invocations import (
    BLOCK_COLS,
    BLOCK_ROWS,
    LEAST_CAPACITY,
    LEAST_N,
    ONE,
    Invocation,
    TokenBatch,
    Weights,
    device_rows,
    up_to,
)
from ort_aie_ep.npu.speed.operators import Machine
from ort_aie_ep.npu.speed.steps import (
    AttentionStep,
    Plans,
    PlanStep,
    ProjectionStep,
    SelectionStep,
    is_vector,
)
from ort_aie_ep.npu.speed.tally import Tally, Timing
from ort_aie_ep.npu.vocabulary.device import device
from ort_aie_ep.npu.vocabulary.errors import DesignError

# src/targets/npu/executor.h: what a prompt takes of the device's memory at most.
WEIGHT_BYTES, ROW_BYTES, QUERY_BYTES = 128 << 20, 32 << 20, 8 << 20
PAGE = 4096  # prompt_weights.cc: of a matrix there
# src/targets/npu/projection.cc and attention.cc
ROW_MULTIPLE = 512
CHUNK_MULTIPLE = 64
# What src/targets/npu/reasons.cc says of steps that no graph tells about.
HOST_HAS_ROW = "a vector operator on what the host has"
REFUSED = "the sequence of the overlay refuses the shape"

DESIGNS = {"decode": decode, "dequant": dequant, "gemm": gemm, "flow_qkv": flow_qkv}


@dataclass(frozen=True)
class Submission:
    """Invocations that the host hands over at once and waits for."""

    overlay: str
    invocations: int
    runs: int


@dataclass(frozen=True)
class Composition:
    """A token or a prompt of a plan.

    `tokens` are new, `context` counts them and those before. `host_steps` are reason → steps that
    the device leaves to the host, whose time is not counted.
    """

    tokens: int
    context: int
    submissions: int
    device_steps: int
    host_steps: dict[str, int]
    overlays: dict[str, int]
    timing: Timing


def compose(plans: Plans, tokens: int, context: int, machine: Machine) -> Composition:
    """A call with `tokens` new tokens, and `context` in all, on npu2.

    Raises:
        DesignError: there are more tokens than the context has.
    """
    if not 1 <= tokens <= context:
        raise DesignError(f"{tokens} tokens: a context of {context} has 1 to {context}")
    call = _Call(tokens, context, machine)
    for steps in plans:
        call.plan(steps)
    return call.composition()


@dataclass
class _Call:
    tokens: int
    context: int
    machine: Machine
    submissions: list[Submission] = field(default_factory=list)
    host_steps: Counter[str] = field(default_factory=Counter)
    device_steps: int = 0
    tally: Tally = field(init=False)
    _dequantised: frozenset[str] = frozenset()  # names of projections whose weights are in scratch

    def __post_init__(self) -> None:
        self.tally = Tally(self.machine)

    def composition(self) -> Composition:
        # A call begins and ends in the overlay of tokens.
        order = ["decode", *(s.overlay for s in self.submissions), "decode"]
        switches = sum(a != b for a, b in pairwise(order))
        timing = self.tally.timing(sum(s.runs for s in self.submissions), switches)
        return Composition(
            self.tokens, self.context, len(self.submissions), self.device_steps,
            dict(self.host_steps), dict(Counter(s.overlay for s in self.submissions)), timing,
        )  # fmt: skip

    def plan(self, steps: Sequence[PlanStep]) -> None:
        """The steps of a node."""
        steps = _without_selections(steps) if self.tokens == 1 else steps
        self._dequantised = frozenset()
        weights = Weights()
        for step in steps:
            if isinstance(step, ProjectionStep) and not self._why_not(step):
                weights.add(step)
        first = 0
        while first < len(steps):
            first = self._group(steps, first, len(steps), weights)

    def _rows(self, step: PlanStep) -> int:
        return 1 if step.one_row else self.tokens

    def _why_not(self, step: PlanStep) -> str:
        return step.why_not(self._rows(step))

    def _group(self, steps: Sequence[PlanStep], first: int, end: int, weights: Weights) -> int:
        """Steps from `first` on; gives the one after them."""
        step = steps[first]
        if reason := self._why_not(step) or (HOST_HAS_ROW if is_vector(step) else ""):
            self.host_steps[reason] += 1
            return first + 1
        try:
            if self._rows(step) == 1:
                return self._token(steps, first, end, weights)
            self._prompt(steps[first:], weights)
            self.device_steps += 1
        except DesignError:
            if self._rows(step) == 1 and end > first + 1:  # half as many, until it is alone
                return self._group(steps, first, first + (end - first) // 2, weights)
            self.host_steps[REFUSED] += 1
        return first + 1

    def _token(self, steps: Sequence[PlanStep], first: int, end: int, weights: Weights) -> int:
        batch = TokenBatch(weights, self.context, self.machine.kernels)
        host: Counter[str] = Counter()
        taken, after = 0, first
        for after in range(first, end):
            step = steps[after]
            reason = self._why_not(step)
            if (reason or is_vector(step)) and batch.on_host(step.reads):
                host[reason or HOST_HAS_ROW] += 1
            elif reason:
                host[reason] += 1
                batch.after(step)
            elif self._rows(step) == 1 and batch.append(step):
                taken += 1
            else:
                break
        else:
            after = end
        if taken == 0:
            raise DesignError(f"{steps[first].name}: a step that waits for itself")
        self._submit("decode", batch.invocations)
        self.device_steps += taken
        self.host_steps += host
        return after

    # --- several rows ---

    def _prompt(self, steps: Sequence[PlanStep], weights: Weights) -> None:
        """The first of the steps."""
        step = steps[0]
        if isinstance(step, ProjectionStep):
            self._project(step, steps, weights)
        elif isinstance(step, AttentionStep):
            self._attend(step)

    def _dequantise(self, steps: Sequence[PlanStep], weights: Weights) -> bool:
        """The weights of the first step, with those of as many behind it as there is room for;
        false if its own are too many."""
        parts: list[ProjectionStep] = []
        used = 0
        for step in steps:
            if not isinstance(step, ProjectionStep) or step.bits == 16:
                continue
            if self._rows(step) == 1 or self._why_not(step):
                continue
            own = up_to(2 * device_rows(step.n) * up_to(step.k, BLOCK_COLS), PAGE)
            used += own * (2 if step.gated else 1)
            if used > WEIGHT_BYTES:
                break
            parts.append(step)
        if not parts or parts[0] is not steps[0]:
            return False
        self._submit("dequant", [
            self._dequant(part, device_rows(part.n), weights.buffer(part, matrix), 0)
            for part in parts
            for matrix in range(2 if part.gated else 1)
        ])  # fmt: skip
        self._dequantised = frozenset(part.name for part in parts)
        return True

    def _dequant(self, step: ProjectionStep, n: int, source: int, to: int) -> Invocation:
        k = up_to(step.k, BLOCK_COLS)
        blocks = n // BLOCK_ROWS * (k // BLOCK_COLS)
        cost = op.dequant(n, k, self.machine.columns, self.machine.kernels)
        return Invocation("dequant", {"blocks": blocks}, {"w": source, "b": to}, "dequant", cost)

    def _project(self, step: ProjectionStep, steps: Sequence[PlanStep], weights: Weights) -> None:
        kernels = self.machine.kernels
        products = 2 if step.gated else 1
        k, n = up_to(step.k, BLOCK_COLS), device_rows(step.n)
        dequantised = step.bits != 16
        block_rows = n // BLOCK_ROWS
        most_block_rows = max(WEIGHT_BYTES // (2 * k * BLOCK_ROWS), 2 * LEAST_N // BLOCK_ROWS)
        bands = ceil(block_rows / most_block_rows) if dequantised else 1
        band_blocks = ceil(block_rows / bands)
        band_n = band_blocks * BLOCK_ROWS
        most_rows = ROW_BYTES // (2 * max(k, products * band_n))
        run_rows = min(self.tokens, max(ROW_MULTIPLE, most_rows // ROW_MULTIPLE * ROW_MULTIPLE))
        ready = dequantised and (step.name in self._dequantised or self._dequantise(steps, weights))
        if dequantised and not ready:
            self._dequantised = frozenset()
        for _ in range(bands):
            if dequantised and not ready:
                self._submit("dequant", [
                    self._dequant(step, band_n, weights.buffer(step, i), -1 - i)
                    for i in range(products)
                ])  # fmt: skip
            for begin in range(0, self.tokens, run_rows):
                rows = min(run_rows, self.tokens - begin)
                cost = op.gemm(rows, k, band_n, kernels)
                self._submit("gemm", [
                    Invocation("gemm", {"M": rows, "K": k, "N": band_n},
                               {"a": 0, "b": 1 + i, "c": 1 + products}, "gemm", cost)
                    for i in range(products)
                ])  # fmt: skip

    def _attend(self, step: AttentionStep) -> None:
        padded = op.padded_head(step.head_dim)
        most = QUERY_BYTES // (2 * step.heads * padded)
        most = min(max(CHUNK_MULTIPLE, most // CHUNK_MULTIPLE * CHUNK_MULTIPLE), self.tokens)
        before = self.context - self.tokens
        capacity = max(LEAST_CAPACITY, 1 << self.context.bit_length())
        for begin in range(0, self.tokens, most):
            count = min(most, self.tokens - begin)
            past = before + begin
            cost = op.flow_qkv(
                count, past, step.heads, step.kv_heads, step.head_dim, step.window or None,
                step.causal, self.machine.kernels,
            )  # fmt: skip
            parameters = {
                "heads": step.heads, "kv_heads": step.kv_heads, "head_dim": padded,
                "prompt": count, "past": past, "capacity": capacity, "window": step.window,
                "causal": int(step.causal), "scale_bits": ONE, "softcap_bits": 0,
            }  # fmt: skip
            views = {"q": 0, "o": 1, "k": 2, "v": 2}
            self._submit(
                "flow_qkv", [Invocation("attention", parameters, views, "attention", cost)]
            )

    def _submit(self, overlay: str, invocations: Sequence[Invocation]) -> None:
        runs = runs_of(overlay, invocations)
        for one in invocations:
            self.tally.add(one.part, one.cost)
        self.submissions.append(Submission(overlay, len(invocations), runs))


def _without_selections(steps: Sequence[PlanStep]) -> tuple[PlanStep, ...]:
    """Of one row, the selected one is that row: the same value under another name."""
    same: dict[str, str] = {}
    kept: list[PlanStep] = []
    for step in steps:
        if isinstance(step, SelectionStep):
            same[step.y] = same.get(step.a, step.a)
        else:
            renamed: dict[str, Any] = {
                name: same[value]
                for name in ("a", "b", "skip", "query", "key", "value")
                if (value := getattr(step, name, "")) in same
            }
            kept.append(replace(step, **renamed))
    return tuple(kept)


def runs_of(overlay: str, invocations: Sequence[Invocation]) -> int:
    """How many runs a submission is, by the code that a session builds its streams with.

    Raises:
        DesignError: a sequence refuses a shape.
    """
    buffers: dict[int, int] = {}
    plan = []
    for one in invocations:
        views = {n: buffers.setdefault(at, len(buffers)) for n, at in one.arguments.items()}
        plan.append({
            "sequence": one.sequence, "parameters": dict(one.parameters),
            "arguments": {name: (buffer, 0) for name, buffer in views.items()},
        })  # fmt: skip
    return _build(overlay, json.dumps(plan))


@lru_cache(maxsize=1024)  # layers are alike
def _build(overlay: str, plan: str) -> int:
    try:
        return len(_native.npu_build(_manifest(overlay), json.loads(plan)))
    except ValueError as error:
        raise DesignError(str(error)) from error


@cache
def _manifest(overlay: str) -> str:
    return json.dumps(manifest(DESIGNS[overlay].build(device("npu2"))))
