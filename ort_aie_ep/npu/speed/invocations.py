"""Steps as invocations of overlays, as the executor makes them: those of a token, on `decode`.

`TokenBatch` follows src/targets/npu/{batch,projection,vectors,attention}.cc. A step joins a
submission unless it waits for something that only the host can compute, or the array cannot run it.
tests/xrt/test_simulated_plan.py compares the result with the counters of a session.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, gcd

from ort_aie_ep.formats.q4nx import BLOCK_WEIGHTS, BlockForm
from ort_aie_ep.npu.speed import operators as op
from ort_aie_ep.npu.speed.kernels import Kernels
from ort_aie_ep.npu.speed.operators import Step
from ort_aie_ep.npu.speed.steps import (
    AttentionStep,
    CastStep,
    PlanStep,
    ProjectionStep,
    VectorStep,
)
from ort_aie_ep.npu.speed.tally import Part

# src/targets/npu/designs.h
LEAST_N = 128
MATVEC_MAX_K = 16384
MATVEC_MAX_BIAS = 80 * 16 * 32
VECTOR_MAX_K = 16384
ROW_OPERATORS_MAX_K = 7168
LEAST_ROWS = 64  # of GEMM
GLU_LEAST = 256
RMS_MULTIPLE = 128
OBJECT = 256  # elements that `rope`, `append` and `move_heads` process at a time
ROTARY_MULTIPLE = 32
LEAST_CAPACITY = 256
BUFFER_BYTES = 1 << 32  # device.h: weights are in buffers of at most this many bytes
BLOCK_ROWS, BLOCK_COLS = op.Q4NX_OUTPUTS, op.Q4NX_INPUTS
KEPT_ROWS = 4  # batch.cc: rows from which the last projections were computed
#: Of a plan: activations, the caches of all layers, then weights.
ACTIVATIONS, CACHES, WEIGHTS = 0, 1, 2
ONE = 0x3F800000  # as float32; scales and epsilons do not change a stream's length


def up_to(x: int, multiple: int) -> int:
    """x rounded up."""
    return -(-x // multiple) * multiple


def device_rows(n: int) -> int:
    """The out-features as the designs count them."""
    return max(up_to(n, BLOCK_ROWS), LEAST_N)


def copy_capacity(context: int) -> int:
    """The capacity of a cache's copy: a power of two, with room for further tokens."""
    return max(LEAST_CAPACITY, 1 << context.bit_length())


@dataclass(frozen=True)
class Invocation:
    """A sequence of a design with its parameters, the buffers of its arguments, and its cost."""

    sequence: str
    parameters: Mapping[str, int]
    arguments: Mapping[str, int]
    part: Part
    cost: tuple[Step, ...]
    overlay: str = "decode"


class Weights:
    """The buffer of a plan that has each matrix: one after another, in buffers of 4 GiB.

    Matrices whose blocks the device can read as they are stay in the model's memory; others are
    copied. Quantised ones are in `form`.
    """

    def __init__(self, form: BlockForm) -> None:
        self.form = form
        self._places: dict[tuple[str, int], int] = {}
        self._open: dict[bool, tuple[int, int]] = {}  # (buffer, bytes in it) of copied or not
        self._buffers = 0

    def add(self, step: ProjectionStep) -> None:
        """Add the matrix of a step, and the second one of a gated step."""
        blocks = device_rows(step.n) // BLOCK_ROWS * ceil(step.k / BLOCK_COLS)
        size = blocks * (self.form.block_bytes if step.form else 2 * BLOCK_WEIGHTS)
        copied = step.form not in (None, self.form)
        copied = copied or device_rows(step.n) != up_to(step.n, BLOCK_ROWS)
        for matrix in range(2 if step.gated else 1):
            buffer, used = self._open.get(copied, (-1, BUFFER_BYTES))
            if used + size > BUFFER_BYTES:
                buffer, used = WEIGHTS + self._buffers, 0
                self._buffers += 1
            self._open[copied] = buffer, used + size
            self._places[step.name, matrix] = buffer

    def buffer(self, step: ProjectionStep, matrix: int) -> int:
        """The buffer of a matrix that was added."""
        return self._places[step.name, matrix]


