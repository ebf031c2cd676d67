"""FlowQKV's kernels: a chunk's weights, masks and schedules. tests/designs has whole prompts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from l1_buffers import aligned, in_buffer

from ort_aie_ep.aie_kernels.flow_kv.reference import scores, to_cache_blocks
from ort_aie_ep.aie_kernels.flow_qkv import kernels as flow_qkv
from ort_aie_ep.aie_kernels.reference import BF16, U_BF16, U_LIMBS, Doubles, bf16, bfp16, bits
from ort_aie_ep.npu.kernels import Kernels

CHUNK = 2048
# The error of exp2_coarse (float_math.h): a cubic with bfloat16 steps.
EXPONENTIAL = 0.003


@dataclass(frozen=True)
class Case:
    """One KV head of a prompt."""

    head_dim: int
    group: int
    chunk_rows: int
    past: int
    prompt: int
    window: int = 0
    causal: bool = True
    softcap: float = 0.0
    chunks_per_sweep: int = 2

    @property
    def total(self) -> int:
        return self.past + self.prompt

    @property
    def keys(self) -> int:
        return CHUNK // self.head_dim

    @property
    def rows(self) -> int:
        return self.group * self.chunk_rows

    def attended(self) -> np.ndarray:
        """(prompt, total) bool."""
        query = self.past + np.arange(self.prompt)[:, None]
        key = np.arange(self.total)[None, :]
        seen = np.ones((self.prompt, self.total), bool)
        if self.causal:
            seen &= key <= query
        if self.window:
            seen &= key > query - self.window
        return seen


class Tiles:
    """A pair of cores with one chunk of queries."""

    def __init__(self, kernels: Kernels, case: Case, sweep: int, chunk: int) -> None:
        self.kernels, self.case = kernels, case
        self.plan = aligned(16, np.int32)
        kernels.call(
            flow_qkv.FLOW_QKV_SCHEDULE,
            *(self.plan, sweep, chunk, case.chunks_per_sweep, case.chunk_rows),
            *(case.past, case.total, case.window, int(case.causal), case.keys),
        )
        self.state = aligned(256, np.float32, np.nan)
        self.scratch = aligned(flow_qkv.QKV_SCRATCH, BF16, np.nan)
        self.qt = aligned(8192, BF16, np.nan)
        self.fcl = aligned(9216, np.uint8, 0xFF)
        self.y = aligned(8320, np.float32, np.nan)

    def begin(self, q: Doubles) -> None:
        """q (rows, head_dim)."""
        pieces = np.pad(q.reshape(-1), (0, -q.size % 512)).reshape(-1, 512)
        for index, piece in enumerate(pieces):
            self.kernels.call(
                flow_qkv.FLOW_QKV_LOAD_Q,
                *(in_buffer(piece, 512, BF16), self.scratch, self.qt),
                *(index, self.case.head_dim, self.case.rows),
            )
        self.kernels.call(flow_qkv.FLOW_QKV_BEGIN, self.state)
        self.kernels.call(flow_qkv.FLOW_QKV_VALUES_BEGIN, self.y)

    def score(self, k: Doubles, index: int, scale: float) -> None:
        case = self.case
        self.kernels.call(
            flow_qkv.FLOW_QKV_SCORES,
            *(self.scratch, self.qt, in_buffer(to_cache_blocks(k), CHUNK, BF16)),
            *(self.fcl, self.state),
            *(self.plan, case.head_dim, case.rows, case.chunk_rows, index, case.total),
            *(case.window, int(case.causal), bits(scale), bits(case.softcap)),
        )

    def value(self, v: Doubles) -> None:
        self.kernels.call(
            flow_qkv.FLOW_QKV_VALUES,
            *(self.fcl, in_buffer(to_cache_blocks(v), CHUNK, BF16), self.y),
            *(self.case.head_dim, self.case.rows),
        )

    def f(self) -> Doubles:
        """(rows, keys)"""
        rows, keys = self.case.rows, self.case.keys
        blocks = self.fcl[: 2 * rows * keys].view(BF16).astype(np.float64)
        return blocks.reshape(keys // 8, rows // 8, 8, 8).transpose(1, 2, 0, 3).reshape(rows, keys)

    def c(self) -> Doubles:
        return self.fcl[8192:8704].view(np.float32)[: self.case.rows].astype(np.float64)

    def l(self) -> Doubles:  # noqa: E743
        return self.fcl[8704:9216].view(np.float32)[: self.case.rows].astype(np.float64)

    def output(self) -> Doubles:
        pieces = []
        for index in range(-(-self.case.rows * self.case.head_dim // 512)):
            o = aligned(512, BF16)
            self.kernels.call(flow_qkv.FLOW_QKV_OUTPUT, self.y, o, index, self.case.head_dim)
            pieces.append(o.astype(np.float64))
        flat = np.concatenate(pieces)[: self.case.rows * self.case.head_dim]
        return flat.reshape(self.case.rows, self.case.head_dim)


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Kernels("aie2p")


def score_one_chunk(kernels: Kernels, case: Case, k: Doubles, q: Doubles, index: int = 0) -> Tiles:
    tiles = Tiles(kernels, case, 0, 0)
    tiles.begin(q)
    tiles.score(k, index, case.head_dim**-0.5)
    return tiles


def test_a_fully_masked_chunk_changes_nothing(kernels: Kernels) -> None:
    case = Case(head_dim=128, group=2, chunk_rows=8, past=0, prompt=32, chunks_per_sweep=4)
    rng = np.random.default_rng(1)
    q, k, v = bf16(rng.standard_normal((3, 16, 128)))
    tiles = score_one_chunk(kernels, case, k, q)
    tiles.value(v)
    state, y = tiles.state.copy(), tiles.y.copy()
    # Queries 0 to 7 do not see keys 16 to 31.
    tiles.score(k, 1, 1.0)
    assert (tiles.f() == 0).all()
    assert (tiles.c() == 1).all()
    np.testing.assert_array_equal(tiles.state[:16], state[:16])
    np.testing.assert_array_equal(tiles.state[128:144], state[128:144])
    tiles.value(v)
    np.testing.assert_array_equal(tiles.y[:2048], y[:2048])
    np.testing.assert_array_equal(tiles.y[8192:8208], y[8192:8208])


def test_rows_without_any_key_are_zero(kernels: Kernels) -> None:
    # A window of 4 in a sweep that starts before it: the first chunk is masked for late queries.
    case = Case(head_dim=128, group=1, chunk_rows=16, past=0, prompt=16, window=4)
    rng = np.random.default_rng(2)
    q, k, v = bf16(rng.standard_normal((3, 16, 128)))
    tiles = Tiles(kernels, case, 0, 0)
    tiles.plan[1] = 64  # keys 64 to 79: past every query
    tiles.begin(q)
    tiles.score(k, 0, 1.0)
    tiles.value(v)
    assert (tiles.f() == 0).all()
    assert (tiles.output() == 0).all()


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_probabilities_correction_and_sum_of_a_chunk(kernels: Kernels, head_dim: int) -> None:
    rows = 8192 // head_dim
    case = Case(head_dim, 1, rows, past=0, prompt=rows, causal=False, chunks_per_sweep=1)
    rng = np.random.default_rng(head_dim)
    q = bf16(rng.standard_normal((rows, head_dim)))
    k = bf16(rng.standard_normal((2 * case.keys, head_dim)))
    t = scores(bfp16(q, -1), bfp16(k, -1), head_dim**-0.5) * np.log2(np.e)
    tiles = Tiles(kernels, case, 0, 0)
    tiles.begin(q)
    m_left, l_left = np.full(rows, -np.inf), np.zeros(rows)
    for index, part in enumerate(np.split(np.arange(len(k)), 2)):
        tiles.score(k[part], index, head_dim**-0.5)
        m = tiles.state[:rows].astype(np.float64)
        # The rounded maximum of rounded scores, which fp32 may have moved by one rounding.
        assert (m == np.rint(m)).all()
        assert (np.abs(m - np.maximum(t[:, part].max(-1), m_left)) <= 0.5 + 2 * U_BF16 * 8).all()
        np.testing.assert_array_equal(tiles.c(), 2.0 ** (m_left - m))
        exact = 2.0 ** (t[:, part] - m[:, None])
        relative = U_BF16 + EXPONENTIAL + np.abs(t).max() * U_LIMBS
        assert (np.abs(tiles.f() - exact) <= relative * exact).all()
        # The sum of F as bfp16, in fp32.
        l_left = l_left * tiles.c() + bfp16(tiles.f(), -1).sum(-1)
        np.testing.assert_allclose(tiles.l(), l_left, rtol=case.keys * 2.0**-24)
        m_left = m


def test_output_of_partial_rows(kernels: Kernels) -> None:
    case = Case(head_dim=256, group=1, chunk_rows=24, past=0, prompt=24)
    rng = np.random.default_rng(4)
    tiles = Tiles(kernels, case, 0, 0)
    y = rng.standard_normal((24, 256))
    tiles.y[:6144] = y.reshape(3, 8, 32, 8).transpose(0, 2, 1, 3).reshape(-1)
    tiles.y[8192:8216] = sums = rng.uniform(0.5, 1000, 24)
    exact = y / sums[:, None]
    assert (np.abs(tiles.output() - exact) <= (U_BF16 + U_LIMBS) * np.abs(exact)).all()


@given(
    head_dim=st.sampled_from([64, 128, 256]),
    chunk_rows=st.sampled_from([4, 8, 24]),
    first_query=st.integers(0, 100),
    after=st.integers(1, 60),
    window=st.one_of(st.just(0), st.integers(1, 60)),
    causal=st.booleans(),
    first_chunk=st.integers(0, 8),
)
# Only the last query's window excludes a key, and only the first one.
@example(head_dim=256, chunk_rows=8, first_query=8, after=20, window=15, causal=True, first_chunk=0)
def test_masks_keep_the_keys_attended_to(
    head_dim: int,
    chunk_rows: int,
    first_query: int,
    after: int,
    window: int,
    causal: bool,
    first_chunk: int,
) -> None:
    heads = 2 if chunk_rows < 24 else 1
    case = Case(head_dim, heads, chunk_rows, first_query, after, window, causal)
    tiles = Tiles(Kernels("aie2p"), case, 0, 0)
    tiles.plan[1] = first_key = first_chunk * case.keys
    tiles.begin(np.ones((case.rows, head_dim)))
    tiles.score(np.ones((case.keys, head_dim)), 0, 1.0)
    query = first_query + np.arange(case.rows)[:, None] % chunk_rows
    key = first_key + np.arange(case.keys)[None, :]
    attended = key < case.total
    if causal:
        attended = attended & (key <= query)
    if window:
        attended = attended & (key > query - window)
    # Queries past the prompt may see anything: nothing reads them.
    real = query[:, 0] < case.total
    np.testing.assert_array_equal(
        (tiles.f() > 0)[real], np.broadcast_to(attended, tiles.f().shape)[real]
    )


@given(
    sweep=st.integers(0, 5),
    chunks_per_sweep=st.integers(1, 4),
    chunk_rows=st.sampled_from([4, 8, 16, 32]),
    past=st.integers(0, 100),
    prompt=st.integers(1, 200),
    window=st.one_of(st.just(0), st.integers(1, 80)),
    causal=st.booleans(),
    keys=st.sampled_from([8, 16, 32]),
)
# The first key of a window is the last of a chunk.
@example(
    sweep=0, chunks_per_sweep=1, chunk_rows=8, past=23, prompt=8, window=9, causal=True, keys=8
)
def test_the_schedule_covers_exactly_the_keys_needed(
    sweep: int,
    chunks_per_sweep: int,
    chunk_rows: int,
    past: int,
    prompt: int,
    window: int,
    causal: bool,
    keys: int,
) -> None:
    total = past + prompt
    case = Case(64, 1, chunk_rows, past, prompt, window, causal)
    queries = np.arange(prompt)
    per_sweep = chunks_per_sweep * chunk_rows
    mine = queries // per_sweep == sweep
    plans = []
    for chunk in range(chunks_per_sweep):
        plan = aligned(16, np.int32)
        Kernels("aie2p").call(
            flow_qkv.FLOW_QKV_SCHEDULE,
            *(plan, sweep, chunk, chunks_per_sweep, chunk_rows, past, total, window, int(causal)),
            keys,
        )
        assert plan[2] == past + (sweep * chunks_per_sweep + chunk) * chunk_rows
        plans.append((plan[0], plan[1]))
    assert len(set(plans)) == 1
    count, first = plans[0]
    if not mine.any():
        return
    needed = np.flatnonzero(case.attended()[mine].any(0))
    # The chunks of keys that some query attends to, and no others at either end.
    assert first == needed[0] // keys * keys
    assert count == needed[-1] // keys - first // keys + 1
