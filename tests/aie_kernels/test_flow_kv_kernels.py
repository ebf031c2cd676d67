"""FlowKV's kernels: weights of a chunk, masks, rescaling. tests/designs has whole tokens."""

from __future__ import annotations

import numpy as np
import pytest
from l1_buffers import aligned, in_buffer

from ort_aie_ep.aie_kernels.flow_kv import kernels as flow_kv
from ort_aie_ep.aie_kernels.flow_kv.reference import scores, to_cache_blocks
from ort_aie_ep.aie_kernels.reference import BF16, U_BF16, U_LIMBS, Doubles, bf16, bits
from ort_aie_ep.npu.kernels import Kernels

CHUNK = 4096


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Kernels("aie2p")


class Score:
    """The score core: its buffers and its calls."""

    def __init__(self, kernels: Kernels, q: Doubles) -> None:
        self.kernels = kernels
        self.group, self.head_dim = q.shape
        self.keys = CHUNK // self.head_dim
        self.q = aligned(2048, BF16, np.nan)
        for index, piece in enumerate(q.reshape(-1, 64)):
            kernels.call(flow_kv.FLOW_KV_LOAD_Q, in_buffer(piece, 64, BF16), self.q, index)
        self.state = aligned(64, np.float32, np.nan)
        self.fcl = aligned(4352, np.uint8, 0xFF)
        kernels.call(flow_kv.FLOW_KV_BEGIN, self.state)

    def call(
        self, chunk: Doubles, valid: int, scale: float, softcap: float = 0.0, begin: int = 0
    ) -> None:
        k = in_buffer(to_cache_blocks(chunk), CHUNK, BF16)
        self.kernels.call(
            flow_kv.FLOW_KV_SCORES,
            *(self.q, k, self.fcl, self.state),
            *(self.group, self.head_dim, begin, valid, bits(scale), bits(softcap)),
        )

    @property
    def f(self) -> Doubles:
        """(heads, keys), stored as [pair of heads][keys/16][2][16]."""
        pairs = (self.group + 1) // 2
        stored = self.fcl[: 4 * pairs * self.keys].view(BF16).astype(np.float64)
        by_head = stored.reshape(pairs, self.keys // 16, 2, 16).swapaxes(1, 2)
        return by_head.reshape(2 * pairs, self.keys)[: self.group]

    @property
    def c(self) -> Doubles:
        return self.fcl[4096:4224].view(np.float32)[: self.group].astype(np.float64)

    @property
    def l(self) -> Doubles:  # noqa: E743
        return self.fcl[4224:4352].view(np.float32)[: self.group].astype(np.float64)


class Value:
    """The value core."""

    def __init__(self, kernels: Kernels, group: int, head_dim: int) -> None:
        self.kernels, self.group, self.head_dim = kernels, group, head_dim
        self.y = aligned(2080, np.float32, np.nan)
        kernels.call(flow_kv.FLOW_KV_VALUES_BEGIN, self.y)

    def call(self, fcl: np.ndarray, chunk: Doubles) -> None:
        v = in_buffer(to_cache_blocks(chunk), CHUNK, BF16)
        self.kernels.call(flow_kv.FLOW_KV_VALUES, fcl, v, self.y, self.group, self.head_dim)

    def output(self) -> Doubles:
        pieces = []
        for index in range(self.group * self.head_dim // 64):
            o = aligned(64, BF16)
            self.kernels.call(flow_kv.FLOW_KV_OUTPUT, self.y, o, index, self.head_dim)
            pieces.append(o.astype(np.float64))
        return np.concatenate(pieces).reshape(self.group, self.head_dim)


def random_case(
    seed: int, group: int, head_dim: int, keys: int, spread: float = 1.0
) -> tuple[Doubles, Doubles, Doubles]:
    rng = np.random.default_rng(seed)
    q = bf16(rng.standard_normal((group, head_dim)) * spread)
    return (
        q,
        bf16(rng.standard_normal((keys, head_dim))),
        bf16(rng.standard_normal((keys, head_dim))),
    )


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("cap", [0.0, 3.0, 50.0])
def test_probabilities_correction_and_sum_of_a_chunk(
    kernels: Kernels, head_dim: int, cap: float
) -> None:
    q, k, _ = random_case(11, 4, head_dim, 2 * CHUNK // head_dim, spread=3.0)
    scale = head_dim**-0.5
    t = scores(q, k, scale, cap) * np.log2(np.e)
    score = Score(kernels, q)
    m_left = np.full(4, -np.inf)
    l_left = np.zeros(4)
    for part in np.split(np.arange(len(k)), 2):
        score.call(k[part], len(part), scale, cap)
        m = np.maximum(np.rint(bf16(t[:, part]).max(-1)), m_left)
        np.testing.assert_array_equal(score.state[:4], m)
        np.testing.assert_array_equal(score.c, 2.0 ** (m_left - m))
        # One rounding, the exponential's 2^-15, the score's limbs and sums, and tanh's 2^-13.
        exact = 2.0 ** (t[:, part] - m[:, None])
        score_error = np.abs(t[:, part]) * (U_LIMBS + (2.0**-13 if cap else 0)) + 1e-5
        assert (np.abs(score.f - exact) <= (U_BF16 + 2.0**-15 + score_error) * exact).all()
        # l adds the rounded F, in fp32.
        l_left = l_left * score.c + score.f.sum(-1)
        np.testing.assert_allclose(score.l, l_left, rtol=score.keys * 2.0**-24)
        m_left = m
    np.testing.assert_array_equal(score.state[32:36], score.l.astype(np.float32))


@pytest.mark.parametrize("valid", [1, 7, 15, 16, 17, 31, 33, 63, 64])
def test_keys_past_the_valid_ones_weigh_nothing(kernels: Kernels, valid: int) -> None:
    q, k, _ = random_case(13, 2, 64, 64)
    k[valid:] = 3.0e30
    score = Score(kernels, q)
    score.call(k, valid, 0.125)
    assert (score.f[:, valid:] == 0).all()
    assert (score.f[:, :valid] > 0).all()


@pytest.mark.parametrize("begin", [0, 1, 15, 16, 40, 46])
def test_keys_in_front_of_a_window_weigh_nothing(kernels: Kernels, begin: int) -> None:
    q, k, _ = random_case(14, 2, 64, 64)
    k[:begin] = 3.0e30
    score = Score(kernels, q)
    score.call(k, 47, 0.125, begin=begin)
    assert (score.f[:, :begin] == 0).all()
    assert (score.f[:, begin:47] > 0).all()
    assert (score.f[:, 47:] == 0).all()


def test_rescaling_is_exact(kernels: Kernels) -> None:
    rng = np.random.default_rng(15)
    value = Value(kernels, 4, 64)
    value.y[:256] = rng.standard_normal(256).astype(np.float32)
    before = value.y[:256].astype(np.float64).reshape(4, 64)
    fcl = aligned(4352, np.uint8)
    fcl[4096:4112].view(np.float32)[:] = c = np.array([1.0, 0.5, 2.0**-20, 0.0], np.float32)
    fcl[4224:4352].view(np.float32)[:] = np.arange(32)
    value.call(fcl, np.zeros((64, 64)))
    np.testing.assert_array_equal(value.y[:256].reshape(4, 64), before * c[:, None])
    np.testing.assert_array_equal(value.y[2048:], np.arange(32))


def test_output_divides_by_the_sum(kernels: Kernels) -> None:
    rng = np.random.default_rng(17)
    value = Value(kernels, 8, 128)
    y = rng.standard_normal((8, 128))
    value.y[:1024] = y.reshape(-1)
    value.y[2048:2056] = sums = rng.uniform(0.5, 1000, 8)
    exact = y / sums[:, None]
    assert (np.abs(value.output() - exact) <= (U_BF16 + U_LIMBS) * np.abs(exact)).all()


@pytest.mark.parametrize(("own", "other"), [(0, 0), (3, 0), (-40, 7), (0, -200), (128, 126)])
def test_parts_of_the_keys_are_merged_with_one_rounding(
    kernels: Kernels, own: int, other: int
) -> None:
    """Y and l of both parts at the larger of their maxima, which a power of two makes exact."""
    rng = np.random.default_rng(7)
    group, head_dim = 3, 64
    y, part = aligned(2080, np.float32, 0.0), aligned(2112, np.float32, 0.0)
    maxima, other_maxima = (aligned(32, np.float32, m) for m in (own, other))
    mine, theirs = (rng.standard_normal(2080).astype(np.float32) for _ in range(2))
    y[:] = theirs
    kernels.call(flow_kv.FLOW_KV_PASS, y, other_maxima, part)
    y[:] = mine
    kernels.call(flow_kv.FLOW_KV_MERGE, y, maxima, part, group, head_dim)
    # A float32 below 2^-126 of the larger maximum is 0.
    powers = [2.0**d if (d := m - max(own, other)) >= -126 else 0.0 for m in (own, other)]
    exact = powers[0] * mine.astype(np.float64) + powers[1] * theirs.astype(np.float64)
    used = [*range(group * head_dim), *range(2048, 2048 + group)]
    assert (np.abs(y - exact)[used] <= 2.0**-24 * np.abs(exact)[used]).all()
    assert (maxima == max(own, other)).all()
