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
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.design import Design
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
    """`layer` and `head`, for a design that `fused_layer.build` has placed."""
    _Layer(design).add()
    _add_head(design)


class _Layer:
    """A decoder layer of one token: y = h + MLP(norm(h)), h = x + attention(norm(x)).

    x and y (hidden), the norms' weights (hidden), bias of QKV (heads + 2 kv_heads) head_dim, the
    norms' weights of query and key heads (head_dim) and table (256) are bf16. The weights of QKV,
    output, gate, up and down are Q4NX. k and v are FlowKV's cache with room for `capacity` keys;
    the token's own are written at position `context` - 1. `table` has rotary_dim / 2 cosines of the
    position, then as many sines.

    `head_norm`, `post_norm` (Gemma 3: norms of both outputs before their residual sums) and `bias`
    are 0 or 1; their buffers are empty without them. `gelu` 0 is SiLU, 1 GELU (tanh form).
    `window`, `scale_bits`, `softcap_bits` as in FlowKV; `eps_bits` is a float32's.
    """

    def __init__(self, design: Design) -> None:
        self._design = design
        s = self._s = design.sequence(
            "layer", "hidden", "heads", "kv_heads", "head_dim", "rotary_dim", "interleaved", "ffn",
            "gelu", "head_norm", "post_norm", "bias", "context", "capacity", "window", "scale_bits",
            "softcap_bits", "eps_bits",
        )  # fmt: skip
        (
            self.hidden, self.heads, self.kv_heads, self.head_dim, self.rotary_dim,
            self.interleaved, self.ffn, self.gelu, self.head_norm, self.post_norm, self.bias,
            self.context, self.capacity, self.window, self.scale, self.softcap, self.eps,
        ) = s.symbols()  # fmt: skip
        require_heads(s, self.heads, self.kv_heads, self.head_dim)
        self.q_dim, self.kv_dim = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.block = self._design.form.block_bytes
        self.width = self.q_dim + 2 * self.kv_dim
        self.row = 2 * self.head_dim  # bytes

    def add(self) -> None:
        """All statements, in their order."""
        self._arguments()
        self._rules()
        self._divide()
        self._begin()
        self._attend()
        self._end()

    def _arguments(self) -> None:
        """The buffers."""
        s = self._s
        self.x = s.argument("x", "in", 2 * self.hidden)
        self.input_norm = s.argument("input_norm", "in", 2 * self.hidden)
        self.b = s.argument("bias", "in", 2 * self.width * self.bias)
        self.q_norm = s.argument("q_norm", "in", self.row * self.head_norm)
        self.k_norm = s.argument("k_norm", "in", self.row * self.head_norm)
        self.table = s.argument("table", "in", 2 * OBJECT)
        self.attention_norm = s.argument("attention_norm", "in", 2 * self.hidden * self.post_norm)
        self.ffn_norm = s.argument("ffn_norm", "in", 2 * self.hidden)
        self.output_norm = s.argument("output_norm", "in", 2 * self.hidden * self.post_norm)
        self.w_qkv = s.argument("w_qkv", "in", _matrix_bytes(self.width, self.hidden, self.block))
        self.w_o = s.argument("w_o", "in", _matrix_bytes(self.hidden, self.q_dim, self.block))
        self.w_gate = s.argument("w_gate", "in", _matrix_bytes(self.ffn, self.hidden, self.block))
        self.w_up = s.argument("w_up", "in", _matrix_bytes(self.ffn, self.hidden, self.block))
        self.w_down = s.argument("w_down", "in", _matrix_bytes(self.hidden, self.ffn, self.block))
        self.k = s.argument("k", "inout", self.capacity * self.kv_dim * 2)
        self.v = s.argument("v", "inout", self.capacity * self.kv_dim * 2)
        self.y = s.argument("y", "out", 2 * self.hidden)

    def _rules(self) -> None:
        """What a shape must be."""
        s = self._s
        _require_hidden(s, self.hidden)
        require_cache(s, self.head_dim, self.capacity, self.context)
        s.require(less(0, self.context), "context={context}: there must be a key")
        s.require(at_most(0, self.window), "window={window} must be 0 (none) or positive")
        for parameter, value in (("heads", self.q_dim), ("kv_heads", self.kv_dim)):
            s.require(
                equal(value % OBJECT, 0),
                f"{parameter}={{{parameter}}} of head_dim={{head_dim}} must have a multiple of "
                f"{OBJECT} elements",
            )
        s.require(
            equal(self.ffn % OBJECT, 0) * at_most(ROUND, self.ffn) * at_most(self.ffn, ROWS),
            f"ffn={{ffn}} must be a multiple of {OBJECT}, {ROUND} to {ROWS}: the gate stays in L1",
        )
        s.require(
            at_most(self.hidden + self.ffn, MAX_X),
            f"hidden={{hidden}} and ffn={{ffn}} together are above {MAX_X}: the activations of up "
            "and of down stay in L1",
        )
        s.require(
            at_most(self.width, Q_WEIGHT * OBJECT),
            f"heads={{heads}}, kv_heads={{kv_heads}}: queries, keys and values have more than "
            f"{Q_WEIGHT * OBJECT} elements, which stay in L1",
        )
        s.require(
            at_most(0, self.rotary_dim)
            * at_most(self.rotary_dim, self.head_dim)
            * equal(self.rotary_dim % 32, 0),
            "rotary_dim={rotary_dim} must be a multiple of 32 up to head_dim={head_dim}",
        )
        for parameter, value in (
            ("interleaved", self.interleaved), ("gelu", self.gelu), ("head_norm", self.head_norm),
            ("post_norm", self.post_norm), ("bias", self.bias),
        ):  # fmt: skip
            flag = equal(value, 0) + equal(value, 1)
            s.require(flag, f"{parameter}={{{parameter}}} must be 0 or 1")

    def _divide(self) -> None:
        """Rounds of projections, and how pairs divide keys and queries, with what bounds them."""
        s = self._s
        # Where pairs would have no head of their own, they divide the queries of one.
        self.parts = s.let("parts", query_parts(self.heads, self.kv_heads))  # of a KV head
        self.units = s.let("units", self.kv_heads * self.parts)
        self.group = s.let("group", self.heads // self.units)
        self.sweeps = s.let("sweeps", ceil_div(self.units, PAIRS))
        self.size = s.let("size", self.group * self.head_dim)  # elements of a sweep's queries
        s.require(
            at_most(self.size, MAX_Q),
            f"heads={{heads}}, kv_heads={{kv_heads}}: a pair has {{size}} elements, and a sweep "
            f"holds {MAX_Q}",
        )
        s.require(
            at_most(self.size * self.sweeps, MAX_QUERIES),
            f"heads={{heads}} of head_dim={{head_dim}}: a pair holds {MAX_QUERIES} elements of "
            "queries",
        )
        self.pieces = s.let("pieces", self.hidden // OBJECT)
        most_q = MAX_STEP // (ROUND * self.block // BLOCK_ROWS) * BLOCK_COLUMNS
        s.require(
            at_most(self.q_dim, most_q),
            f"heads={{heads}} of head_dim={{head_dim}} have more than {most_q} elements: w_o would "
            "be more tasks than a channel takes before attention has its keys",
        )
        self.rounds = s.let("rounds", ceil_div(self.width, ROUND))
        s.require(
            at_most(self.bias * self.rounds * BLOCK_ROWS, MAX_BIAS),
            f"heads={{heads}}, kv_heads={{kv_heads}}: a bias of more than {MAX_BIAS * ROUND_ROWS}",
        )
        self.hidden_rounds = s.let("hidden_rounds", ceil_div(self.hidden, ROUND))
        self.up_rounds = s.let("up_rounds", ceil_div(self.ffn, ROUND))
        self.ups = s.let("ups", self.ffn // ROUND)  # that are whole
        self.paired = s.let("paired", maximum(0, self.up_rounds - LEAD))
        self.keys = s.let("keys", CHUNK // self.head_dim)
        # The first key seen.
        self.seen = s.let("seen", less(0, self.window) * maximum(0, self.context - self.window))
        self.base = s.let("base", self.seen // self.keys * self.keys)
        self.chunks = s.let("chunks", ceil_div(self.context - self.base, self.keys))
        self.tail = s.let("tail", less(1, self.chunks))

    def _begin(self) -> None:
        """Start every core."""
        s = self._s
        # What the first cores wait for is on its way while parameters are written.
        s.transfer("operands", self.x, offset=0, run=2 * self.hidden)
        s.transfer("operands", self.input_norm, offset=0, run=2 * self.hidden)
        s.start(
            "hub", self.pieces, self.hidden, self.eps, self.bias * self.rounds * 2, 0, self.rounds,
            self.q_dim // OBJECT, 1, self.post_norm, self.hidden_rounds, self.up_rounds, self.ups,
            self.up_rounds - self.ups,
        )  # fmt: skip
        _weights(s, self.w_qkv, self.width, self.hidden, self.block)
        self._start_projections()
        self._start_rotation()
        self._start_attention()

    def _start_projections(self) -> None:
        """The cores of projections."""
        s = self._s
        downs = self.ffn // OBJECT - 2 * self.paired
        for core in _projections(self._design):
            s.start(
                core, _three(self.pieces, self.rounds, self.bias),
                _three(self.q_dim // OBJECT, self.hidden_rounds, self.pieces),
                _three(2 * self.up_rounds - self.paired, self.paired, downs),
            )  # fmt: skip

    def _start_rotation(self) -> None:
        """The bias, the norms of heads, the table, and the rope core."""
        s = self._s
        _bias(s, self.b, self.bias, self.width)
        with s.when(self.head_norm):
            for weight in (self.q_norm, self.k_norm):
                s.transfer(
                    "table", weight, offset=0, run=self.row, outer=[(OBJECT // self.head_dim, 0)]
                )
        s.transfer("table", self.table, offset=0, run=2 * OBJECT)
        s.start(
            "rope", self.rounds, self.width, 1, self.head_norm, self.q_dim // OBJECT,
            self.q_dim // OBJECT, self.kv_dim // OBJECT,
            (self.q_dim + self.kv_dim) // OBJECT, self.head_norm * Q_WEIGHT,
            self.head_norm * K_WEIGHT, self.head_dim, self.rotary_dim, self.interleaved, self.eps,
            2 * self.hidden_rounds + 2 * self.up_rounds,
        )  # fmt: skip

    def _start_attention(self) -> None:
        """The pairs, and the core that puts their outputs in order and gates."""
        s = self._s
        for p in range(PAIRS):
            s.start(
                f"score{p}", self.q_dim // OBJECT, self.sweeps, self.size, self.units, self.group,
                self.head_dim, self.seen - self.base, minimum(self.keys, self.context - self.base),
                self.chunks - 1 - self.tail, self.keys, self.tail,
                self.context - self.base - (self.chunks - 1) * self.keys, self.scale, self.softcap,
            )  # fmt: skip
            s.start(
                f"value{p}", self.sweeps, self.size // PIECE, self.group, self.head_dim, self.chunks
            )
        s.start(
            "gate", self.rounds, self.sweeps * self.size // PIECE, self.size // PIECE, self.units,
            self.q_dim // OBJECT, self.hidden_rounds, self.up_rounds, self.ffn, self.ups,
            self.up_rounds - self.ups, self.gelu, self.hidden_rounds,
        )  # fmt: skip

    def _attend(self) -> None:
        """Weights up to the gate, the new keys and values, then the sweeps."""
        s = self._s
        # Every core has been started: a full queue may wait for projections from here on.
        _weights(s, self.w_o, self.hidden, self.q_dim, self.block)
        _weights(s, self.w_gate, self.ffn, self.hidden, self.block)
        for new in (self.k, self.v):
            s.transfer(
                "kv", new,
                offset=(self.context - 1) // 8 * (8 * self.row) + (self.context - 1) % 8 * 16,
                run=16,
                outer=[(self.kv_heads, self.capacity * self.row), (self.head_dim // 8, 128)],
            )  # fmt: skip
        s.arrive("kv")
        with s.loop("sweep", self.sweeps) as sweep:
            for p in range(PAIRS):
                head = minimum(sweep * PAIRS + p, self.units - 1) // self.parts
                for fifo, rows in ((f"k{p}", self.k), (f"v{p}", self.v)):
                    first = (head * self.capacity + self.base) * self.row
                    s.transfer(fifo, rows, offset=first, run=self.chunks * self.keys * self.row)

    def _end(self) -> None:
        """The norms, and the weights from up on."""
        s = self._s
        with s.when(self.post_norm):
            s.transfer("operands", self.attention_norm, offset=0, run=2 * self.hidden)
        s.transfer("operands", self.ffn_norm, offset=0, run=2 * self.hidden)
        _weights(s, self.w_up, self.ffn, self.hidden, self.block)
        _weights(s, self.w_down, self.hidden, self.ffn, self.block)
        with s.when(self.post_norm):
            s.transfer("operands", self.output_norm, offset=0, run=2 * self.hidden)
        s.transfer("out", self.y, offset=0, run=2 * self.hidden)
        blocks = (
            (self.rounds + 2 * self.up_rounds) * self.pieces
            + self.hidden_rounds * ((self.q_dim + self.ffn) // BLOCK_COLUMNS)
        )  # fmt: skip
        device = self._design.device
        swept = self.sweeps * self.chunks * chunk_cycles(device, self.group, self.head_dim)
        s.work(blocks * round(DQP_BLOCK.cycles(device.architecture, (0,))) + swept)
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
