"""The sequences of the vector operators; `vector_ops` says what they run on."""

from __future__ import annotations

from collections.abc import Callable

from ort_aie_ep.aie_kernels import limits
from ort_aie_ep.aie_kernels.vector_ops.kernels import (
    GELU_MUL,
    QK_NORM,
    RMS_ADD,
    RMS_FINISH,
    RMS_LOAD,
    RMS_SCALE,
    RMS_SUM,
    ROPE,
    SILU_MUL,
    SOFTCAP,
)
from ort_aie_ep.npu.terms.design import (
    Design,
)  # fmt: skip
from ort_aie_ep.npu.terms.device import TILES, WORD
from ort_aie_ep.npu.terms.sequence import (
    Expr,
    Sequence,
    Value,
    at_most,
    ceil_div,
    equal,
    expr,
    less,
    maximum,
    minimum,
)  # fmt: skip

RMS_OBJECT = 128  # elements
OBJECT = 256
MAX_STEP = TILES["shim"].max_step * WORD  # bytes: the largest stride of a shim's descriptor


def add_sequences(design: Design) -> None:
    """All sequences of the vector operators, for a design that `place` has set up."""
    _add_rms_norm(design)
    _add_rope(design)
    _add_append(design)
    _add_move_heads(design)
    _add_glu(design)
    _add_softcap(design)


def _add_rms_norm(design: Design) -> None:
    """y = norm(x [+ residual]) * weight over rows of `n` elements, and sum = x + residual.

    All buffers but the weight are (rows, n rounded up to 128) bf16, weight (n rounded up to 128).
    Elements beyond n are zero in x, residual and weight, and so in y and sum. Without `residual`
    (0) the buffers residual and sum are empty. `eps_bits`: float32.
    """
    s = design.sequence("rms_norm", "n", "rows", "residual", "eps_bits")
    n, rows, residual, eps = s.symbols()
    pieces = ceil_div(n, RMS_OBJECT)
    row = pieces * (2 * RMS_OBJECT)
    x = s.argument("x", "in", rows * row)
    r = s.argument("residual", "in", residual * rows * row)
    w = s.argument("weight", "in", row)
    total = s.argument("sum", "out", residual * rows * row)
    y = s.argument("y", "out", rows * row)
    s.require(less(0, n), "n={n}: a row has at least one element")
    s.require(
        at_most(n, limits.VECTOR_ROW), f"n={{n}} is above {limits.VECTOR_ROW}: a row stays in L1"
    )
    _require_rows(s, rows)
    s.require(equal(residual, 0) + equal(residual, 1), "residual={residual} must be 0 or 1")

    s.transfer("rms_x", x, offset=0, run=rows * row)

    def fill(i: Value) -> None:
        s.transfer("rms_r", r, offset=expr(i) * row, run=row)
        s.transfer("rms_r", w, offset=0, run=row)

    def drain(i: Value) -> None:
        s.transfer("rms_y", total, offset=expr(i) * row, run=row)
        s.transfer("rms_y", y, offset=expr(i) * row, run=row)

    with s.when(residual):
        fill(0)
    with s.when(equal(residual, 0)):
        s.transfer("rms_r", w, offset=0, run=row, outer=[(rows, 0)])
    s.start("rms", rows, pieces, pieces * (1 - residual), pieces * residual, n, eps)
    with s.when(residual):
        drain(0)
        with s.loop("row", rows - 1) as i:
            fill(i + 1)
            drain(i + 1)
    with s.when(equal(residual, 0)):
        s.transfer("rms_y", y, offset=0, run=rows * row)
    architecture = design.device.architecture
    plain, added = (
        round(sum(kernel.cycles(architecture, scalars) for kernel, scalars in calls))
        for calls in (
            ((RMS_LOAD, (0,)), (RMS_FINISH, (0,))),
            ((RMS_ADD, (0,)), (RMS_SUM, (0,)), (RMS_FINISH, (0,))),
        )
    )
    scale = round(RMS_SCALE.cycles(architecture, (0, 0)))
    s.work(rows * (pieces * (residual * added + (1 - residual) * plain) + scale))
    _end(s, "rms_y")


