"""A prompt's steps as invocations of `gemm`, `dequant`, `short_gemm`, as the executor makes them.

This follows src/targets/npu/{prompt_projection,prompt_weights,vectors}.cc, as `invocations` does
for a token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil

from ort_aie_ep.formats.q4nx import BlockForm
from ort_aie_ep.npu.speed import operators as op
from ort_aie_ep.npu.speed.invocations import (
    BLOCK_COLS,
    BLOCK_ROWS,
    GLU_LEAST,
    LEAST_N,
    Invocation,
    TokenBatch,
    View,
    Weights,
    device_rows,
    up_to,
)
from ort_aie_ep.npu.speed.kernels import Kernels
from ort_aie_ep.npu.speed.operators import Machine
from ort_aie_ep.npu.speed.steps import (
    AttentionStep,
    PlanStep,
    ProjectionStep,
    SelectionStep,
    VectorStep,
)

# src/targets/npu/executor.h: the most device memory that a prompt uses.
WEIGHT_BYTES, ROW_BYTES = 512 << 20, 32 << 20
PAGE = 4096  # prompt_weights.cc: of a matrix there
ROW_MULTIPLE = 512  # prompt_projection.cc
SCRATCH = -1  # the buffer of dequantised weights
SHORT_ROWS = 256  # prompt_weights.cc
SHORT_MAX_K, SHORT_LEAST_N = 16384, 256  # designs.h


@dataclass(frozen=True)
class Division:
    """The parts in which a large projection is processed: bands of out-features, rows."""

    bands: int
    band_n: int
    rows: int


def divide(step: ProjectionStep, tokens: int) -> Division:
    """The division of a projection of `tokens` rows, as the executor makes it."""
    k, blocks = up_to(step.k, BLOCK_COLS), device_rows(step.n) // BLOCK_ROWS
    most = max(WEIGHT_BYTES // (2 * k * BLOCK_ROWS), 2 * LEAST_N // BLOCK_ROWS)
    bands = ceil(blocks / most) if step.bits != 16 else 1
    band_n = ceil(blocks / bands) * BLOCK_ROWS
    rows = ROW_BYTES // (2 * max(k, (2 if step.gated else 1) * band_n))
    return Division(
        bands, band_n, min(tokens, max(ROW_MULTIPLE, rows // ROW_MULTIPLE * ROW_MULTIPLE))
    )


def is_short(step: ProjectionStep, tokens: int, machine: Machine) -> bool:
    """Whether `short_gemm` does it."""
    fits = up_to(step.k, BLOCK_COLS) <= SHORT_MAX_K and device_rows(step.n) >= SHORT_LEAST_N
    return tokens <= SHORT_ROWS and step.bits <= 4 and fits and machine.one_context


def is_large(step: ProjectionStep, tokens: int, machine: Machine, *, temporary: bool) -> bool:
    """Whether it runs by itself; `temporary`: only the plan reads its result."""
    if is_short(step, tokens, machine):
        return False
    division = divide(step, tokens)
    room = step.bits == 16 or _matrix_bytes(step) <= WEIGHT_BYTES
    if division.bands > 1 or not room:
        return True
    return division.rows < tokens and not (temporary and _stays(step))


def dequant(
    step: ProjectionStep, n: int, source: int, to: int, machine: Machine, form: BlockForm
) -> Invocation:
    """Dequantise `n` out-features of weights that the device has in `form`."""
    k = up_to(step.k, BLOCK_COLS)
    blocks = n // BLOCK_ROWS * (k // BLOCK_COLS)
    cost = op.dequant(n, k, machine.columns, machine.kernels, form)
    return Invocation(
        "dequant", {"blocks": blocks}, {"w": source, "b": to}, "dequant", cost, "dequant"
    )


def product(rows: int, k: int, n: int, weights: int, kernels: Kernels) -> Invocation:
    """A GEMM."""
    cost = op.gemm(rows, k, n, kernels)
    views = {"a": 0, "b": weights, "c": 0}
    return Invocation("gemm", {"M": rows, "K": k, "N": n}, views, "gemm", cost, "gemm")


def short_product(
    rows: int, k: int, n: int, weights: int, machine: Machine, form: BlockForm
) -> Invocation:
    """A product with quantised weights."""
    cost = op.short_gemm(rows, k, n, machine.columns, machine.kernels, form)
    views = {"a": 0, "w": weights, "c": 0}
    return Invocation("project", {"M": rows, "K": k, "N": n}, views, "gemm", cost, "short_gemm")


@dataclass
class PromptWeights:
    """The dequantised weights that are in memory when a batch's run reaches a step."""

    weights: Weights
    machine: Machine
    takes: Callable[[PlanStep], bool]  # a projection of several rows that the device does
    tokens: int
    _there: frozenset[str] = frozenset()  # names of projections

    def forget(self) -> None:
        """The memory is used for something else."""
        self._there = frozenset()

    def get(self, steps: Sequence[PlanStep]) -> list[Invocation]:
        """The invocations that dequantise the first step's weights, and later ones if they fit."""
        if steps[0].name in self._there:
            return []
        parts: list[ProjectionStep] = []
        before_attention = used = since_attention = 0
        whole = True
        for step in steps:
            if isinstance(step, AttentionStep):
                if not whole:
                    break
                before_attention, since_attention = len(parts), 0
            if not isinstance(step, ProjectionStep) or step.bits == 16 or not self.takes(step):
                continue
            if is_short(step, self.tokens, self.machine):
                continue
            own = _matrix_bytes(step) * (2 if step.gated else 1)
            since_attention += own
            whole = whole and (not parts or used + own <= WEIGHT_BYTES)
            if whole:
                used += own
                parts.append(step)
        if not whole and before_attention and since_attention <= WEIGHT_BYTES:
            parts = parts[:before_attention]
        self._there = frozenset(part.name for part in parts)
        return [
            dequant(
                part, device_rows(part.n), self.weights.buffer(part, i), SCRATCH, self.machine,
                self.weights.form,
            )
            for part in parts
            for i in range(2 if part.gated else 1)
        ]  # fmt: skip


