"""A whole decoder layer as one task graph: vectors stay on chip (paper 1, section IV-A).

README.md has the ring through which vectors go, and its rules.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ort_aie_ep.aie_kernels.cycles import form_scalars
from ort_aie_ep.aie_kernels.flow_kv.design import (
    CHUNK,
    FCL_BYTES,
    PIECE,
    SCORE_STACK,
    STACK,
    add_values,
    give_output,
    score_sweep,
)
from ort_aie_ep.aie_kernels.flow_kv.kernels import (
    FLOW_KV_BEGIN,
    FLOW_KV_OUTPUT,
    FLOW_KV_SCORES,
    FLOW_KV_VALUES,
    FLOW_KV_VALUES_BEGIN,
)
from ort_aie_ep.aie_kernels.fused_dqp.design import BLOCK_ROWS
from ort_aie_ep.aie_kernels.fused_dqp.design import STACK as DQP_STACK
from ort_aie_ep.aie_kernels.fused_dqp.kernels import DQP_ZERO, dqp_block
from ort_aie_ep.aie_kernels.fused_layer import sequences as layer_sequences
from ort_aie_ep.aie_kernels.fused_layer.kernels import (
    LAYER_ADD,
    LAYER_COPY,
    LAYER_FINISH,
    LAYER_GATE,
    LAYER_GATHER,
    LAYER_HALF,
    LAYER_LOAD,
    LAYER_LOAD_BIAS,
    LAYER_LOAD_X,
    LAYER_NORM,
    LAYER_NORM_OUTPUT,
    LAYER_PASS,
    LAYER_PICK,
    LAYER_PLACE,
    LAYER_ROTATE,
    LAYER_SCALE,
    LAYER_SELECT,
    MAX_BIAS,
    MAX_Q,
    MAX_QUERIES,
    MAX_X,
    OBJECT,
    ROUND,
    ROWS,
    SECOND,
)
from ort_aie_ep.aie_kernels.fused_layer.sequences import COLUMNS, CORES, PAIRS
from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.npu.terms.design import (
    Acquire,
    Body,
    Buffer,
    Core,
    Design,
    Parameters,
    Release,
    Steps,
    call,
)  # fmt: skip
from ort_aie_ep.npu.terms.device import Device
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.npu.terms.kernel import Array
from ort_aie_ep.npu.terms.packet_ids import give_packet_ids

PAIR_COLUMN = 4
HUB_COLUMN, ROPE_COLUMN = 6, 7


def build(device: Device, form: BlockForm = SHIPPING) -> Design:
    """The overlay, for weights of a form of Q4NX.

    Raises DesignError for a device with fewer than eight columns.
    """
    if device.columns < 8:
        raise DesignError(
            f"fused_layer on {device.name}: {device.columns} columns; a layer takes eight"
        )
    design = Design("fused_layer", device, form)
    _place_projections(design)
    _place_pairs(design)
    _place_vectors(design)
    give_packet_ids(design)
    layer_sequences.add_sequences(design)
    return design


# --- placement ------------------------------------------------------------------------------------
def _place_projections(design: Design) -> None:
    """Columns 0 to 3, and the ways of x and y."""
    block = design.form.block_bytes
    moved = block // 2  # bytes of a block that move together
    x_in = design.fifo(
        "x_in", "bf16", OBJECT, design.core(HUB_COLUMN, 1), design.mem(HUB_COLUMN, 8)
    )
    x = design.fifo(
        "x", "bf16", OBJECT, design.mem(HUB_COLUMN, 8),
        [design.core(c, r) for c in range(COLUMNS) for r in range(CORES)],
    )  # fmt: skip
    design.forward(x_in, x)
    columns = []
    for c in range(COLUMNS):
        outputs = []
        for half in range(2):
            both = design.fifo(
                f"w{c}_{half}", "u8", 2 * moved, design.shim(c, half), design.mem(c, 3)
            )
            own = [
                design.fifo(
                    f"w{c}_{half}_{r}", "u8", moved, design.mem(c, 3),
                    design.core(c, 2 * half + r, object=Array("u8", block)),
                )
                for r in range(2)
            ]  # fmt: skip
            design.split(both, own)
            for r in range(2):
                row = 2 * half + r
                y = design.fifo(
                    f"y{c}_{row}", "bf16", BLOCK_ROWS, design.core(c, row), design.mem(c)
                )
                outputs.append(y)
                design.worker(
                    f"dqp{c}_{row}", design.core(c, row),
                    _project(CORES * c + row, design.form),
                    inputs={"x": x, "w": own[r]}, outputs={"y": y},
                    buffers=[
                        Buffer("x", Array("bf16", MAX_X)),
                        Buffer("sums", Array("bf16", MAX_X // 16)),
                        Buffer("acc", Array("f32", BLOCK_ROWS)),
                        Buffer("bias", Array("bf16", MAX_BIAS)),
                    ],
                    parameters=["qkv", "o_and_h", "up_and_down"],
                    kernels=[
                        LAYER_LOAD_X, LAYER_LOAD_BIAS, DQP_ZERO, dqp_block(design.form, MAX_X),
                        LAYER_FINISH,
                    ],
                    stack=DQP_STACK,
                )  # fmt: skip
        column = design.fifo(
            f"y{c}", "bf16", CORES * BLOCK_ROWS, design.mem(c), design.mem(PAIR_COLUMN)
        )
        design.join(outputs, column)
        columns.append(column)
    y = design.fifo(
        "y", "bf16", ROUND, design.mem(PAIR_COLUMN),
        [design.core(HUB_COLUMN, 1), design.core(ROPE_COLUMN, 0), design.core(HUB_COLUMN, 0)],
    )  # fmt: skip
    design.join(columns, y)


def _place_pairs(design: Design) -> None:
    """Columns 4 and 5, and the ways of q and o."""
    scores = [design.core(PAIR_COLUMN, p) for p in range(PAIRS)]
    q = design.fifo("q", "bf16", OBJECT, design.core(ROPE_COLUMN, 0), scores)
    outputs = []
    for p in range(PAIRS):
        value = design.core(PAIR_COLUMN + 1, p)
        k = design.fifo(f"k{p}", "bf16", CHUNK, design.shim(PAIR_COLUMN + p, 0), scores[p])
        v = design.fifo(f"v{p}", "bf16", CHUNK, design.shim(PAIR_COLUMN + p, 1), value)
        # The score core goes on with the next sweep while the value core sends its output.
        ends = replace(scores[p], depth=4), replace(value, depth=4)
        fcl = design.fifo(f"fcl{p}", "u8", FCL_BYTES, *ends, shared=True)
        o = design.fifo(f"o{p}", "bf16", PIECE, value, design.mem(PAIR_COLUMN + 1))
        outputs.append(o)
        design.worker(
            f"score{p}", scores[p], _score(p),
            inputs={"q": q, "k": k}, outputs={"fcl": fcl},
            buffers=[
                Buffer("queries", Array("bf16", MAX_QUERIES)),
                Buffer("q", Array("bf16", MAX_Q)),
                Buffer("state", Array("f32", 64)),
            ],
            parameters=[
                "objects", "sweeps", "size", "units", "group", "head_dim", "skip", "first",
                "full", "keys", "tail", "last", "scale", "softcap",
            ],
            kernels=[LAYER_PICK, LAYER_SELECT, FLOW_KV_BEGIN, FLOW_KV_SCORES], stack=SCORE_STACK,
        )  # fmt: skip
        design.worker(
            f"value{p}", value, _value,
            inputs={"fcl": fcl, "v": v}, outputs={"o": o},
            buffers=[Buffer("y", Array("f32", MAX_Q + 32))],
            parameters=["sweeps", "pieces", "group", "head_dim", "chunks"],
            kernels=[FLOW_KV_VALUES_BEGIN, FLOW_KV_VALUES, FLOW_KV_OUTPUT], stack=STACK,
        )  # fmt: skip
    o = design.fifo(
        "o", "bf16", PAIRS * PIECE, design.mem(PAIR_COLUMN + 1), design.core(HUB_COLUMN, 0)
    )
    design.join(outputs, o)


def _place_vectors(design: Design) -> None:
    """Hub, rope and gate in columns 6 and 7."""
    hub, gate = design.core(HUB_COLUMN, 1), design.core(HUB_COLUMN, 0)
    rope = design.core(ROPE_COLUMN, 0)
    fifos = design.fifos
    rows = Buffer("rows", Array("bf16", ROWS))

    operands = design.fifo("operands", "bf16", OBJECT, design.shim(HUB_COLUMN, 0), hub)
    gated = design.fifo("gated", "bf16", OBJECT, gate, hub, shared=True)
    out = design.fifo("out", "bf16", OBJECT, hub, design.shim(HUB_COLUMN, 0))
    design.worker(
        "hub", hub, _hub,
        inputs={"y": fifos["y"], "operands": operands, "gated": gated},
        outputs={"x": fifos["x_in"], "out": out},
        buffers=[rows, Buffer("state", Array("f32", 16))],
        parameters=[
            "pieces", "hidden", "eps", "bias_pieces", "relayed", "dropped", "attended", "layers",
            "post", "rounds", "gates", "ups", "up_tail",
        ],
        kernels=[
            LAYER_LOAD, LAYER_SCALE, LAYER_NORM, LAYER_PASS, LAYER_HALF, LAYER_PLACE,
            LAYER_NORM_OUTPUT, LAYER_ADD, LAYER_COPY,
        ], stack=STACK,
    )  # fmt: skip

    table = design.fifo("table", "bf16", OBJECT, design.shim(ROPE_COLUMN, 0), rope)
    kv = design.fifo("kv", "bf16", OBJECT, rope, design.shim(ROPE_COLUMN, 0))
    design.worker(
        "rope", rope, _rope,
        inputs={"y": fifos["y"], "table": table}, outputs={"q": fifos["q"], "kv": kv},
        buffers=[rows, Buffer("between", Array("bf16", OBJECT))],
        parameters=[
            "rounds", "width", "layers", "normed", "q_pieces", "k_first", "kv_pieces", "v_first",
            "q_weight", "k_weight", "head_dim", "rotary_dim", "interleaved", "eps", "dropped",
        ],
        kernels=[LAYER_PLACE, LAYER_LOAD, LAYER_ROTATE], stack=STACK,
    )  # fmt: skip

    design.worker(
        "gate", gate, _gate,
        inputs={"y": fifos["y"], "o": fifos["o"]}, outputs={"gated": gated},
        buffers=[rows],
        parameters=[
            "dropped", "objects", "unit_pieces", "units", "attended", "o_rounds", "rounds",
            "width", "ups", "up_tail", "gelu", "d_rounds",
        ],
        kernels=[LAYER_GATHER, LAYER_COPY, LAYER_PLACE, LAYER_GATE], stack=STACK,
    )  # fmt: skip


# --- bodies ---------------------------------------------------------------------------------------
def _project(tile: int, form: BlockForm) -> Body:
    """The projections of a layer, one after another: QKV (or the vocabulary), output, gate, up,
    down."""
    multiply, scalars = dqp_block(form, MAX_X), form_scalars(form)

    def body(core: Core) -> Steps:
        # Three in a word: 16 cores wait for each other until the last of them is started.
        qkv, o_and_h, up_and_down = yield Parameters()
        inputs, rounds, bias = _three(qkv)
        o_inputs, hidden_rounds, h_inputs = _three(o_and_h)
        h_rounds, paired, rest = _three(up_and_down)
        x, sums = core.buffer("x"), core.buffer("sums")
        acc, biases = core.buffer("acc"), core.buffer("bias")

        def load(at: Any) -> Steps:
            piece = yield Acquire("x")
            yield call(LAYER_LOAD_X, piece, x, sums, at)
            yield Release("x")

        def one_round(index: Any, blocks: Any, first: Any, finish: Any) -> Steps:
            """32 outputs of activations that begin with piece `first`."""
            yield call(DQP_ZERO, acc)
            for k in core.loop(blocks):
                w = yield Acquire("w")
                yield call(multiply, w, x, sums, acc, k + first, *scalars)
                yield Release("w")
            y = yield Acquire("y")
            yield call(LAYER_FINISH, acc, biases, y, index, finish)
            yield Release("y")

        for i in core.loop(inputs):
            yield from load(i)
        for _ in core.loop(bias):
            for i in core.loop(rounds + rounds):
                piece = yield Acquire("x")
                yield call(LAYER_LOAD_BIAS, piece, biases, i, tile, CORES * COLUMNS)
                yield Release("x")
        for r in core.loop(rounds):
            yield from one_round(r, inputs, 0, bias)
        for i in core.loop(o_inputs):
            yield from load(i)
        for _ in core.loop(hidden_rounds):
            yield from one_round(0, o_inputs, 0, 0)
        for i in core.loop(h_inputs):
            yield from load(i)
        for _ in core.loop(h_rounds):
            yield from one_round(0, h_inputs, 0, 0)
        # The rounds of up, behind which the activations of down arrive, two pieces for a round.
        for r in core.loop(paired):
            yield from one_round(0, h_inputs, 0, 0)
            yield from load(r + r + h_inputs)
            yield from load(r + r + h_inputs + 1)
        for i in core.loop(rest):
            yield from load(i + h_inputs + paired + paired)
        for _ in core.loop(hidden_rounds):
            yield from one_round(0, paired + paired + rest, h_inputs, 0)

    return body


def _three(word: Any) -> tuple[Any, Any, Any]:
    """Three parameters of 10 bits in one."""
    return word & 0x3FF, word >> 10 & 0x3FF, word >> 20


def _drop(core: Core, rounds: Any) -> Steps:
    """Let rounds pass that other cores take."""
    for _ in core.loop(rounds):
        yield Acquire("y")
        yield Release("y")


def _place(core: Core, rounds: Any, width: Any, first: int) -> Steps:
    """Keep the rounds of a projection with `width` outputs."""
    for i in core.loop(rounds):
        y = yield Acquire("y")
        yield call(LAYER_PLACE, y, core.buffer("rows"), i, width, first)
        yield Release("y")


def _hub(core: Core) -> Steps:
    (
        pieces, hidden, eps, bias_pieces, relayed, dropped, attended, layers, post, rounds, gates,
        ups, up_tail,
    ) = yield Parameters()  # fmt: skip
    rows, state = core.buffer("rows"), core.buffer("state")

    def norm() -> Steps:
        """Send the norm of the residual stream as x."""
        yield call(LAYER_SCALE, rows, state, 0, hidden, eps)
        for i in core.loop(pieces):
            weight = yield Acquire("operands")
            x = yield Acquire("x")
            yield call(LAYER_NORM, rows, weight, x, state, i)
            yield Release("operands")
            yield Release("x")

    def forward(port: str) -> Steps:
        """Send an object as x."""
        piece = yield Acquire(port)
        x = yield Acquire("x")
        yield call(LAYER_PASS, piece, x)
        yield Release(port)
        yield Release("x")

    def add() -> Steps:
        """Take the output of a projection, norm it if the model does, and add it."""
        yield from _place(core, rounds, hidden, SECOND)
        for _ in core.loop(post):
            yield call(LAYER_SCALE, rows, state, SECOND, hidden, eps)
            for i in core.loop(pieces):
                weight = yield Acquire("operands")
                yield call(LAYER_NORM_OUTPUT, rows, weight, state, i)
                yield Release("operands")
        yield call(LAYER_ADD, rows, hidden)

    for i in core.loop(pieces):
        piece = yield Acquire("operands")
        yield call(LAYER_LOAD, piece, rows, i)
        yield Release("operands")
    yield from norm()
    for _ in core.loop(bias_pieces):
        yield from forward("operands")
    for _ in core.loop(relayed):
        y = yield Acquire("y")
        for half in range(2):
            out = yield Acquire("out")
            yield call(LAYER_HALF, y, out, half)
            yield Release("out")
        yield Release("y")
    yield from _drop(core, dropped)
    for _ in core.loop(layers):
        for _ in core.loop(attended):
            yield from forward("gated")
        yield from add()
        yield from norm()
        yield from _drop(core, gates)
        for _ in core.loop(ups):
            yield from _drop(core, 1)
            yield from forward("gated")
            yield from forward("gated")
        for _ in core.loop(up_tail):
            yield from _drop(core, 1)
            yield from forward("gated")
        yield from add()
        for i in core.loop(pieces):
            out = yield Acquire("out")
            yield call(LAYER_COPY, rows, out, i)
            yield Release("out")


def _rope(core: Core) -> Steps:
    (
        rounds, width, layers, normed, q_pieces, k_first, kv_pieces, v_first, q_weight, k_weight,
        head_dim, rotary_dim, interleaved, eps, dropped,
    ) = yield Parameters()  # fmt: skip
    rows, between = core.buffer("rows"), core.buffer("between")
    yield from _place(core, rounds, width, 0)
    for _ in core.loop(layers):
        for _ in core.loop(normed):
            for weight in (q_weight, k_weight):
                piece = yield Acquire("table")
                yield call(LAYER_LOAD, piece, rows, weight)
                yield Release("table")
        table = yield Acquire("table")
        for port, count, first, weight, rotated in (
            # Keys and values first: attention waits until they are in memory.
            ("kv", kv_pieces, k_first, k_weight, rotary_dim),
            ("kv", kv_pieces, v_first, 0, 0),
            ("q", q_pieces, 0, q_weight, rotary_dim),
        ):
            for i in core.loop(count):
                out = yield Acquire(port)
                yield call(
                    LAYER_ROTATE, rows, table, between, out, i + first, weight, head_dim, rotated,
                    interleaved, eps,
                )  # fmt: skip
                yield Release(port)
        yield Release("table")
    yield from _drop(core, dropped)


def _gate(core: Core) -> Steps:
    (
        dropped, objects, unit_pieces, units, attended, o_rounds, rounds, width, ups, up_tail,
        gelu, d_rounds,
    ) = yield Parameters()  # fmt: skip
    rows = core.buffer("rows")
    yield from _drop(core, dropped)
    for i in core.loop(objects):
        o = yield Acquire("o")
        yield call(LAYER_GATHER, o, rows, i, unit_pieces, units)
        yield Release("o")
    for i in core.loop(attended):
        out = yield Acquire("gated")
        yield call(LAYER_COPY, rows, out, i)
        yield Release("gated")
    yield from _drop(core, o_rounds)
    yield from _place(core, rounds, width, 0)
    for i in core.loop(ups):
        up = yield Acquire("y")
        for half in range(2):
            out = yield Acquire("gated")
            yield call(LAYER_GATE, rows, up, out, i, half, gelu)
            yield Release("gated")
        yield Release("y")
    for _ in core.loop(up_tail):
        up = yield Acquire("y")
        out = yield Acquire("gated")
        yield call(LAYER_GATE, rows, up, out, ups, 0, gelu)
        yield Release("gated")
        yield Release("y")
    yield from _drop(core, d_rounds)


def _score(pair: int) -> Body:
    def body(core: Core) -> Steps:
        objects, sweeps, size, units, *sweep = yield Parameters()
        queries, q = core.buffer("queries"), core.buffer("q")
        for i in core.loop(objects):
            piece = yield Acquire("q")
            yield call(LAYER_PICK, piece, queries, i, pair, sweeps, size, units)
            yield Release("q")
        for s in core.loop(sweeps):
            yield call(LAYER_SELECT, queries, q, s, size)
            yield from score_sweep(core, *sweep)

    return body


def _value(core: Core) -> Steps:
    sweeps, pieces, group, head_dim, chunks = yield Parameters()
    y = core.buffer("y")
    for _ in core.loop(sweeps):
        yield call(FLOW_KV_VALUES_BEGIN, y)
        yield from add_values(core, FLOW_KV_VALUES, chunks, y, group, head_dim)
        yield from give_output(core, FLOW_KV_OUTPUT, pieces, y, head_dim)
