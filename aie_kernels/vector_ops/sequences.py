"""The sequences of the vector operators; `vector_ops` says what they run on."""

from __future__ import annotations

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
    less,
    maximum,
)  # fmt: skip

RMS_OBJECT = 128  # elements
OBJECT = 256
HEAD_DIMS = (64, 128, 256)
MAX_STEP = TILES["shim"].max_step * WORD  # bytes: the largest stride of a shim's descriptor


def add_sequences(design: Design) -> None:
    """All sequences, each of one row, for a design that `place` has set up."""
    _add_rms_norm(design)
    _add_rope(design)
    _add_append(design)
    _add_move_heads(design)
    _add_glu(design)


def _add_rms_norm(design: Design) -> None:
    """y = norm(x [+ residual]) * weight, and sum = x + residual.

    All buffers are (n rounded up to 128) bf16. Elements beyond n are zero in x, residual and
    weight, and so in y and sum. Without `residual` (0) the buffers residual and sum are empty.
    `eps_bits`: float32.
    """
    s = design.sequence("rms_norm", "n", "residual", "eps_bits")
    n, residual, eps = s.symbols()
    pieces = ceil_div(n, RMS_OBJECT)
    row = pieces * (2 * RMS_OBJECT)
    x = s.argument("x", "in", row)
    r = s.argument("residual", "in", residual * row)
    w = s.argument("weight", "in", row)
    total = s.argument("sum", "out", residual * row)
    y = s.argument("y", "out", row)
    s.require(less(0, n), "n={n}: a row has at least one element")
    s.require(
        at_most(n, limits.VECTOR_ROW), f"n={{n}} is above {limits.VECTOR_ROW}: a row stays in L1"
    )
    s.require(equal(residual, 0) + equal(residual, 1), "residual={residual} must be 0 or 1")
    s.transfer("rms_x", x, offset=0, run=row)
    with s.when(residual):
        s.transfer("rms_r", r, offset=0, run=row)
    s.transfer("rms_r", w, offset=0, run=row)
    s.start("rms", 1, pieces, pieces * (1 - residual), pieces * residual, n, eps)
    with s.when(residual):
        s.transfer("rms_y", total, offset=0, run=row)
    s.transfer("rms_y", y, offset=0, run=row)
    architecture = design.device.architecture
    plain, added = (
        round(sum(kernel.cycles(architecture, (0,)) for kernel in kernels))
        for kernels in ((RMS_LOAD, RMS_FINISH), (RMS_ADD, RMS_SUM, RMS_FINISH))
    )
    scale = round(RMS_SCALE.cycles(architecture, (0, 0)))
    s.work(pieces * (residual * added + (1 - residual) * plain) + scale)
    _end(s, "rms_y")


