"""The designs in the simulator, from instruction words to outputs, compared with the operators'
references in float64: at shapes that do not divide evenly, on every width of a device."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from math import gcd
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judged import run, run_all

from ort_aie_ep.aie_kernels.build import make_design
from ort_aie_ep.aie_kernels.dequant import reference as dequant
from ort_aie_ep.aie_kernels.flow_kv import reference as flow_kv
from ort_aie_ep.aie_kernels.flow_qkv import design as flow_qkv_design
from ort_aie_ep.aie_kernels.flow_qkv import reference as flow_qkv
from ort_aie_ep.aie_kernels.fused_dqp import design as fused_dqp_design
from ort_aie_ep.aie_kernels.fused_dqp import reference as fused_dqp
from ort_aie_ep.aie_kernels.gemm import reference as gemm
from ort_aie_ep.aie_kernels.gemm import row_reference as rows
from ort_aie_ep.aie_kernels.reference import EPS, Context, Problem, bits
from ort_aie_ep.aie_kernels.short_gemm import reference as short_gemm
from ort_aie_ep.aie_kernels.vector_ops import reference as vectors
from ort_aie_ep.npu.simulator.session import Session
from ort_aie_ep.npu.terms.device import device
from ort_aie_ep.npu.terms.sequence import evaluate

Shape = dict[str, int]
Make = Callable[[Context, Shape], Problem]


@cache
def session_of(design: str, on: str) -> Session:
    """One array for all problems, which leave it as they found it."""
    name, _, columns = design.partition("/")
    if columns:
        return Session(fused_dqp_design.build(device(on), int(columns)))
    return Session(make_design(name, device(on)))


def problem(session: Session, make: Make, sequence: str, shape: Shape) -> Problem:
    return make(Context.of(session.design, sequence), shape)


def each(names: str, *values: tuple[int, ...], **more: int) -> list[Shape]:
    """Shapes of the values of `names`; the last ones may be left out where they are 0."""
    keys = names.split()
    return [dict.fromkeys(keys, 0) | dict(zip(keys, v, strict=False)) | more for v in values]


def cached(shape: Shape, keys: int, softcap: float = 0.0, spare: int = 0) -> Shape:
    """A shape of attention with a cache of whole chunks, and `spare` more of them."""
    chunk = 4096 // shape["head_dim"]
    return shape | {
        "capacity": (-(-keys // chunk) + spare) * chunk,
        "scale_bits": bits(shape["head_dim"] ** -0.5),
        "softcap_bits": bits(softcap) if softcap else 0,
    }


def tokens(*values: tuple[int, ...], softcap: float = 0.0, spare: int = 0) -> list[Shape]:
    """Of FlowKV."""
    names = "heads kv_heads head_dim context window"
    return [cached(s, s["context"], softcap, spare) for s in each(names, *values)]


def prompts(*values: tuple[int, ...], causal: int = 1, softcap: float = 0.0) -> list[Shape]:
    """Of FlowQKV."""
    shapes = each("heads kv_heads head_dim prompt past window", *values, causal=causal)
    return [cached(s, s["past"] + s["prompt"], softcap) for s in shapes]


def moved(*values: tuple[int, ...]) -> list[Shape]:
    return [
        s | {"copies": 256 // gcd(256, s["heads"] * s["dim"])}
        for s in each("heads dim x_stride y_stride", *values)
    ]


def rotated(*values: tuple[int, ...], more: int = 0) -> list[Shape]:
    """Of rows that are a part of a product with `more` columns."""
    names = "M heads head_dim rotary_dim interleaved norm"
    return [
        s | {"x_stride": s["heads"] * s["head_dim"] + more}
        for s in each(names, *values, eps_bits=bits(EPS))
    ]


def appended(*values: tuple[int, ...], position: int = 16, behind: int = 8) -> list[Shape]:
    return [
        {("kv_heads" if name == "heads" else name): value for name, value in shape.items()}
        | {"position": position, "capacity": position + shape["M"] + behind}
        for shape in rotated(*values, more=64)
    ]


HEADS = [
    # heads, head_dim, rotary_dim, interleaved, norm
    (8, 64, 64, 0, 1), (4, 128, 128, 0, 1), (3, 256, 256, 0, 1),
    (9, 64, 64, 1, 1),  # the last results are moved back
    (5, 128, 96, 0, 0),
    (6, 64, 32, 1, 0),  # two halves that overlap
    (3, 64, 64, 0, 1),  # four quarters
    (2, 64, 64, 0, 1),  # four times the same columns
    (1, 128, 128, 1, 1), (1, 256, 192, 0, 0), (2, 256, 256, 1, 0), (10, 128, 128, 0, 1),
    (4, 128, 0, 0, 0),  # a copy
    (4, 128, 0, 0, 1),  # only a norm
]  # fmt: skip
PROMPTS = [
    (4, 4, 64, 1), (4, 1, 64, 10), (4, 1, 64, 300), (8, 8, 64, 33, 37), (6, 6, 128, 50),
    (7, 1, 128, 45, 3), (20, 2, 128, 17, 100), (3, 3, 256, 33), (16, 1, 256, 20, 5),
    (20, 1, 256, 9), (9, 3, 64, 61, 64),
]  # fmt: skip
# Chunks of 64, 32 and 16 keys.
AROUND_A_CHUNK = [(4, 2, d, n) for d in (64, 128, 256) for n in (1, 15, 16, 17, 64, 200)]
# Heads are divided among columns, a group among the rows of one; groups that need several sweeps.
GROUPS = [(kv * g, kv, 128, 40) for kv, g in
          [(1, 1), (1, 3), (1, 8), (4, 2), (4, 5), (4, 7), (6, 1), (6, 4), (8, 3), (8, 6), (8, 8)]
          ] + [(33, 1, 64, 70), (40, 2, 128, 70), (9, 1, 256, 70), (50, 2, 256, 70)]  # fmt: skip
WINDOWS = [(4, 2, d, *w) for d in (64, 128, 256) for w in
           [(200, 1), (200, 64), (200, 77), (200, 199), (64, 64), (20, 50)]]  # fmt: skip
# Of 16 keys a chunk: one to eight chunks for up to four pairs, with keys masked at both ends of a
# window, and a group in two parts.
SHARED = [(*heads, 256, *w) for heads in ((1, 1), (8, 1), (9, 1), (8, 2), (6, 3)) for w in
          [(49,), (64,), (65,), (127,), (127, 50), (500, 64), (500, 70)]]  # fmt: skip
DQP, GEMM, GATE, NORM = "N K bias", "M K N", "M N kind", "M K n residual norm"
norms = partial(each, NORM, eps_bits=bits(EPS))


class Case(NamedTuple):
    """Shapes of a sequence, on each of the devices."""

    design: str
    devices: str
    sequence: str
    make: Make
    shapes: list[Shape]
    slow: bool = False


CASES = [
    *(Case(f"fused_dqp/{columns}", on, "matvec", fused_dqp.problem,
           each(DQP, (128, 256), (1024, 512), (32 * (4 * columns + 5), 768)))
      for on, columns in [("npu2", 4), ("npu2", 8), ("npu2_1col", 1), ("npu2_4col", 4),
                          ("npu1", 4), ("npu1_2col", 1)]),
    # Rows and biases that do not fill a round.
    *(Case(f"fused_dqp/{columns}", "npu2", "matvec", fused_dqp.problem,
           each(DQP, *((n, 256, 1) for n in (128, 160, 384, 480, 512, 544, 1056))))
      for columns in (1, 3, 4)),
    Case("fused_dqp", "npu2 npu1", "matvec_part", fused_dqp.part_problem,
         each("N K row_K bias", (32 * 21, 256, 768, 1), (32 * 21, 512, 768, 1))),
    # The fewest blocks; one more, so that the last object is moved back; not every column in use;
    # all columns, and several objects per core; a prime number.
    Case("dequant", "npu2", "dequant", dequant.problem,
         each("blocks", (4,), (5,), (18,), (64,), (37,))),
    Case("dequant", "npu1 npu1_1col npu2_2col", "dequant", dequant.problem,
         each("blocks", (5,), (33,))),
    Case("gemm", "npu2", "gemm", gemm.problem,
         # One megatile; all columns with the rows of two bands, all rows with one.
         each(GEMM, (512, 256, 512), (65, 256, 128), (130, 512, 288))),
    # Bands moved back in both directions, as on fewer columns below.
    Case("gemm", "npu2", "gemm", gemm.problem, each(GEMM, (520, 256, 544)), slow=True),
    Case("gemm", "npu1", "gemm", gemm.problem,  # short prompts need no zeros behind them
         each(GEMM, (256, 256, 544), (1, 256, 160), (7, 256, 160), (63, 256, 160))),
    Case("gemm", "npu1", "gemm", gemm.problem, each(GEMM, (300, 512, 352)), slow=True),
    Case("gemm", "npu2_4col", "gemm", gemm.problem, each(GEMM, (257, 256, 672))),
    # Two rows of cores share a channel of B, or all four.
    Case("gemm", "npu2_2col", "gemm", gemm.problem, each(GEMM, (130, 256, 736))),
    Case("gemm", "npu1_2col", "gemm", gemm.problem, each(GEMM, (64, 256, 256))),
    Case("gemm", "npu2_1col", "gemm", gemm.problem, each(GEMM, (70, 512, 544))),
    # More slabs of K than a descriptor iterates over, and more bands than queues hold.
    Case("gemm", "npu1_1col", "gemm", gemm.problem,
         each(GEMM, (129, 256, 544), (64, 66 * 128, 512), (9 * 64 + 5, 256, 544))),
    Case("gemm", "npu1_1col", "gemm", gemm.problem,  # more megatiles than it iterates over
         each(GEMM, (64, 256, 66 * 512 + 32)), slow=True),
    # Bands moved back in both directions; fewer rows than a band.
    Case("short_gemm", "npu2_2col", "project", short_gemm.problem,
         each(GEMM, (64, 512, 512), (65, 256, 544), (7, 256, 256))),
    Case("short_gemm", "npu2_4col", "project", short_gemm.problem, each(GEMM, (70, 256, 288))),
    Case("short_gemm", "npu1", "project", short_gemm.problem, each(GEMM, (64, 256, 1088))),
    Case("short_gemm", "npu1_1col", "project", short_gemm.problem, each(GEMM, (128, 512, 256))),
    # Both halves are the same columns, overlap, or are moved back.
    Case("gemm", "npu2", "gate", rows.gate,
         each(GATE, (64, 512, 0), (64, 512, 1), (7, 256, 0), (65, 300, 1), (100, 700, 0))),
    Case("gemm", "npu2", "gate", rows.gate, each(GATE, (520, 1152, 1)), slow=True),
    Case("gemm", "npu2_4col npu2_2col", "gate", rows.gate, each(GATE, (130, 544, 0)), slow=True),
    Case("gemm", "npu2_1col", "gate", rows.gate,  # more results than the queues of the shim hold
         each(GATE, (130, 544, 0), (130, 9 * 512 + 258, 1))),
    Case("gemm", "npu2", "add_norm", rows.add_norm,
         norms(*((*s, *both) for s in [(64, 512, 512), (100, 768, 576)]
                 for both in [(1, 1), (0, 1), (1, 0)]), (9, 256, 256, 1, 1))),
    Case("gemm", "npu2", "add_norm", rows.add_norm, norms((520, 1280, 1152, 1, 1)), slow=True),
    *(Case("gemm", "npu2", "add_norm", partial(rows.add_norm, size=size),
           norms((64, 256, 256, 0, 1))) for size in (2.0**-60, 2.0**40)),
    Case("gemm", "npu2_1col", "add_norm", rows.add_norm,
         norms((130, 512, 512, 1, 1), (64, 7168, 7000, 1, 1))),
    Case("gemm", "npu2_4col npu2_2col", "add_norm", rows.add_norm, norms((130, 512, 512, 1, 1)),
         slow=True),
    Case("gemm", "npu2", "rotate", rows.rotate, rotated(*((100, *h) for h in HEADS))),
    *(Case("gemm", "npu2", "rotate", rows.rotate, rotated((m, 10, 64, 64, 0, 0), more=more))
      for m, more in [(5, 2), (64, 768), (520, 130)]),
    Case("gemm", "npu2_1col", "rotate", rows.rotate, rotated((130, 5, 128, 128, 0, 1))),
    Case("gemm", "npu2_4col npu2_2col", "rotate", rows.rotate, rotated((130, 5, 128, 128, 0, 1)),
         slow=True),
    Case("gemm", "npu2", "append_rows", rows.append_rows, appended(*((72, *h) for h in HEADS[:9]))),
    Case("gemm", "npu2", "append_rows", rows.append_rows, appended(*((72, *h) for h in HEADS[9:])),
         slow=True),
    *(Case("gemm", "npu2", "append_rows", rows.append_rows,
           appended((m, 8, 64, 64, 0, 0), position=at, behind=behind))
      for m, at, behind in [(64, 0, 0), (520, 8, 64)]),
    Case("gemm", "npu2_1col", "append_rows", rows.append_rows,
         appended((136, 5, 128, 128, 0, 1), position=0)),
    Case("gemm", "npu2_4col npu2_2col", "append_rows", rows.append_rows,
         appended((136, 5, 128, 128, 0, 1), position=0), slow=True),
    Case("vector_ops", "npu2", "rms_norm", vectors.rms_norm_problem,
         each("n residual", *((n, r) for n in (128, 2048, 576, 200, 16384) for r in (0, 1)),
              eps_bits=bits(EPS))),
    Case("vector_ops", "npu2", "rope", vectors.rope_problem,
         each("heads head_dim rotary_dim interleaved norm",
              (4, 64, 64), (8, 128, 128, 0, 1), (1, 64, 64, 1, 1), (2, 64, 32, 1),
              (9, 64, 64, 0, 1), (1, 128, 64, 0, 1), (3, 256, 256, 0, 1), (3, 128, 96),
              eps_bits=bits(EPS))),
    Case("vector_ops", "npu2", "append", vectors.append_problem,
         each("kv_heads head_dim position capacity",
              (4, 64, 5, 64), (8, 64, 3, 64), (2, 128, 8, 32), (1, 256, 7, 32), (8, 256, 63, 64),
              (1, 64, 6, 64), (2, 64, 6, 64), (1, 128, 6, 64),  # smaller than an object
              (2, 256, 8199, 8208))),  # heads further apart than a stride spans: 4 MB
    Case("vector_ops", "npu2", "move_heads", vectors.move_heads_problem,
         moved((8, 96, 96, 128), (16, 96, 128, 96), (32, 80, 80, 128), (8, 32, 64, 66),
               (1, 256, 256, 256),
               # Not a whole number of objects, so several copies.
               (2, 32, 32, 64), (2, 32, 64, 32), (1, 8, 8, 64), (3, 80, 80, 128),
               (5, 96, 128, 96))),
    Case("vector_ops", "npu2", "glu", vectors.glu_problem,
         each("n kind", *((n, kind) for n in (256, 512, 300, 700, 1024) for kind in (0, 1)))),
    Case("flow_kv", "npu2", "attention", flow_kv.problem, tokens(*AROUND_A_CHUNK)),
    Case("flow_kv", "npu2", "attention", flow_kv.problem, tokens(*GROUPS)),
    Case("flow_kv", "npu2", "attention", flow_kv.problem, tokens(*WINDOWS)),
    Case("flow_kv", "npu2", "attention", flow_kv.problem, tokens(*SHARED)),
    Case("flow_kv", "npu2", "attention", flow_kv.problem, tokens((8, 2, 128, 100), softcap=5.0)),
    Case("flow_kv", "npu2_4col npu2_2col", "attention", flow_kv.problem,
         tokens((24, 6, 128, 70), (9, 1, 256, 33, 20))),
    Case("flow_qkv", "npu2", "attention", flow_qkv.problem, prompts(*PROMPTS)),
    Case("flow_qkv", "npu2", "attention", flow_qkv.problem,
         prompts(*((*(*PROMPTS[i], 0)[:5], w) for i in (2, 3, 6, 8) for w in (1, 16, 50, 200)))),
    # The last key is the last of a chunk, and queries for which there is only room are behind it.
    Case("flow_qkv", "npu2", "attention", flow_qkv.problem, prompts((1, 1, 64, 27, 5))),
    # The first key of a window is the last of a chunk; only the last query of a chunk has a key
    # before its window.
    Case("flow_qkv", "npu2", "attention", flow_qkv.problem,
         prompts((4, 4, 64, 10, 64, 34), *((4, 4, 256, 70, 0, w) for w in (7, 15, 31)),
                 *((1, 1, d, 40, 0, w) for d in (64, 256) for w in (7, 15, 31)))),
    Case("flow_qkv", "npu2", "attention", flow_qkv.problem,  # and one key short of a chunk
         prompts(*(PROMPTS[i] for i in (1, 5, 7, 10)), (4, 1, 64, 31), (4, 1, 128, 15, 16),
                 (4, 4, 256, 39), causal=0)),
    Case("flow_qkv", "npu2", "attention", flow_qkv.problem, prompts((8, 4, 128, 40), softcap=5.0)),
    Case("flow_qkv", "npu2_4col npu2_2col", "attention", flow_qkv.problem,
         prompts((4, 2, 128, 70, 20), (5, 5, 64, 90, 0, 30))),
    # 17 sweeps, and 9 with two rounds of heads: one start of a worker covers at most 16.
    Case("flow_qkv", "npu2", "attention", flow_qkv.problem,
         prompts((1, 1, 256, 16 * 128 + 40, 0, 8), (5, 5, 256, 9 * 128 - 50, 0, 8)), slow=True),
]  # fmt: skip


@pytest.mark.parametrize(
    ("on", "case"),
    [
        pytest.param(
            on, case, id=f"{case.design}-{on}-{case.sequence}",
            marks=[pytest.mark.in_turn] if case.slow else [],
        )
        for case in CASES
        for on in case.devices.split()
    ],
)  # fmt: skip
def test_results_are_those_of_the_reference(on: str, case: Case) -> None:
    session = session_of(case.design, on)
    for shape in case.shapes:
        run_all(session, problem(session, case.make, case.sequence, shape))


@settings(max_examples=20)
@given(
    kv_heads=st.integers(1, 9),
    group=st.integers(1, 12),
    head_dim=st.sampled_from([64, 128, 256]),
    context=st.integers(1, 150),
    window=st.integers(0, 160),
    spare=st.integers(0, 2),
)
def test_any_token_on_one_configuration(
    kv_heads: int, group: int, head_dim: int, context: int, window: int, spare: int
) -> None:
    values = (kv_heads * group, kv_heads, head_dim, context, window)
    session = session_of("flow_kv", "npu2")
    (shape,) = tokens(values, spare=spare)
    run(session, problem(session, flow_kv.problem, "attention", shape))


@settings(max_examples=8)
@given(
    kv_heads=st.integers(1, 6),
    group=st.integers(1, 6),
    head_dim=st.sampled_from([64, 128, 256]),
    prompt=st.integers(1, 60),
    past=st.integers(0, 60),
    window=st.integers(0, 70),
    causal=st.booleans(),
)
def test_any_prompt_on_one_configuration(
    kv_heads: int, group: int, head_dim: int, prompt: int, past: int, window: int, causal: bool
) -> None:
    values = (kv_heads * group, kv_heads, head_dim, prompt, past, window)
    session = session_of("flow_qkv", "npu2")
    (shape,) = prompts(values, causal=int(causal))
    run_all(session, problem(session, flow_qkv.problem, "attention", shape))


def test_queries_without_a_key_give_zeros() -> None:
    """Those behind the prompt, which would see keys that there are not."""
    session = session_of("flow_qkv", "npu2")
    (shape,) = prompts((1, 1, 256, 9, 0, 8))
    padded = problem(session, flow_qkv.problem, "attention", shape)
    run(session, padded)
    assert not padded.buffers["o"][16:].any()


def test_gemm_between_row_operators_finds_its_accumulator() -> None:
    session = session_of("gemm", "npu2")
    for make, sequence, (shape,) in (
        (rows.gate, "gate", each(GATE, (64, 256, 0))),
        (gemm.problem, "gemm", each(GEMM, (64, 256, 512))),
        (rows.gate, "gate", each(GATE, (64, 256, 1))),
    ):
        run(session, problem(session, make, sequence, shape))


# --- bytes ----------------------------------------------------------------------------------------
def keys_read(shape: Shape, queries: int) -> int:
    """The keys of whole chunks that any of `queries` at a time sees, summed up."""
    chunk, window = flow_qkv_design.CHUNK // shape["head_dim"], shape["window"]
    total, end = 0, shape["past"] + shape["prompt"]
    for first in range(shape["past"], end, queries):
        begin = max(0, first - window + 1) // chunk if window else 0
        total += -(-min(first + queries, end) // chunk) - begin
    return total * chunk


def qkv_read(shape: Shape, queries: int) -> int:
    heads, kv, dim = shape["heads"], shape["kv_heads"], shape["head_dim"]
    division = flow_qkv_design.divide(device("npu2"), heads, kv, dim, shape["prompt"])
    padded = evaluate(division.sweeps * division.super_chunk, {})
    parts = max(1, 4 // kv) if heads > kv else 1
    return kv * parts * keys_read(shape, queries) * dim * 4 + padded * heads * dim * 2


def pairs_read(kv_heads: int) -> int:
    """Each key is read once, by one of all pairs, and the queries by each of them."""
    return kv_heads * (2 * 1024 * 512 + 4 // gcd(4, kv_heads) * 4 * 512)


@pytest.mark.parametrize(
    ("design", "on", "sequence", "make", "shapes", "read", "written"),
    [
        ("fused_dqp/4", "npu2", "matvec", fused_dqp.problem, each(DQP, (2048, 2048)),
         2048 * 2048 * 5 // 8 + 2 * 2048, 2 * 2048),
        # 64 blocks, 2 objects of 4 blocks for each of 8 columns.
        ("dequant", "npu2", "dequant", dequant.problem, each("blocks", (64,)),
         64 * 5120, 64 * 16384),
        # Equation 5 of paper 2: megatiles of 256 x 512. A is read once per column of them, B once
        # per row.
        ("gemm", "npu1", "gemm", gemm.problem, each(GEMM, (512, 256, 1536)),
         2 * 256 * (3 * 512 + 2 * 1536), 512 * 1536 * 2),
        # Weights once for each band of rows, A once for each pass of 512 columns.
        ("short_gemm", "npu2_2col", "project", short_gemm.problem, each(GEMM, (128, 256, 1024)),
         2 * 1024 * 256 * 5 // 8 + 2 * 128 * 256 * 2, 128 * 1024 * 2),
        ("gemm", "npu2", "gate", rows.gate, each(GATE, (512, 2048, 0)),
         2 * 512 * 2048 * 2, 512 * 2048 * 2),
        # x and the residual, the sum twice, and the weights of 64 slabs for each column.
        ("gemm", "npu2", "add_norm", rows.add_norm, norms((512, 1024, 1024, 1, 1)),
         4 * 512 * 1024 * 2 + 8 * 64 * 512, 2 * 512 * 1024 * 2),
        ("flow_kv", "npu2", "attention", flow_kv.problem, tokens((32, 8, 64, 300)),
         8 * 2 * 5 * 8192 + 32 * 64 * 2, 32 * 64 * 2),
        *(("flow_kv", "npu2", "attention", flow_kv.problem, tokens((4 * kv, kv, 256, 1024)),
           pairs_read(kv), 4 * kv * 512) for kv in (1, 2, 3, 5, 6)),
        # Keys 900 to 999 are in the chunks of 64 from 896 on.
        ("flow_kv", "npu2", "attention", flow_kv.problem, tokens((4, 4, 64, 1000, 100)),
         4 * 2 * 2 * 8192 + 4 * 64 * 2, 4 * 64 * 2),
        # Gemma 3, a prompt behind a past; longer than the window, in two sweeps; a window shorter
        # than a chunk; all keys, 320 queries at a time.
        *(("flow_qkv", "npu2", "attention", flow_qkv.problem, [shape], qkv_read(shape, queries),
           None)
          for queries, (shape,) in [
              (64, prompts((4, 1, 256, 40, 1000, 512))), (96, prompts((4, 4, 256, 150, 30, 50))),
              (160, prompts((4, 4, 128, 300, 0, 20))), (64, prompts((2, 2, 256, 33, 1100, 1024))),
              (320, prompts((4, 4, 64, 600)))]),
    ],
)  # fmt: skip
def test_bytes_are_read_and_written_as_often_as_the_design_says(
    design: str, on: str, sequence: str, make: Make, shapes: list[Shape], read: int,
    written: int | None,
) -> None:  # fmt: skip
    session = session_of(design, on)
    result = run(session, problem(session, make, sequence, shapes[0]))
    assert result.read == read
    assert written in (None, result.written)


@pytest.mark.parametrize(
    ("values", "chunks"),
    [((4, 1, 256, 1103, 512), 33), ((8, 4, 256, 1103, 1024), 65), ((8, 2, 128, 1103, 1000), 32),
     ((2, 1, 64, 1103, 9), 1)],
)  # fmt: skip
def test_a_models_window_reads_nothing_else(values: tuple[int, ...], chunks: int) -> None:
    """The chunks that hold the newest keys of 1,100, whoever shares them: Gemma 3's windows of 512
    and 1,024, with keys of 16 a chunk, which begin within a chunk; one shorter than a chunk."""
    (shape,) = tokens(values)
    session = session_of("flow_kv", "npu2")
    result = run(session, problem(session, flow_kv.problem, "attention", shape))
    heads, kv_heads, head_dim, *_ = values
    queries = result.read - kv_heads * 2 * chunks * 8192
    assert queries % (heads * head_dim * 2) == 0  # once for each pair of a head
    assert 0 < queries <= 4 * heads * head_dim * 2
