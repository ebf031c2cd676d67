"""The sequences of `fused_layer`: a decoder layer, and the vocabulary after the last one."""

from __future__ import annotations

from ort_aie_ep.aie_kernels.flow_kv.design import (
    CHUNK,
    PIECE,
    chunk_cycles,
    require_cache,
    require_heads,
)
from ort_aie_ep.aie_kernels.fused_dqp.design import BLOCK_COLUMNS, BLOCK_ROWS
from ort_aie_ep.aie_kernels.fused_dqp.kernels import DQP_BLOCK, DQP_ZERO
from ort_aie_ep.aie_kernels.fused_layer.kernels import (
    LAYER_FINISH,
    LAYER_LOAD_X,
    LAYER_NORM,
    MAX_BIAS,
    MAX_Q,
    MAX_QUERIES,
    MAX_X,
    OBJECT,
    ROUND,
    ROWS,
    SECOND,
)
from ort_aie_ep.npu.vocabulary import costs
from ort_aie_ep.npu.vocabulary.design import Design
from ort_aie_ep.npu.vocabulary.device import TILES, WORD
from ort_aie_ep.npu.vocabulary.sequence import (
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

COLUMNS = 4  # of projections
CORES = 4  # of a column
ROUND_ROWS = COLUMNS * CORES  # rows of blocks
PAIRS = 4
MAX_ROUNDS = 1023  # of a projection: 10 bits of a parameter
MAX_ITERATIONS = 64  # of a shim's descriptor (AM020: a 6-bit count)
MAX_STEP = TILES["shim"].max_step * WORD  # bytes
#: Rounds of up before the activations of down begin to move into the projection cores, so that they
#: are there when a core looks for them.
LEAD = 2
#: Where the rope core keeps the norm weights of heads: the last objects of its row.
Q_WEIGHT, K_WEIGHT = ROWS // OBJECT - 2, ROWS // OBJECT - 1


def add_sequences(design: Design) -> None:
    """`layer`, `shared_layer` and `head`, for a design that `fused_layer.build` has placed."""
    _add_layer(design, "layer", own=True)
    _add_layer(design, "shared_layer", own=False)
    _add_head(design)


def _add_layer(design: Design, name: str, *, own: bool) -> None:
    """A decoder layer of one token: y = h + MLP(norm(h)), h = x + attention(norm(x)).

    x and y (hidden), the norms' weights (hidden), bias of QKV (heads + 2 kv_heads) head_dim, the
    norms' weights of query and key heads (head_dim) and table (256) are bf16. The weights of QKV,
    output, gate, up and down are Q4NX. k and v are FlowKV's cache with room for `capacity` keys;
    the token's own are written at position `context` - 1. `table` has rotary_dim / 2 cosines of the
    position, then as many sines.

    A layer without keys and values of its `own` (later layers of Gemma 3n and 4) reads those of an
    earlier layer, the token's among them. Its w_qkv and bias are of queries alone; it has no
    k_norm.

    `head_norm`, `post_norm` (Gemma 3: norms of both outputs before their residual sums) and `bias`
    are 0 or 1; their buffers are empty without them. `gelu` 0 is SiLU, 1 GELU (tanh form).
    `window`, `scale_bits`, `softcap_bits` as in FlowKV; `eps_bits` is a float32's.
    """
    s = design.sequence(
        name, "hidden", "heads", "kv_heads", "head_dim", "rotary_dim", "interleaved", "ffn",
        "gelu", "head_norm", "post_norm", "bias", "context", "capacity", "window", "scale_bits",
        "softcap_bits", "eps_bits",
    )  # fmt: skip
    (
        hidden, heads, kv_heads, head_dim, rotary_dim, interleaved, ffn, gelu, head_norm, post_norm,
        bias, context, capacity, window, scale, softcap, eps,
    ) = s.symbols()  # fmt: skip
    require_heads(s, heads, kv_heads, head_dim)
    q_dim, kv_dim = heads * head_dim, kv_heads * head_dim
    block = design.form.block_bytes
    width = q_dim + 2 * kv_dim * own
    row = 2 * head_dim  # bytes

    x = s.argument("x", "in", 2 * hidden)
    input_norm = s.argument("input_norm", "in", 2 * hidden)
    b = s.argument("bias", "in", 2 * width * bias)
    q_norm = s.argument("q_norm", "in", row * head_norm)
    k_norm = s.argument("k_norm", "in", row * head_norm) if own else q_norm  # as many
    table = s.argument("table", "in", 2 * OBJECT)
    attention_norm = s.argument("attention_norm", "in", 2 * hidden * post_norm)
    ffn_norm = s.argument("ffn_norm", "in", 2 * hidden)
    output_norm = s.argument("output_norm", "in", 2 * hidden * post_norm)
    w_qkv = s.argument("w_qkv", "in", _matrix_bytes(width, hidden, block))
    w_o = s.argument("w_o", "in", _matrix_bytes(hidden, q_dim, block))
    w_gate = s.argument("w_gate", "in", _matrix_bytes(ffn, hidden, block))
    w_up = s.argument("w_up", "in", _matrix_bytes(ffn, hidden, block))
    w_down = s.argument("w_down", "in", _matrix_bytes(hidden, ffn, block))
    k = s.argument("k", "inout" if own else "in", capacity * kv_dim * 2)
    v = s.argument("v", "inout" if own else "in", capacity * kv_dim * 2)
    y = s.argument("y", "out", 2 * hidden)

    _require_hidden(s, hidden)
    require_cache(s, head_dim, capacity, context)
    s.require(less(0, context), "context={context}: there must be a key")
    s.require(at_most(0, window), "window={window} must be 0 (none) or positive")
    for parameter, value in (("heads", q_dim), ("kv_heads", kv_dim)):
        s.require(
            equal(value % OBJECT, 0),
            f"{parameter}={{{parameter}}} of head_dim={{head_dim}} must have a multiple of "
            f"{OBJECT} elements",
        )
    s.require(
        equal(ffn % OBJECT, 0) * at_most(ROUND, ffn) * at_most(ffn, ROWS),
        f"ffn={{ffn}} must be a multiple of {OBJECT}, {ROUND} to {ROWS}: the gate stays in L1",
    )
    s.require(
        at_most(hidden + ffn, MAX_X),
        f"hidden={{hidden}} and ffn={{ffn}} together are above {MAX_X}: the activations of up and "
        "of down stay in L1",
    )
    s.require(
        at_most(width, Q_WEIGHT * OBJECT),
        f"heads={{heads}}, kv_heads={{kv_heads}}: queries, keys and values have more than "
        f"{Q_WEIGHT * OBJECT} elements, which stay in L1",
    )
    s.require(
        at_most(0, rotary_dim) * at_most(rotary_dim, head_dim) * equal(rotary_dim % 32, 0),
        "rotary_dim={rotary_dim} must be a multiple of 32 up to head_dim={head_dim}",
    )
    for parameter, value in (
        ("interleaved", interleaved), ("gelu", gelu), ("head_norm", head_norm),
        ("post_norm", post_norm), ("bias", bias),
    ):  # fmt: skip
        flag = equal(value, 0) + equal(value, 1)
        s.require(flag, f"{parameter}={{{parameter}}} must be 0 or 1")

    # Where pairs would have no head of their own, they divide the queries of one.
    parts = s.let("parts", query_parts(heads, kv_heads))  # of a KV head
    units = s.let("units", kv_heads * parts)
    group = s.let("group", heads // units)
    sweeps = s.let("sweeps", ceil_div(units, PAIRS))
    size = s.let("size", group * head_dim)  # elements of a sweep's queries
    s.require(
        at_most(size, MAX_Q),
        f"heads={{heads}}, kv_heads={{kv_heads}}: a pair has {{size}} elements, and a sweep holds "
        f"{MAX_Q}",
    )
    s.require(
        at_most(size * sweeps, MAX_QUERIES),
        f"heads={{heads}} of head_dim={{head_dim}}: a pair holds {MAX_QUERIES} elements of queries",
    )
    pieces = s.let("pieces", hidden // OBJECT)
    most_q = MAX_STEP // (ROUND * block // BLOCK_ROWS) * BLOCK_COLUMNS
    s.require(
        at_most(q_dim, most_q),
        f"heads={{heads}} of head_dim={{head_dim}} have more than {most_q} elements: w_o would be "
        "more tasks than a channel takes before attention has its keys",
    )
    rounds = s.let("rounds", ceil_div(width, ROUND))
    s.require(
        at_most(bias * rounds * BLOCK_ROWS, MAX_BIAS),
        f"heads={{heads}}, kv_heads={{kv_heads}}: a bias of more than {MAX_BIAS * ROUND_ROWS}",
    )
    hidden_rounds = s.let("hidden_rounds", ceil_div(hidden, ROUND))
    up_rounds = s.let("up_rounds", ceil_div(ffn, ROUND))
    ups = s.let("ups", ffn // ROUND)  # that are whole
    paired = s.let("paired", maximum(0, up_rounds - LEAD))
    keys = s.let("keys", CHUNK // head_dim)
    seen = s.let("seen", less(0, window) * maximum(0, context - window))  # the first key seen
    base = s.let("base", seen // keys * keys)
    chunks = s.let("chunks", ceil_div(context - base, keys))
    tail = s.let("tail", less(1, chunks))

    # What the first cores wait for is on its way while parameters are written.
    s.transfer("operands", x, offset=0, run=2 * hidden)
    s.transfer("operands", input_norm, offset=0, run=2 * hidden)
    s.start(
        "hub", pieces, hidden, eps, bias * rounds * 2, 0, rounds, q_dim // OBJECT, 1, post_norm,
        hidden_rounds, up_rounds, ups, up_rounds - ups,
    )  # fmt: skip
    _weights(s, w_qkv, width, hidden, block)
    for core in _projections(design):
        s.start(
            core, _three(pieces, rounds, bias), _three(q_dim // OBJECT, hidden_rounds, pieces),
            _three(2 * up_rounds - paired, paired, ffn // OBJECT - 2 * paired),
        )  # fmt: skip
    _bias(s, b, bias, width)
    with s.when(head_norm):
        for weight in (q_norm, k_norm):
            s.transfer("table", weight, offset=0, run=row, outer=[(OBJECT // head_dim, 0)])
    s.transfer("table", table, offset=0, run=2 * OBJECT)
    s.start(
        "rope", rounds, width, 1, head_norm, q_dim // OBJECT, q_dim // OBJECT,
        kv_dim // OBJECT * own, (q_dim + kv_dim) // OBJECT, head_norm * Q_WEIGHT,
        head_norm * K_WEIGHT, head_dim, rotary_dim, interleaved, eps,
        2 * hidden_rounds + 2 * up_rounds,
    )  # fmt: skip
    for p in range(PAIRS):
        s.start(
            f"score{p}", q_dim // OBJECT, sweeps, size, units, group, head_dim, seen - base,
            minimum(keys, context - base), chunks - 1 - tail, keys, tail,
            context - base - (chunks - 1) * keys, scale, softcap,
        )  # fmt: skip
        s.start(f"value{p}", sweeps, size // PIECE, group, head_dim, chunks)
    s.start(
        "gate", rounds, sweeps * size // PIECE, size // PIECE, units, q_dim // OBJECT,
        hidden_rounds, up_rounds, ffn, ups, up_rounds - ups, gelu, hidden_rounds,
    )  # fmt: skip
    # Every core has been started: a full queue may wait for projections from here on.
    _weights(s, w_o, hidden, q_dim, block)
    _weights(s, w_gate, ffn, hidden, block)
    if own:
        for new in (k, v):
            s.transfer(
                "kv", new, offset=(context - 1) // 8 * (8 * row) + (context - 1) % 8 * 16, run=16,
                outer=[(kv_heads, capacity * row), (head_dim // 8, 128)],
            )  # fmt: skip
        s.arrive("kv")
    with s.loop("sweep", sweeps) as sweep:
        for p in range(PAIRS):
            head = minimum(sweep * PAIRS + p, units - 1) // parts
            for fifo, rows in ((f"k{p}", k), (f"v{p}", v)):
                s.transfer(
                    fifo, rows, offset=(head * capacity + base) * row, run=chunks * keys * row
                )
    with s.when(post_norm):
        s.transfer("operands", attention_norm, offset=0, run=2 * hidden)
    s.transfer("operands", ffn_norm, offset=0, run=2 * hidden)
    _weights(s, w_up, ffn, hidden, block)
    _weights(s, w_down, hidden, ffn, block)
    with s.when(post_norm):
        s.transfer("operands", output_norm, offset=0, run=2 * hidden)
    s.transfer("out", y, offset=0, run=2 * hidden)
    blocks = (
        (rounds + 2 * up_rounds) * pieces
        + hidden_rounds * ((q_dim + ffn) // BLOCK_COLUMNS)
    )  # fmt: skip
    s.work(
        blocks * round(DQP_BLOCK.cycles(design.device.architecture, (0,)))
        + sweeps * chunks * chunk_cycles(design.device, group, head_dim)
    )
    s.wait("out")
    s.cut()


def _add_head(design: Design) -> None:
    """y = W norm(x): x, norm (hidden) and y (N) bf16, w Q4NX (N, hidden); `eps_bits` float32."""
    s = design.sequence("head", "N", "hidden", "eps_bits")
    N, hidden, eps = s.symbols()
    block = design.form.block_bytes
    x = s.argument("x", "in", 2 * hidden)
    norm = s.argument("norm", "in", 2 * hidden)
    w = s.argument("w", "in", _matrix_bytes(N, hidden, block))
    y = s.argument("y", "out", 2 * N)
    _require_hidden(s, hidden)
    s.require(equal(N % BLOCK_ROWS, 0), "N={N} must be a multiple of 32: pad W with zero scales")
    s.require(at_most(128, N), "N={N} must be at least 128: pad W with zero scales")
    s.require(at_most(N, MAX_ROUNDS * ROUND), f"N={{N}} is above {MAX_ROUNDS * ROUND}: divide N")
    pieces = s.let("pieces", hidden // OBJECT)
    rounds = s.let("rounds", ceil_div(N, ROUND))

    s.transfer("operands", x, offset=0, run=2 * hidden)
    s.transfer("operands", norm, offset=0, run=2 * hidden)
    s.start("hub", pieces, hidden, eps, 0, rounds, *(0,) * 8)
    for name in _projections(design):
        s.start(name, _three(pieces, rounds, 0), 0, 0)
    s.start("rope", *(0,) * 14, rounds)
    s.start("gate", rounds, *(0,) * 11)
    s.transfer("out", y, offset=0, run=N // ROUND * (2 * ROUND))
    _weights(s, w, N, hidden, block)
    with s.when(N % ROUND):
        for _, first in _last_round(N // BLOCK_ROWS):
            s.transfer("out", y, offset=first * (2 * BLOCK_ROWS), run=2 * CORES * BLOCK_ROWS)
    arch = design.device.architecture
    load, normalise, multiply = (
        round(kernel.cycles(arch, (0,))) for kernel in (LAYER_LOAD_X, LAYER_NORM, DQP_BLOCK)
    )
    ends = round(DQP_ZERO.cycles(arch, ()) + LAYER_FINISH.cycles(arch, (0, 0)))
    first_blocks = int(block / costs.STREAM.value)  # halves of two cores, through the memory tile
    s.work(first_blocks + pieces * (load + normalise) + rounds * (pieces * multiply + ends))
    s.wait("out")
    s.cut()


def query_parts(heads: Value, kv_heads: Value) -> Expr:
    """Into how many equal parts pairs divide the queries of a KV head: 4 or 2 if there is one, 2 if
    there are two, else 1; 1 if its group does not divide so."""
    group = expr(heads) // kv_heads
    even, by_four = equal(group % 2, 0), equal(group % 4, 0)
    return 1 + at_most(kv_heads, 2) * even * (1 + 2 * equal(kv_heads, 1) * by_four)


# --- parts ----------------------------------------------------------------------------------------
def _projections(design: Design) -> list[str]:
    return [name for name in design.workers if name.startswith("dqp")]


def _three(first: Value, second: Value, third: Value) -> Expr:
    """Three parameters of 10 bits in a word."""
    return first + expr(second) * (1 << 10) + expr(third) * (1 << 20)


def _matrix_bytes(n: Expr, k: Expr, block: int) -> Expr:
    return n // BLOCK_ROWS * (k // BLOCK_COLUMNS) * block


def _require_hidden(s: Sequence, hidden: Expr) -> None:
    s.require(
        equal(hidden % OBJECT, 0) * at_most(OBJECT, hidden) * at_most(hidden, SECOND),
        f"hidden={{hidden}} must be a multiple of {OBJECT} up to {SECOND}",
    )


def _last_round(rows: Expr) -> list[tuple[int, Expr]]:
    """(column, its first row of blocks) in a last round that is not whole: the columns are moved
    back to end with the matrix."""
    full = rows // ROUND_ROWS * ROUND_ROWS
    return [(c, minimum(full + CORES * c, rows - CORES)) for c in range(COLUMNS)]


def _weights(s: Sequence, w: str, n: Expr, k: Expr, block: int) -> None:
    """All of a matrix (n, k), in as few tasks for each channel as iterate over rounds, and one for
    a last part of a round.

    A channel serves two rows of cores. Their blocks alternate by halves: three dimensions, so that
    the rounds are the fourth. All channels get their tasks in turn, because a round needs all.
    """
    rows, halves = n // BLOCK_ROWS, k // BLOCK_COLUMNS * 2
    row = halves * (block // 2)  # bytes
    rounds = rows // ROUND_ROWS
    most = 1 + at_most(ROUND_ROWS * row, MAX_STEP) * (MAX_ITERATIONS - 1)  # rounds of a task
    pattern: list[tuple[Value, Value]] = [(halves, block // 2), (2, row)]
    with s.loop("part", ceil_div(rounds, most)) as part:
        first = part * most
        for half in range(2):
            for c in range(COLUMNS):
                s.transfer(
                    f"w{c}_{half}", w, offset=(first * ROUND_ROWS + CORES * c + 2 * half) * row,
                    run=block // 2,
                    outer=[(minimum(most, rounds - first), ROUND_ROWS * row), *pattern],
                )  # fmt: skip
    with s.when(rows % ROUND_ROWS):
        for half in range(2):
            for c, at in _last_round(rows):
                s.transfer(
                    f"w{c}_{half}", w, offset=(at + 2 * half) * row, run=block // 2, outer=pattern
                )


def _bias(s: Sequence, b: str, bias: Expr, width: Expr) -> None:
    """The bias of QKV as the rounds take it."""
    with s.when(bias):
        s.transfer("operands", b, offset=0, run=width // ROUND * (2 * ROUND))
        with s.when(width % ROUND):
            for _, first in _last_round(width // BLOCK_ROWS):
                s.transfer(
                    "operands", b, offset=first * (2 * BLOCK_ROWS), run=2 * CORES * BLOCK_ROWS
                )