@dataclass(frozen=True)
class View:
    """Where the device has a tensor: room in elements, zeros included.

    `result`: the host can read it there after the run. `width` is that of a row, if there are
    several rows.
    """

    room: int
    result: bool = True
    width: int = 0


@dataclass
class TokenBatch:
    """Steps of one row for a submission; `context` counts the cached tokens and the new one."""

    weights: Weights
    context: int
    kernels: Kernels
    invocations: list[Invocation] = field(default_factory=list)
    # The values that the batch writes; None: the host has it after the run. The host has all
    # others.
    _written: dict[str, View | None] = field(default_factory=dict)
    _rows: dict[tuple[str, str, str], View] = field(default_factory=dict)

    def on_host(self, values: tuple[str, ...]) -> bool:
        """Whether the host has these before the run."""
        return not any(value and value in self._written for value in values)

    def after(self, step: PlanStep) -> None:
        """Leave a step to the host, after the run."""
        self._write_later(step.writes)

    def append(self, step: PlanStep) -> bool:
        """Add a step, unless it has to wait for something that this batch leaves to the host."""
        if isinstance(step, ProjectionStep):
            return self._projection(step)
        if isinstance(step, AttentionStep):
            return self._attention(step)
        if isinstance(step, VectorStep):
            return self._norm(step) if step.kind == "norm" else self._elementwise(step)
        return isinstance(step, CastStep) and self._cast(step)

    def _write_later(self, values: tuple[str, ...]) -> None:
        for value in filter(None, values):
            self._written[value] = None

    def _later(self, *values: str) -> bool:
        return any(value in self._written and self._written[value] is None for value in values)

    def _view(self, value: str) -> View | None:
        return self._written.get(value)

    def _output(self, value: str, elements: int, least: int = 0) -> View:
        zeros = elements % BLOCK_COLS != 0 and elements <= MATVEC_MAX_K
        room = max(up_to(elements, BLOCK_COLS if zeros else BLOCK_ROWS), least)
        view = View(room if zeros else elements)
        if value:
            self._written[value] = view
        return view

    def _output_rows(self, value: str, width: int, rows: int) -> View:
        view = View(max(rows, LEAST_ROWS) * width, width=width)
        if value:
            self._written[value] = view
        return view

    def _invoke(
        self, sequence: str, parameters: Mapping[str, int], arguments: str, part: Part,
        cost: tuple[Step, ...], buffers: Mapping[str, int] | None = None, overlay: str = "decode",
    ) -> None:  # fmt: skip
        views = dict.fromkeys(arguments.split(), ACTIVATIONS) | dict(buffers or {})
        self.invocations.append(Invocation(sequence, parameters, views, part, cost, overlay))

    def _keep_rows(self, key: tuple[str, str, str], x: View) -> None:
        while len(self._rows) >= KEPT_ROWS:
            del self._rows[next(iter(self._rows))]
        self._rows[key] = x

    # --- rows of operators ---

    def _rms(self, n: int, *, residual: bool) -> None:
        self._invoke(
            "rms_norm", {"n": n, "rows": 1, "residual": int(residual), "eps_bits": ONE},
            "x residual weight sum y", "vector", op.token_norm(n, residual, self.kernels),
        )  # fmt: skip

    def _add_norm(self, rows: int, k: int, *, residual: bool, norm: bool) -> None:
        self._invoke(
            "add_norm",
            {
                "M": rows, "K": up_to(k, BLOCK_COLS), "n": k, "residual": int(residual),
                "norm": int(norm), "eps_bits": 0,
            },
            "x residual weight sum y", "vector",
            op.row_norm(rows, k, residual, norm, self.kernels), overlay="gemm",
        )  # fmt: skip

    def _glu(self, width: int, *, gelu: bool) -> None:
        self._invoke(
            "glu", {"n": width, "rows": 1, "kind": int(gelu)}, "gate_up y", "vector",
            op.gated(1, width, gelu, self.kernels),
        )  # fmt: skip

    def _input(
        self, a: str, skip: str, norm: str, total: str, k: int, *, rows: int = 1, own: bool = False
    ) -> bool:  # fmt: skip
        """x = a, or a + skip, and its norm, of `rows` rows; `own`: write x to its own place."""
        if self._later(a, skip):
            return False
        several, operators, padded = rows > 1, bool(norm or skip), up_to(k, BLOCK_COLS)
        vectors = k <= (ROW_OPERATORS_MAX_K if several else VECTOR_MAX_K)
        all_rows = max(rows, LEAST_ROWS) * padded if several else padded
        needed = up_to(k, RMS_MULTIPLE) if operators and not several else all_rows
        views = [view for value in (a, skip) if (view := self._view(value)) is not None]
        for view in views:
            if view.room < needed or (operators and not vectors) or (several and k != padded):
                return False
        if norm and not vectors:  # the host does it, with values that it has
            self._write_later((total,))
            return True
        both = bool(views and skip)
        made = None if own else self._rows.get((a, skip, norm))
        if made is not None:
            if total:
                self._written[total] = made
            return True
        if both:
            x = self._output_rows(total, k, rows) if several else self._output(total, k)
        else:
            host = View(all_rows, result=False, width=k if several else 0)
            x = views[0] if views else host
            if total:
                self._written[total] = None if several and k != padded else x
        if several and (norm or both):
            self._add_norm(rows, k, residual=both, norm=bool(norm))
        elif norm or both:
            self._rms(k, residual=both)
        if not own:
            self._keep_rows((a, skip, norm), x)
        return True

    def _norm(self, step: VectorStep) -> bool:
        if not self._input(step.a, step.skip, step.weight, step.sum, step.k, own=True):
            return False
        self._output(step.y, step.k)
        return True

    def _elementwise(self, step: VectorStep) -> bool:
        pieces = up_to(step.k, RMS_MULTIPLE)
        b = self._view(step.b)
        short = any(v is not None and v.room < pieces for v in (self._view(step.a), b))
        if self._later(step.a, step.b) or short or (step.scalar and b is not None):
            return False
        if step.kind == "multiply":
            for _ in range(2 if b is not None else 1):
                self._rms(step.k, residual=False)
        else:
            self._rms(step.k, residual=True)
            if step.kind != "add":
                self._glu(max(pieces, GLU_LEAST), gelu=step.kind != "silu")
        self._output(step.y, step.k)
        return True

    def _cast(self, step: CastStep) -> bool:
        view = self._view(step.a)
        if view is None or not view.result:
            return False
        self._written[step.y] = view
        return True

    # --- projections ---

    def _projection(self, step: ProjectionStep) -> bool:
        if not self._input(step.a, step.skip, step.norm, step.sum, step.k):
            return False
        n = device_rows(step.n)
        bias = step.bias and step.n <= MATVEC_MAX_BIAS
        for matrix in range(2 if step.gated else 1):
            self._matvec(step, matrix, bias=bias)
        if step.gated:
            width = max(n, GLU_LEAST)
            self._glu(width, gelu=step.gelu)
            self._output(step.y, step.n, width)
        elif bias or not step.bias:
            self._output(step.y, step.n, n)
        else:
            self._write_later((step.y,))
        return True

    def _matvec(self, step: ProjectionStep, matrix: int, *, bias: bool) -> None:
        n, k = device_rows(step.n), up_to(step.k, BLOCK_COLS)
        blocks, parts = k // BLOCK_COLS, ceil(k / MATVEC_MAX_K)
        for index in range(parts):
            own = (blocks * (index + 1) // parts - blocks * index // parts) * BLOCK_COLS
            added = bias or index > 0
            parameters = {"N": n, "K": own, "bias": int(added), "activation": 0}
            if parts > 1:
                parameters["row_K"] = k
            self._invoke(
                "matvec_part" if parts > 1 else "matvec", parameters, "x bias y", "projections",
                op.fused_dqp(n, own, kernels=self.kernels, form=self.weights.form),
                {"w": self.weights.buffer(step, matrix)},
            )  # fmt: skip

    # --- attention ---

    def _attention(self, step: AttentionStep) -> bool:
        inputs = (step.query, step.key or step.query, step.value or step.query)
        views = [self._view(value) for value in inputs]
        by_host = self.on_host(inputs)
        by_device = all(v is not None and v.result for v in views) and _can_prepare(step)
        if not (by_host or by_device) or not self.on_host(step.past):
            return False
        padded = op.padded_head(step.head_dim)
        if by_device:
            self._prepare(step, padded)
        moved = padded != step.head_dim and not step.quantised
        whole = not step.quantised
        self._invoke(
            "attention",
            {
                "heads": step.heads, "kv_heads": step.kv_heads, "head_dim": padded,
                "context": self.context, "capacity": copy_capacity(self.context),
                "window": step.window, "scale_bits": ONE, "softcap_bits": 0,
            },
            "q o", "attention",
            op.flow_kv(
                self.context, step.heads, step.kv_heads, step.head_dim, step.window or None,
                kernels=self.kernels,
            ),
            {"k": CACHES, "v": CACHES},
        )  # fmt: skip
        if moved:
            self._move(step.heads, step.head_dim, padded, step.head_dim)
        if whole:
            self._output(step.output, step.heads * step.head_dim)
        else:
            self._write_later((step.output,))
        if by_device or step.windowed_cache:
            self._write_later(step.present)
        return True

    def _prepare(self, step: AttentionStep, padded: int) -> None:
        if padded != step.head_dim:
            for heads in (step.heads, step.kv_heads, step.kv_heads):
                self._move(heads, step.head_dim, step.head_dim, padded)
        for heads, norm, rotary in (
            (step.heads, step.query_norm, step.rotary),
            (step.kv_heads, step.key_norm, step.rotary),
            (step.kv_heads, step.value_norm, 0),
        ):
            if rotary or norm:
                for count in _portions(heads, padded, whole=False):
                    self._rope(rotary, count, padded, norm=norm)
        for _ in range(2):  # keys and values
            for count in _portions(step.kv_heads, padded, whole=True):
                self._append(count, padded)

    def _rope(self, rotary: int, heads: int, padded: int, *, norm: bool) -> None:
        self._invoke(
            "rope",
            {
                "tokens": 1, "head_dim": padded, "rotary_dim": rotary, "interleaved": 0,
                "norm": int(norm), "eps_bits": ONE, "heads": heads,
            },
            "x weight table y", "vector", op.token_rope(heads, padded, norm, self.kernels),
        )  # fmt: skip

    def _append(self, heads: int, padded: int) -> None:
        self._invoke(
            "append",
            {
                "tokens": 1, "head_dim": padded, "rotary_dim": 0, "interleaved": 0, "norm": 0,
                "eps_bits": ONE, "kv_heads": heads, "position": self.context - 1,
                "capacity": copy_capacity(self.context),
            },
            "x weight table", "vector",
            op.token_append(heads, padded, copy_capacity(self.context), self.kernels),
            {"cache": CACHES},
        )  # fmt: skip

    def _move(self, heads: int, dim: int, x_stride: int, y_stride: int) -> None:
        self._invoke(
            "move_heads",
            {
                "heads": heads, "dim": dim, "x_stride": x_stride, "y_stride": y_stride,
                "copies": OBJECT // gcd(OBJECT, heads * dim),
            },
            "x y", "vector", op.token_rope(heads, dim, False, self.kernels),
        )  # fmt: skip


def _can_prepare(step: AttentionStep) -> bool:
    """Whether `rope` and `append` can do the work before attention."""
    norm_first = not (step.norm_after_rotary and step.query_norm)
    return not step.quantised and norm_first and step.rotary % ROTARY_MULTIPLE == 0


def _portions(heads: int, dim: int, *, whole: bool) -> list[int]:
    """The numbers of heads that `rope` or `append` processes at a time."""
    portions = []
    while heads > 0:
        width = heads * dim
        portion = width
        if width >= OBJECT and whole:
            portion = width // OBJECT * OBJECT
        if width < OBJECT:
            portion = 1 << (width.bit_length() - 1)
        portions.append(portion // dim)
        heads -= portion // dim
    return portions
