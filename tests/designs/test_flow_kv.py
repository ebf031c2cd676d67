"""FlowKV in the simulator, from instruction words to outputs, compared with attention in
float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judged import run

from ort_aie_ep.aie_kernels.flow_kv import design as flow_kv
from ort_aie_ep.aie_kernels.flow_kv import reference
from ort_aie_ep.aie_kernels.reference import Context, bits
from ort_aie_ep.npu.checks.check import check
from ort_aie_ep.npu.simulator.machine import Result
from ort_aie_ep.npu.simulator.session import Session
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.device import device


@dataclass(frozen=True)
class Shape:
    """A call of `attention`; `spare` keys of capacity beyond what the context needs."""

    heads: int
    kv_heads: int
    head_dim: int
    context: int
    window: int = 0
    softcap: float = 0.0
    spare: int = 0

    @property
    def capacity(self) -> int:
        keys = flow_kv.CHUNK // self.head_dim
        return (-(-self.context // keys) + self.spare) * keys

    @property
    def parameters(self) -> dict[str, int]:
        return {
            "heads": self.heads, "kv_heads": self.kv_heads, "head_dim": self.head_dim,
            "context": self.context, "capacity": self.capacity, "window": self.window,
            "scale_bits": bits(self.head_dim**-0.5),
            "softcap_bits": bits(self.softcap) if self.softcap else 0,
        }  # fmt: skip


def attend(session: Session, shape: Shape) -> Result:
    """Runs `shape` on random data, and compares the output with the reference."""
    context = Context.of(session.design, "attention")
    return run(session, reference.problem(context, shape.parameters))


@pytest.fixture(scope="module")
def design() -> Design:
    return flow_kv.build(device("npu2"))


@pytest.fixture(scope="module")
def session(design: Design) -> Session:
    return Session(design)


@pytest.mark.parametrize("name", ["npu2", "npu2_4col", "npu2_2col"])
def test_design_passes_every_check(name: str) -> None:
    check(flow_kv.build(device(name)))


@pytest.mark.parametrize("context", [1, 15, 16, 17, 64, 200])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_contexts_around_a_chunk(session: Session, head_dim: int, context: int) -> None:
    attend(session, Shape(4, 2, head_dim, context))


# Heads are divided among columns, a group among the rows of one.
@pytest.mark.parametrize(
    ("kv_heads", "group"),
    [(1, 1), (1, 3), (1, 8), (4, 2), (4, 5), (4, 7), (6, 1), (6, 4), (8, 3), (8, 6), (8, 8)],
)
def test_kv_heads_and_groups(session: Session, kv_heads: int, group: int) -> None:
    attend(session, Shape(kv_heads * group, kv_heads, 128, 40))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(33, 1, 64), (40, 2, 128), (9, 1, 256), (50, 2, 256)]
)
def test_groups_that_need_several_sweeps(
    session: Session, heads: int, kv_heads: int, head_dim: int
) -> None:
    attend(session, Shape(heads, kv_heads, head_dim, 70))


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize(
    ("context", "window"), [(200, 1), (200, 64), (200, 77), (200, 199), (64, 64), (20, 50)]
)
def test_windows_begin_anywhere(session: Session, head_dim: int, context: int, window: int) -> None:
    attend(session, Shape(4, 2, head_dim, context, window))


def test_scores_can_be_capped(session: Session) -> None:
    attend(session, Shape(8, 2, 128, 100, softcap=5.0))


@settings(max_examples=20)
@given(
    kv_heads=st.integers(1, 9),
    group=st.integers(1, 12),
    head_dim=st.sampled_from([64, 128, 256]),
    context=st.integers(1, 150),
    window=st.integers(0, 160),
    spare=st.integers(0, 2),
)
def test_any_shape_on_one_configuration(
    session: Session, kv_heads: int, group: int, head_dim: int, context: int, window: int,
    spare: int,
) -> None:  # fmt: skip
    attend(session, Shape(kv_heads * group, kv_heads, head_dim, context, window, spare=spare))


@pytest.mark.parametrize("name", ["npu2_4col", "npu2_2col"])
def test_narrower_partitions(name: str) -> None:
    session = Session(flow_kv.build(device(name)))
    attend(session, Shape(24, 6, 128, 70))
    attend(session, Shape(9, 1, 256, 33, window=20))


def test_each_key_is_read_once(session: Session) -> None:
    shape = Shape(32, 8, 64, 300)
    result = attend(session, shape)
    chunks = -(-shape.context // 64)
    assert result.read == 8 * 2 * chunks * 8192 + 32 * 64 * 2
    assert result.written == 32 * 64 * 2


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 5, 6])
def test_pairs_share_the_keys_of_too_few_heads(session: Session, kv_heads: int) -> None:
    """Each key is read once, by one of all pairs, and the queries by each of them."""
    result = attend(session, Shape(4 * kv_heads, kv_heads, 256, 1024))
    sharing = 4 // math.gcd(4, kv_heads)
    keys, queries = 2 * 1024 * 512, 4 * 512  # bytes of a head
    assert result.read == kv_heads * (keys + sharing * queries)
    assert result.written == kv_heads * queries


@pytest.mark.parametrize(
    ("context", "window"), [(49, 0), (64, 0), (65, 0), (127, 0), (127, 50), (500, 64), (500, 70)]
)
@pytest.mark.parametrize("heads", [(1, 1), (8, 1), (9, 1), (8, 2), (6, 3)], ids=str)
def test_shared_keys_that_do_not_divide_evenly(
    session: Session, heads: tuple[int, int], context: int, window: int
) -> None:
    """Of 16 keys a chunk: one to eight chunks for up to four pairs, with keys masked at both ends
    of a window, and a group in two parts."""
    attend(session, Shape(*heads, 256, context, window))


def test_a_window_reads_its_own_chunks_only(session: Session) -> None:
    result = attend(session, Shape(4, 4, 64, 1000, window=100))
    # Keys 900 to 999 are in the chunks of 64 from 896 on.
    assert result.read == 4 * 2 * 2 * 8192 + 4 * 64 * 2


@pytest.mark.parametrize(
    ("heads", "window", "chunks"),
    [((4, 1, 256), 512, 33), ((8, 4, 256), 1024, 65), ((8, 2, 128), 1000, 32), ((2, 1, 64), 9, 1)],
    ids=str,
)
def test_a_model_s_window_reads_nothing_else(
    session: Session, heads: tuple[int, int, int], window: int, chunks: int
) -> None:
    """The chunks that hold the newest keys of 1,100, whoever shares them: Gemma 3's windows of 512
    and 1,024, with keys of 16 a chunk, which begin within a chunk; one shorter than a chunk."""
    shape = Shape(*heads, 1103, window)
    result = attend(session, shape)
    queries = result.read - shape.kv_heads * 2 * chunks * 8192
    assert queries % (shape.heads * shape.head_dim * 2) == 0  # once for each pair of a head
    assert 0 < queries <= 4 * shape.heads * shape.head_dim * 2