@dataclass
class PromptBatch(TokenBatch):
    """Steps of `tokens` rows, and of one, without any step on the host between them."""

    tokens: int = field(kw_only=True)
    prompt: PromptWeights = field(kw_only=True)

    def append_rows(self, steps: Sequence[PlanStep]) -> bool:
        """Add the first of the steps, as `append` does."""
        step = steps[0]
        if step.one_row:
            return self.append(step)
        if isinstance(step, ProjectionStep):
            return self._product(step, steps)
        if isinstance(step, VectorStep):
            if step.kind == "norm":
                inputs = step.a, step.skip, step.weight, step.sum, step.k
                if not self._input(*inputs, rows=self.tokens, own=True):
                    return False
                self._output_rows(step.y, step.k, self.tokens)
                return True
            if step.kind != "add" or step.scalar:
                return False
            return self._input(step.a, step.b, "", step.y, step.k, rows=self.tokens)
        return self.append(step)

    def select(self, step: PlanStep) -> bool:
        """Select a row of a value that the device has, by its place."""
        if not isinstance(step, SelectionStep):
            return False
        view = self._view(step.a)
        if view is None or not view.result or not view.width:
            return False
        self._written[step.y] = View(view.width)
        return True

    def _product(self, step: ProjectionStep, steps: Sequence[PlanStep]) -> bool:
        before = len(self.invocations)
        if not self._input(
            step.a, step.skip, step.norm, step.sum, step.k, rows=self.tokens
        ):  # fmt: skip
            return False
        short = is_short(step, self.tokens, self.prompt.machine)
        if step.bits != 16 and not short:  # before anything is computed from the input
            self.invocations[before:before] = self.prompt.get(steps)
        k, n = up_to(step.k, BLOCK_COLS), device_rows(step.n)
        for matrix in range(2 if step.gated else 1):
            own = self.weights.buffer(step, matrix)
            if short:
                one = short_product(self.tokens, k, n, own, self.prompt.machine, self.weights.form)
            else:
                one = product(self.tokens, k, n, own if step.bits == 16 else SCRATCH, self.kernels)
            self.invocations.append(one)
        if not _stays(step):
            self._write_later((step.y,))
            return True
        if step.gated:
            self._invoke(
                "gate",
                {
                    "M": self.tokens, "N": n, "kind": int(step.gelu), "gate_stride": n,
                    "up_stride": n,
                },
                "gate up y", "vector", op.row_gate(self.tokens, n, step.gelu, self.kernels),
                overlay="gemm",
            )  # fmt: skip
        self._output_rows(step.y, n, self.tokens)
        return True


def _matrix_bytes(step: ProjectionStep) -> int:
    return up_to(2 * device_rows(step.n) * up_to(step.k, BLOCK_COLS), PAGE)


def _stays(step: ProjectionStep) -> bool:
    """Whether the device leaves the result in the host's layout."""
    if step.n != device_rows(step.n) or step.bias:
        return False
    return not step.gated or step.n >= GLU_LEAST