def _add_rope(design: Design) -> None:
    """y = x with each head normalised (if `norm`) and rotated by its token's position.

    x and y are (tokens, heads, head_dim) bf16; weight (head_dim), empty if `norm` is 0; table
    (tokens, 256) bf16: rotary_dim/2 cosines of the token's position, then rotary_dim/2 sines.
    `interleaved` rotates neighbours, otherwise the halves of `rotary_dim`; elements beyond
    rotary_dim are copied. A token has at least 256 elements, or 64 or 128.
    """
    s = _rope_sequence(design, "rope", "heads")
    heads, tokens, head_dim = s.symbols()[:3]
    y = s.argument("y", "out", tokens * heads * head_dim * 2)
    _require_rope(s)
    width = heads * head_dim
    _by_rows(
        s, equal(width % OBJECT, 0), tokens,
        fill=lambda i, rows: _row(s, "rope_x", "x", width, i, rows),
        start=lambda: _start_rope(s),
        drain=lambda i, rows: _row(s, "rope_y", y, width, i, rows),
    )  # fmt: skip
    _end_rope(s, design)


def _add_append(design: Design) -> None:
    """Write the keys (or values, with `rotary_dim` 0) of new tokens into the cache.

    x, weight, table and the first parameters are those of `rope`; cache is (kv_heads, capacity/8,
    head_dim/8, 8 keys, 8 dimensions) bf16. The tokens become its keys from `position` on. A token
    has a multiple of 256 elements, or 64 or 128.

    Eight tokens are one transfer. If a head of the cache has more than 4 MB, which a stride of a
    shim's descriptor cannot span, each token of each head is a transfer.
    """
    s = _rope_sequence(design, "append", "kv_heads", "position", "capacity")
    heads, tokens, head_dim = s.symbols()[:3]
    position, capacity = s.symbols()[7:]
    head_bytes = capacity * head_dim * 2
    cache = s.argument("cache", "inout", heads * head_bytes)
    _require_rope(s)
    s.require(at_most(0, position), "position={position} must not be negative")
    s.require(equal(capacity % 8, 0), "capacity={capacity} must be a multiple of 8 keys")
    s.require(
        at_most(position + tokens, capacity), "capacity={capacity} has no room for the new keys"
    )
    width = heads * head_dim
    whole = equal(width % OBJECT, 0)
    s.require(
        whole + less(width, OBJECT),
        "kv_heads={kv_heads} x head_dim={head_dim} must be a multiple of 256, or below",
    )
    together = whole * at_most(head_bytes, MAX_STEP)
    copies = ceil_div(OBJECT, width)  # of a token in an object, if it is smaller

    def key(i: Value) -> Expr:
        """Byte offset of token i in head 0."""
        at = position + i
        return at // 8 * (16 * head_dim) + at % 8 * 16

    def eight(i: Value, count: Value) -> None:
        """Tokens i .. i + count - 1 of one group of eight keys."""
        s.transfer(
            "rope_y", cache, offset=key(i), run=16,
            outer=[(count, 16), (heads, head_bytes), (head_dim // 8, 128)],
        )  # fmt: skip

    def one(i: Value) -> None:
        with s.loop("copy", copies), s.loop("head", heads) as head:
            s.transfer(
                "rope_y", cache, offset=key(i) + head * head_bytes, run=16,
                outer=[(head_dim // 8, 128)],
            )  # fmt: skip

    def drain(i: Value, rows: Value | None) -> None:
        if rows is None:
            one(i)
            return
        with s.when(together):
            before = s.let("before", minimum(tokens, (0 - position) % 8))
            eight(0, before)
            with s.loop("group", (tokens - before) // 8) as group:
                eight(before + group * 8, 8)
            after = s.let("after", (tokens - before) % 8)
            eight(tokens - after, after)
        with s.when(1 - together), s.loop("token", tokens) as token:
            one(token)

    _by_rows(
        s, whole, tokens,
        fill=lambda i, rows: _row(s, "rope_x", "x", width, i, rows),
        start=lambda: _start_rope(s),
        drain=drain,
    )  # fmt: skip
    _end_rope(s, design)


def _add_move_heads(design: Design) -> None:
    """y = x, `heads` of `dim` elements each, `x_stride` elements apart in x and `y_stride` in y.

    Heads whose size differs from the cache's are spread out before they are rotated, and the output
    is packed again. The gaps between the heads of y are unchanged.

    The core takes objects of 256 elements. So all heads are written `copies` times, in place:
    heads * dim * copies is a multiple of 256. dim is a multiple of 8, the strides are even.
    """
    s = design.sequence("move_heads", "heads", "dim", "x_stride", "y_stride", "copies")
    heads, dim, x_stride, y_stride, copies = s.symbols()
    x = s.argument("x", "in", heads * x_stride * 2)
    y = s.argument("y", "inout", heads * y_stride * 2)
    s.require(less(0, heads), "heads={heads} must be at least 1")
    s.require(less(0, dim) * equal(dim % 8, 0), "dim={dim} must be a multiple of 8, and not 0")
    for name, stride in (("x_stride", x_stride), ("y_stride", y_stride)):
        s.require(
            at_most(dim, stride) * equal(stride % 2, 0),
            f"{name}={{{name}}} must be even, and at least dim={{dim}}",
        )
    s.require(
        less(0, copies) * equal(heads * dim * copies % OBJECT, 0),
        f"copies={{copies}} of heads={{heads}} x dim={{dim}} must be a multiple of {OBJECT}",
    )
    pieces = heads * dim * copies // OBJECT
    s.transfer("rope_x", x, offset=0, run=dim * 2, outer=[(copies, 0), (heads, x_stride * 2)])
    # The core takes a table even when it rotates nothing and so reads none of it.
    whole = at_most(OBJECT, heads * x_stride)
    with s.when(whole):
        s.transfer("rope_t", x, offset=0, run=2 * OBJECT)
    with s.when(1 - whole):
        s.transfer("rope_t", x, offset=0, run=16, outer=[(2 * OBJECT // 16, 0)])
    s.start("rope", 1, 0, 0, pieces, 64, 0, 0, 0)
    s.transfer("rope_y", y, offset=0, run=dim * 2, outer=[(copies, 0), (heads, y_stride * 2)])
    s.work(pieces * round(ROPE.cycles(design.device.architecture, (64, 0, 0))))
    _end(s, "rope_y")


def _rope_sequence(design: Design, name: str, heads_name: str, *more: str) -> Sequence:
    """The parameters and inputs that `rope` and `append` share."""
    s = design.sequence(
        name, heads_name, "tokens", "head_dim", "rotary_dim", "interleaved", "norm", "eps_bits",
        *more,
    )  # fmt: skip
    heads, tokens, head_dim, _, _, norm = s.symbols()[:6]
    s.argument("x", "in", tokens * heads * head_dim * 2)
    s.argument("weight", "in", norm * head_dim * 2)
    s.argument("table", "in", tokens * (2 * OBJECT))
    return s


def _require_rope(s: Sequence) -> None:
    heads, tokens, head_dim, rotary_dim, interleaved, norm = s.symbols()[:6]
    name = s.parameters[0]
    s.require(
        equal(head_dim, 64) + equal(head_dim, 128) + equal(head_dim, 256),
        "head_dim={head_dim} must be 64, 128 or 256: pad with zeros",
    )
    s.require(less(0, heads), f"{name}={{{name}}} must be at least 1")
    _require_rows(s, tokens)
    s.require(
        at_most(OBJECT, heads * head_dim) + equal(OBJECT % maximum(1, heads * head_dim), 0),
        f"a token of {{{name}}} x {{head_dim}} elements must have 64, 128, or at least {OBJECT}",
    )
    s.require(
        at_most(0, rotary_dim) * at_most(rotary_dim, head_dim) * equal(rotary_dim % 32, 0),
        "rotary_dim={rotary_dim} must be a multiple of 32, and at most head_dim={head_dim}",
    )
    s.require(
        equal(interleaved, 0) + equal(interleaved, 1), "interleaved={interleaved} must be 0 or 1"
    )
    s.require(equal(norm, 0) + equal(norm, 1), "norm={norm} must be 0 or 1")


def _start_rope(s: Sequence) -> None:
    heads, tokens, head_dim, rotary_dim, interleaved, norm, eps = s.symbols()[:7]
    pieces = ceil_div(heads * head_dim, OBJECT)
    with s.when(norm):
        s.transfer("rope_t", "weight", offset=0, run=head_dim * 2, outer=[(OBJECT // head_dim, 0)])
    s.transfer("rope_t", "table", offset=0, run=tokens * (2 * OBJECT))
    s.start(
        "rope", tokens, norm, norm * pieces, (1 - norm) * pieces, head_dim, rotary_dim,
        interleaved, eps,
    )  # fmt: skip


def _end_rope(s: Sequence, design: Design) -> None:
    heads, tokens, head_dim, norm = (s.symbols()[i] for i in (0, 1, 2, 5))
    architecture = design.device.architecture
    dims = (64, 128, 256)
    normed = round(max(QK_NORM.cycles(architecture, (d, 0)) for d in dims))
    rotated = round(max(ROPE.cycles(architecture, (d, d, 0)) for d in dims))
    s.work(tokens * ceil_div(heads * head_dim, OBJECT) * (norm * normed + rotated))
    _end(s, "rope_y")


def _add_glu(design: Design) -> None:
    """y = act(gate) * up: gate_up (rows, 2, n) bf16, first the gate, y (rows, n) bf16.

    `kind` 0 is SiLU, 1 GELU (tanh form); n is at least 256 and even.
    """
    s = design.sequence("glu", "n", "rows", "kind")
    n, rows, kind = s.symbols()
    x = s.argument("gate_up", "in", rows * n * 4)
    y = s.argument("y", "out", rows * n * 2)
    _require_width(s, n)
    _require_rows(s, rows)
    s.require(equal(kind, 0) + equal(kind, 1), "kind={kind} must be 0 (SiLU) or 1 (GELU)")
    pieces = ceil_div(n, OBJECT)

    def fill(i: Value, all_rows: Value | None) -> None:
        """A piece of the gate, then the same of up."""
        both: tuple[Value, Value] = (2, n * 2)
        each: tuple[Value, Value] = (n // OBJECT, 2 * OBJECT)
        if all_rows is not None:
            s.transfer("glu_x", x, offset=0, run=2 * OBJECT, outer=[(all_rows, n * 4), each, both])
            return
        s.transfer("glu_x", x, offset=expr(i) * (n * 4), run=2 * OBJECT, outer=[each, both])
        s.transfer(
            "glu_x", x, offset=expr(i) * (n * 4) + (n - OBJECT) * 2, run=2 * OBJECT, outer=[both]
        )

    _by_rows(
        s, equal(n % OBJECT, 0), rows,
        fill=fill,
        start=lambda: s.start("glu", (1 - kind) * rows * pieces, kind * rows * pieces),
        drain=lambda i, all_rows: _row(s, "glu_y", y, n, i, all_rows),
    )  # fmt: skip
    silu, gelu = (
        round(kernel.cycles(design.device.architecture, (OBJECT,)))
        for kernel in (SILU_MUL, GELU_MUL)
    )
    s.work(rows * pieces * (kind * gelu + (1 - kind) * silu))
    _end(s, "glu_y")


def _add_softcap(design: Design) -> None:
    """y = cap * tanh(x / cap) over `n` elements of bf16, n even and at least 256."""
    s = design.sequence("softcap", "n", "cap_bits")
    n, cap = s.symbols()
    s.argument("x", "in", n * 2)
    s.argument("y", "out", n * 2)
    _require_width(s, n)
    s.require(less(0, cap), "cap_bits={cap_bits} must be those of a positive float32")
    pieces = ceil_div(n, OBJECT)
    _by_rows(
        s, equal(n % OBJECT, 0), expr(1),
        fill=lambda i, rows: _row(s, "softcap_x", "x", n, i, rows),
        start=lambda: s.start("softcap", pieces, cap),
        drain=lambda i, rows: _row(s, "softcap_y", "y", n, i, rows),
    )  # fmt: skip
    s.work(pieces * round(SOFTCAP.cycles(design.device.architecture, (OBJECT, 0))))
    _end(s, "softcap_y")


# --- what they share ------------------------------------------------------------------------------
#: Moves row i, or all of `rows` when it is not None.
Move = Callable[[Value, "Value | None"], None]


def _by_rows(
    s: Sequence, whole: Expr, rows: Expr, *, fill: Move, start: Callable[[], None], drain: Move
) -> None:
    """All rows at once if they are `whole` objects, else row by row: inputs and outputs alternate,
    because a channel must never wait for a row that nothing takes away yet."""
    with s.when(whole):
        fill(0, rows)
    with s.when(1 - whole):
        fill(0, None)
    start()
    with s.when(whole):
        drain(0, rows)
    with s.when(1 - whole):
        drain(0, None)
        with s.loop("row", rows - 1) as i:
            fill(i + 1, None)
            drain(i + 1, None)


def _row(s: Sequence, fifo: str, argument: str, width: Expr, i: Value, rows: Value | None) -> None:
    """Rows of `width` elements: all of them, or row i in objects of 256."""
    if rows is not None:
        s.transfer(fifo, argument, offset=0, run=width * rows * 2)
        return
    at = expr(i) * width * 2
    s.transfer(fifo, argument, offset=at, run=width // OBJECT * (2 * OBJECT))
    with s.when(less(OBJECT, width)):
        s.transfer(fifo, argument, offset=at + (width - OBJECT) * 2, run=2 * OBJECT)
    with s.when(less(width, OBJECT)):
        s.transfer(fifo, argument, offset=at, run=width * 2, outer=[(OBJECT // width, 0)])


def _require_rows(s: Sequence, rows: Expr) -> None:
    name = str(rows.left)
    s.require(less(0, rows), f"{name}={{{name}}} must be at least 1")


def _require_width(s: Sequence, n: Expr) -> None:
    s.require(at_most(OBJECT, n) * equal(n % 2, 0), f"n={{n}} must be even and at least {OBJECT}")


def _end(s: Sequence, fifo: str) -> None:
    s.wait(fifo)
    s.cut()