def _add_rope(design: Design) -> None:
    """y = x with each head normalised (if `norm`) and rotated by its position.

    x and y are (heads, head_dim) bf16, with at least 256 elements, or 64 or 128; weight (head_dim),
    empty if `norm` is 0; table (256): rotary_dim/2 cosines of the position, then rotary_dim/2
    sines. `interleaved` rotates neighbours, otherwise the halves of `rotary_dim`; elements beyond
    rotary_dim are copied.
    """
    s = design.sequence(
        "rope", "heads", "head_dim", "rotary_dim", "interleaved", "norm", "eps_bits"
    )
    heads, head_dim, rotary_dim, interleaved, norm, eps = s.symbols()
    width = heads * head_dim
    x = s.argument("x", "in", width * 2)
    weight = s.argument("weight", "in", norm * head_dim * 2)
    table = s.argument("table", "in", 2 * OBJECT)
    y = s.argument("y", "out", width * 2)
    _require_heads(s, heads, head_dim)
    s.require(
        at_most(0, rotary_dim) * at_most(rotary_dim, head_dim) * equal(rotary_dim % 32, 0),
        "rotary_dim={rotary_dim} must be a multiple of 32, and at most head_dim={head_dim}",
    )
    s.require(
        equal(interleaved, 0) + equal(interleaved, 1), "interleaved={interleaved} must be 0 or 1"
    )
    s.require(equal(norm, 0) + equal(norm, 1), "norm={norm} must be 0 or 1")
    pieces = ceil_div(width, OBJECT)
    _row(s, "rope_x", x, width)
    with s.when(norm):
        s.transfer("rope_t", weight, offset=0, run=head_dim * 2, outer=[(OBJECT // head_dim, 0)])
    s.transfer("rope_t", table, offset=0, run=2 * OBJECT)
    s.start(
        "rope", 1, norm, norm * pieces, (1 - norm) * pieces, head_dim, rotary_dim, interleaved, eps
    )
    _row(s, "rope_y", y, width)
    normed = round(max(QK_NORM.cycles(design.device.architecture, (d, 0)) for d in HEAD_DIMS))
    s.work(pieces * (norm * normed + _rotation(design)))
    _end(s, "rope_y")


def _add_append(design: Design) -> None:
    """Write a token's keys or values into the cache, as they are.

    x is (kv_heads, head_dim) bf16, with a multiple of 256 elements, or 64 or 128; cache (kv_heads,
    capacity/8, head_dim/8, 8 keys, 8 dimensions), of which they become the key `position`. The core
    takes a row of a `table` (256) and reads none of it.

    The heads are one transfer. If a head of the cache has more than 4 MB, which a stride of a
    shim's descriptor cannot span, each is a transfer.
    """
    s = design.sequence("append", "kv_heads", "head_dim", "position", "capacity")
    heads, head_dim, position, capacity = s.symbols()
    width, head_bytes = heads * head_dim, capacity * head_dim * 2
    x = s.argument("x", "in", width * 2)
    table = s.argument("table", "in", 2 * OBJECT)
    cache = s.argument("cache", "inout", heads * head_bytes)
    _require_heads(s, heads, head_dim)
    s.require(at_most(0, position), "position={position} must not be negative")
    s.require(equal(capacity % 8, 0), "capacity={capacity} must be a multiple of 8 keys")
    s.require(less(position, capacity), "capacity={capacity} has no room for the new key")
    whole = equal(width % OBJECT, 0)
    s.require(
        whole + less(width, OBJECT),
        "kv_heads={kv_heads} x head_dim={head_dim} must be a multiple of 256, or below",
    )
    pieces = ceil_div(width, OBJECT)
    _row(s, "rope_x", x, width)
    s.transfer("rope_t", table, offset=0, run=2 * OBJECT)
    s.start("rope", 1, 0, 0, pieces, head_dim, 0, 0, 0)
    key = position // 8 * (16 * head_dim) + position % 8 * 16
    together = whole * at_most(head_bytes, MAX_STEP)
    with s.when(together):
        s.transfer(
            "rope_y", cache, offset=key, run=16, outer=[(heads, head_bytes), (head_dim // 8, 128)]
        )
    copies = ceil_div(OBJECT, width)  # in an object, if the row is smaller
    with s.when(1 - together), s.loop("copy", copies), s.loop("head", heads) as head:
        s.transfer(
            "rope_y", cache, offset=key + head * head_bytes, run=16, outer=[(head_dim // 8, 128)]
        )
    s.work(pieces * _rotation(design))
    _end(s, "rope_y")


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


def _add_glu(design: Design) -> None:
    """y = act(gate) * up: gate_up (2, n) bf16, first the gate, y (n) bf16.

    `kind` 0 is SiLU, 1 GELU (tanh form); n is at least 256 and even.
    """
    s = design.sequence("glu", "n", "kind")
    n, kind = s.symbols()
    x = s.argument("gate_up", "in", n * 4)
    y = s.argument("y", "out", n * 2)
    s.require(at_most(OBJECT, n) * equal(n % 2, 0), f"n={{n}} must be even and at least {OBJECT}")
    s.require(equal(kind, 0) + equal(kind, 1), "kind={kind} must be 0 (SiLU) or 1 (GELU)")
    pieces = ceil_div(n, OBJECT)
    # A piece of the gate, then the same of up.
    both: tuple[Value, Value] = (2, n * 2)
    s.transfer("glu_x", x, offset=0, run=2 * OBJECT, outer=[(n // OBJECT, 2 * OBJECT), both])
    with s.when(n % OBJECT):
        s.transfer("glu_x", x, offset=(n - OBJECT) * 2, run=2 * OBJECT, outer=[both])
    s.start("glu", (1 - kind) * pieces, kind * pieces)
    _row(s, "glu_y", y, n)
    silu, gelu = (
        round(kernel.cycles(design.device.architecture, (OBJECT,)))
        for kernel in (SILU_MUL, GELU_MUL)
    )
    s.work(pieces * (kind * gelu + (1 - kind) * silu))
    _end(s, "glu_y")


# --- what they share ------------------------------------------------------------------------------
def _require_heads(s: Sequence, heads: Expr, head_dim: Expr) -> None:
    name, width = s.parameters[0], heads * head_dim
    s.require(
        equal(head_dim, 64) + equal(head_dim, 128) + equal(head_dim, 256),
        "head_dim={head_dim} must be 64, 128 or 256: pad with zeros",
    )
    s.require(less(0, heads), f"{name}={{{name}}} must be at least 1")
    s.require(
        at_most(OBJECT, width) + equal(OBJECT % maximum(1, width), 0),
        f"a token of {{{name}}} x {{head_dim}} elements must have 64, 128, or at least {OBJECT}",
    )


def _row(s: Sequence, fifo: str, argument: str, width: Expr) -> None:
    """A row in objects of 256 elements, of which the last ends with it; or, if it is smaller, as
    often as an object holds it."""
    s.transfer(fifo, argument, offset=0, run=width // OBJECT * (2 * OBJECT))
    with s.when(less(OBJECT, width) * less(0, width % OBJECT)):
        s.transfer(fifo, argument, offset=(width - OBJECT) * 2, run=2 * OBJECT)
    with s.when(less(width, OBJECT)):
        s.transfer(fifo, argument, offset=0, run=width * 2, outer=[(OBJECT // width, 0)])


def _rotation(design: Design) -> int:
    """Cycles for an object, at most."""
    return round(max(ROPE.cycles(design.device.architecture, (d, d, 0)) for d in HEAD_DIMS))


def _end(s: Sequence, fifo: str) -> None:
    s.wait(fifo)
    s.cut()
