"""A plan's steps composed into submissions and runs, bytes and seconds, as ort_aie_ep runs them.

`compose` goes through the steps as src/targets/npu/executor.cc does, in as few submissions as their
order and their overlays allow. `_native.npu_build` divides each submission into runs with the
manifests of the real designs, as src/npu's BuildStream does in a session.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from itertools import groupby, pairwise
from typing import Any

from ort_aie_ep import _native
from ort_aie_ep.aie_kernels.build import make_design
from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.npu.packages.package import manifest
from ort_aie_ep.npu.speed import operators as op
from ort_aie_ep.npu.speed.invocations import (
    BLOCK_COLS,
    LEAST_CAPACITY,
    ONE,
    Invocation,
    TokenBatch,
    Weights,
    up_to,
)
from ort_aie_ep.npu.speed.layers import OVERLAY as FUSED_LAYER
from ort_aie_ep.npu.speed.layers import Decoder, Unmet, find_decoder
from ort_aie_ep.npu.speed.operators import Machine
from ort_aie_ep.npu.speed.power import Draw, draw
from ort_aie_ep.npu.speed.prompts import (
    PromptBatch,
    PromptWeights,
    dequant,
    divide,
    is_large,
    product,
)
from ort_aie_ep.npu.speed.steps import (
    READERS,
    AttentionStep,
    CastStep,
    Plans,
    PlanStep,
    ProjectionStep,
    SelectionStep,
    form_of,
    is_vector,
)
from ort_aie_ep.npu.speed.tally import Tally, Timing
from ort_aie_ep.npu.vocabulary.design import Design, package_name
from ort_aie_ep.npu.vocabulary.device import device
from ort_aie_ep.npu.vocabulary.errors import DesignError

QUERY_BYTES = 8 << 20  # src/targets/npu/executor.h: of a prompt's attention at a time
CHUNK_MULTIPLE = 64  # attention.cc
# The reasons of src/targets/npu/reasons.cc that do not follow from a graph.
HOST_HAS_ROW = "a vector operator on what the host has"
REFUSED = "the sequence of the overlay refuses the shape"


@dataclass(frozen=True)
class Submission:
    """Invocations that the host submits at once and waits for."""

    overlay: str
    invocations: int
    runs: int


@dataclass(frozen=True)
class Composition:
    """A token or a prompt of a plan.

    `tokens` are new; `context` counts them and the earlier ones. `host_steps` maps each reason to
    the number of steps that the device leaves to the host for it; their time is not counted.
    `draw` is power, inferred (power.py), or None if nothing takes time on the NPU; an attention
    counts as a layer. `layers_refused` says why
    a token's layers do not run on `fused_layer`; empty if they do.
    """

    tokens: int
    context: int
    submissions: int
    device_steps: int
    host_steps: dict[str, int]
    overlays: dict[str, int]
    timing: Timing
    draw: Draw | None
    layers_refused: str = ""


def compose(
    plans: Plans, tokens: int, context: int, machine: Machine, *, fused_layers: bool = True
) -> Composition:
    """A call with `tokens` new tokens, and `context` in all, on npu2.

    Without `fused_layers` there is no overlay `fused_layer`, so that tokens run on `decode`.

    Raises:
        DesignError: `tokens` is more than `context`.
    """
    if not 1 <= tokens <= context:
        raise DesignError(f"{tokens} tokens: a context of {context} has 1 to {context}")
    call = _Call(tokens, context, machine, fused_layers)
    for steps in plans:
        call.plan(steps)
    return call.composition()


def why_not_fused(plans: Plans, overlays: Set[str]) -> str:
    """Why a token's layers do not run on `fused_layer`; empty if they do, or if there are none.

    `overlays` are the designs with an overlay, beside that one.
    """
    reasons = [
        find_decoder(_without_selections(steps), _unmet_in(form_of(steps, overlays)), overlays)[1]
        for steps in plans
    ]
    return next(filter(None, reasons), "")


@dataclass
class _Call:
    tokens: int
    context: int
    machine: Machine
    fused_layers: bool
    submissions: list[Submission] = field(default_factory=list)
    host_steps: Counter[str] = field(default_factory=Counter)
    device_steps: int = 0
    layers: int = 0
    token_overlay: str = "decode"
    layers_refused: str = ""
    form: BlockForm = SHIPPING  # of the weights of the plan
    tally: Tally = field(init=False)

    def __post_init__(self) -> None:
        self.tally = Tally(self.machine)

    def composition(self) -> Composition:
        # A call begins and ends in the overlay of tokens.
        token = self.token_overlay
        order = [token, *(s.overlay for s in self.submissions), token]
        switches = sum(a != b for a, b in pairwise(order))
        timing = self.tally.timing(sum(s.runs for s in self.submissions), switches)
        return Composition(
            self.tokens, self.context, len(self.submissions), self.device_steps,
            dict(self.host_steps), dict(Counter(s.overlay for s in self.submissions)), timing,
            draw(timing, self.tokens, self.layers) if timing.seconds else None,
            self.layers_refused,
        )  # fmt: skip

    def plan(self, steps: Sequence[PlanStep]) -> None:
        """Compose the steps of a node."""
        self.form = form_of(steps)
        decoder = self._decoder(_without_selections(steps))
        steps = _without_selections(steps) if self.tokens == 1 else steps
        self.layers += sum(isinstance(step, AttentionStep) for step in steps)
        weights = Weights(self.form)
        for step in steps:
            if isinstance(step, ProjectionStep) and not self._why_not(step):
                weights.add(step)

        def takes(step: PlanStep) -> bool:
            return self._rows(step) > 1 and not self._why_not(step)

        prompt = PromptWeights(weights, self.machine, takes, self.tokens)
        first = 0
        while first < len(steps):
            if self.tokens == 1 and decoder is not None and first == decoder.first:
                first = self._fused_layers(decoder, weights)
            else:
                first = self._group(steps, first, len(steps), prompt)

    def _decoder(self, steps: Sequence[PlanStep]) -> Decoder | None:
        """What runs on `fused_layer`, of a token's steps."""
        found = find_decoder(steps, _unmet_in(self.form)) if self.fused_layers else (None, "")
        decoder, reason = found
        if decoder is not None:
            self.token_overlay = FUSED_LAYER
        elif self.tokens == 1 and reason:
            self.layers_refused = reason
        return decoder

    def _fused_layers(self, decoder: Decoder, weights: Weights) -> int:
        """Compose all layers and the vocabulary."""
        kernels = self.machine.kernels
        self._submit(FUSED_LAYER, decoder.invocations(weights, self.context, kernels))
        self.device_steps += decoder.end - decoder.first
        return decoder.end

    def _rows(self, step: PlanStep) -> int:
        return 1 if step.one_row else self.tokens

    def _why_not(self, step: PlanStep) -> str:
        return step.why_not(self._rows(step))

    def _group(
        self, steps: Sequence[PlanStep], first: int, end: int, prompt: PromptWeights
    ) -> int:  # fmt: skip
        """Compose steps from `first` on; returns the index of the next one."""
        step = steps[first]
        if reason := self._why_not(step) or (HOST_HAS_ROW if is_vector(step) else ""):
            self.host_steps[reason] += 1
            return first + 1
        try:
            if self._design(steps, step):
                return self._together(steps, first, end, prompt)
            if isinstance(step, ProjectionStep):
                self._project(step, prompt)
            elif isinstance(step, AttentionStep):
                self._attend(step)
            self.device_steps += 1
        except DesignError:
            prompt.forget()
            if self._design(steps, step) and end > first + 1:  # half as many, until it is alone
                return self._group(steps, first, first + (end - first) // 2, prompt)
            self.host_steps[REFUSED] += 1
        return first + 1

    def _design(self, steps: Sequence[PlanStep], step: PlanStep) -> str:
        """The overlay of a step; "" for a step that is executed by itself."""
        if self._rows(step) == 1 or isinstance(step, CastStep):
            return "decode"
        if isinstance(step, ProjectionStep):
            temporary = any(step.y in other.reads for other in steps)
            return "" if is_large(step, self.tokens, self.machine, temporary=temporary) else "gemm"
        return "" if isinstance(step, AttentionStep) else "gemm"

    def _together(
        self, steps: Sequence[PlanStep], first: int, end: int, prompt: PromptWeights
    ) -> int:  # fmt: skip
        """Compose a submission for each time that the overlay changes."""
        design = self._design(steps, steps[first])
        batch: TokenBatch = TokenBatch(prompt.weights, self.context, self.machine.kernels)
        if design == "gemm":
            batch = PromptBatch(
                prompt.weights, self.context, self.machine.kernels,
                tokens=self.tokens, prompt=prompt,
            )  # fmt: skip
        host: Counter[str] = Counter()
        taken, after = 0, first
        for after in range(first, end):
            step = steps[after]
            reason = self._why_not(step)
            if (reason or is_vector(step)) and batch.on_host(step.reads):
                host[reason or HOST_HAS_ROW] += 1
            elif isinstance(batch, PromptBatch) and batch.select(step):
                taken += 1
            elif reason:
                host[reason] += 1
                batch.after(step)
            elif self._append(batch, design, steps, after):
                taken += 1
            else:
                break
        else:
            after = end
        if taken == 0:
            raise DesignError(f"{steps[first].name}: a step that waits for itself")
        for overlay, invocations in groupby(batch.invocations, lambda one: one.overlay):
            self._submit(overlay, list(invocations))
        self.device_steps += taken
        self.host_steps += host
        return after

    def _append(
        self, batch: TokenBatch, design: str, steps: Sequence[PlanStep], at: int
    ) -> bool:  # fmt: skip
        of_step = self._design(steps, steps[at])
        if isinstance(batch, PromptBatch):
            return bool(of_step) and batch.append_rows(steps[at:])
        return of_step == design and batch.append(steps[at])

    # --- several rows ---

    def _project(self, step: ProjectionStep, prompt: PromptWeights) -> None:
        """Compose a large projection, by itself."""
        kernels, products = self.machine.kernels, 2 if step.gated else 1
        k, division = up_to(step.k, BLOCK_COLS), divide(step, self.tokens)
        if step.bits != 16:
            prompt.forget()
        buffers = [prompt.weights.buffer(step, i) for i in range(products)]
        for _ in range(division.bands):
            if step.bits != 16:
                self._submit("dequant", [
                    dequant(step, division.band_n, buffer, -1 - i, self.machine, self.form)
                    for i, buffer in enumerate(buffers)
                ])  # fmt: skip
            for begin in range(0, self.tokens, division.rows):
                rows = min(division.rows, self.tokens - begin)
                self._submit("gemm", [
                    product(rows, k, division.band_n, -1 - i, kernels) for i in range(products)
                ])  # fmt: skip

    def _attend(self, step: AttentionStep) -> None:
        padded = op.padded_head(step.head_dim)
        most = QUERY_BYTES // (2 * step.heads * padded)
        most = min(max(CHUNK_MULTIPLE, most // CHUNK_MULTIPLE * CHUNK_MULTIPLE), self.tokens)
        before = self.context - self.tokens
        capacity = max(LEAST_CAPACITY, 1 << self.context.bit_length())
        for begin in range(0, self.tokens, most):
            count = min(most, self.tokens - begin)
            # Without causality a query sees all keys, including those after its chunk.
            past = before + begin if step.causal else self.context - count
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
        runs = runs_of(overlay, invocations, self.form)
        for one in invocations:
            self.tally.add(one.part, one.cost)
        self.submissions.append(Submission(overlay, len(invocations), runs))


def _without_selections(steps: Sequence[PlanStep]) -> tuple[PlanStep, ...]:
    """With one row, the selected row is that row: the same value under another name."""
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


def runs_of(overlay: str, invocations: Sequence[Invocation], form: BlockForm) -> int:
    """The number of runs of a submission, by the code with which a session builds its streams.

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
    return _build(overlay, form, json.dumps(plan))


@lru_cache(maxsize=1024)  # layers are alike
def _build(overlay: str, form: BlockForm, plan: str) -> int:
    try:
        return len(_native.npu_build(_manifest(overlay, form), json.loads(plan)))
    except ValueError as error:
        raise DesignError(str(error)) from error


def _unmet_in(form: BlockForm) -> Unmet:
    return lambda sequence, parameters: _first_unmet(form, sequence, tuple(parameters.items()))


@lru_cache(maxsize=1024)  # layers are alike
def _first_unmet(form: BlockForm, sequence: str, parameters: tuple[tuple[str, int], ...]) -> str:
    return _native.npu_unmet_requirement(_manifest(FUSED_LAYER, form), sequence, dict(parameters))


def design_of(overlay: str, form: BlockForm) -> Design:
    """The design of an overlay on npu2, for weights of a form if it reads any."""
    reads = overlay in (*READERS, "short_gemm")
    return make_design(package_name(overlay, form) if reads else overlay, device("npu2"))


@cache
def _manifest(overlay: str, form: BlockForm) -> str:
    return json.dumps(manifest(design_of(overlay, form)))
