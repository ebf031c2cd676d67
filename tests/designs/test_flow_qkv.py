"""FlowQKV in the simulator, from instruction words to outputs, compared with attention in
float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judged import run_all

from ort_aie_ep.aie_kernels.flow_qkv import design as flow_qkv
from ort_aie_ep.aie_kernels.flow_qkv import reference
from ort_aie_ep.aie_kernels.reference import Context, bits
from ort_aie_ep.npu.simulator.machine import Result
from ort_aie_ep.npu.simulator.session import Session
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.device import Device, device


@dataclass(frozen=True)
class Shape:
    """A call of `attention`."""

    heads: int
    kv_heads: int
    head_dim: int
    prompt: int
    past: int = 0
    window: int = 0
    causal: bool = True
    softcap: float = 0.0

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    @property
    def total(self) -> int:
        return self.past + self.prompt

    @property
    def capacity(self) -> int:
        keys = 4096 // self.head_dim
        return -(-self.total // keys) * keys

    @property
    def parameters(self) -> dict[str, int]:
        return {
            "heads": self.heads, "kv_heads": self.kv_heads, "head_dim": self.head_dim,
            "prompt": self.prompt, "past": self.past, "capacity": self.capacity,
            "window": self.window, "causal": int(self.causal),
            "scale_bits": bits(self.head_dim**-0.5),
            "softcap_bits": bits(self.softcap) if self.softcap else 0,
        }  # fmt: skip

    def padded(self, on: Device) -> int:
        return flow_qkv.padded_prompt(on, self.heads, self.kv_heads, self.head_dim, self.prompt)


def attend(session: Session, shape: Shape) -> list[Result]:
    """Runs `shape` on random data, and compares the output with the reference."""
    context = Context.of(session.design, "attention")
    return run_all(session, reference.problem(context, shape.parameters))


@pytest.fixture(scope="module")
def design() -> Design:
    return flow_qkv.build(device("npu2"))


@pytest.fixture(scope="module")
def session(design: Design) -> Session:
    return Session(design)


CAUSAL = [
    Shape(4, 4, 64, 1),
    Shape(4, 1, 64, 10),
    Shape(4, 1, 64, 300),
    Shape(8, 8, 64, 33, past=37),
    Shape(6, 6, 128, 50),
    Shape(7, 1, 128, 45, past=3),
    Shape(20, 2, 128, 17, past=100),
    Shape(3, 3, 256, 33),
    Shape(16, 1, 256, 20, past=5),
    Shape(20, 1, 256, 9),
    Shape(9, 3, 64, 61, past=64),
]


@pytest.mark.parametrize("shape", CAUSAL, ids=str)
def test_causal(session: Session, shape: Shape) -> None:
    attend(session, shape)


@pytest.mark.parametrize("window", [1, 16, 50, 200])
@pytest.mark.parametrize("shape", [CAUSAL[2], CAUSAL[3], CAUSAL[6], CAUSAL[8]], ids=str)
def test_window(session: Session, shape: Shape, window: int) -> None:
    attend(session, replace(shape, window=window))


@pytest.mark.parametrize("shape", [CAUSAL[1], CAUSAL[5], CAUSAL[7], CAUSAL[10]], ids=str)
def test_non_causal(session: Session, shape: Shape) -> None:
    attend(session, replace(shape, causal=False))


def test_scores_can_be_capped(session: Session) -> None:
    attend(session, Shape(8, 4, 128, 40, softcap=5.0))


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
def test_any_shape_on_one_configuration(
    session: Session, kv_heads: int, group: int, head_dim: int, prompt: int, past: int,
    window: int, causal: bool,
) -> None:  # fmt: skip
    attend(session, Shape(kv_heads * group, kv_heads, head_dim, prompt, past, window, causal))


@pytest.mark.parametrize("name", ["npu2_4col", "npu2_2col"])
def test_narrower_partitions(name: str) -> None:
    session = Session(flow_qkv.build(device(name)))
    attend(session, Shape(4, 2, 128, 70, past=20))
    attend(session, Shape(5, 5, 64, 90, window=30))


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(
            Shape(1, 1, 256, 16 * 128 + 40, window=8), id="sweeps", marks=pytest.mark.in_turn
        ),
        pytest.param(
            Shape(5, 5, 256, 9 * 128 - 50, window=8), id="heads", marks=pytest.mark.in_turn
        ),
    ],
)
def test_workers_are_started_again(session: Session, shape: Shape) -> None:
    """17 sweeps, and 9 with two rounds of heads: one start covers at most 16."""
    attend(session, shape)


def test_kv_heads_are_read_once_a_sweep(session: Session) -> None:
    """Here a super-chunk has 512 queries, and a chunk of keys serves all of them."""
    shape = Shape(4, 4, 64, 600)
    (result,) = attend(session, shape)
    tokens = shape.padded(session.design.device)
    first, second = tokens // 2, shape.total
    assert tokens == 640
    queries = tokens * 4 * 64 * 2
    chunks = -(-first // 32) + -(-second // 32)
    assert result.read == 4 * 2 * chunks * 4096 + queries
    assert result.written == queries


def test_a_window_is_read_in_place_of_all_keys(session: Session) -> None:
    everything, window = Shape(4, 4, 64, 32, past=480), Shape(4, 4, 64, 32, past=480, window=32)
    (all_keys,), (few,) = attend(session, everything), attend(session, window)
    # Keys 449 to 511 are in the two chunks of 32 from 448 on.
    assert all_keys.read - few.read == 4 * 2 * (16 - 2) * 4096


def keys_read(shape: Shape, tokens: int) -> int:
    """The keys of whole chunks that any of `tokens` queries at a time sees, summed up."""
    chunk = flow_qkv.CHUNK // shape.head_dim
    total = 0
    for first in range(shape.past, shape.total, tokens):
        begin = max(0, first - shape.window + 1) // chunk if shape.window else 0
        total += -(-min(first + tokens, shape.total) // chunk) - begin
    return total * chunk


@pytest.mark.parametrize(
    ("shape", "tokens"),
    [
        (Shape(4, 1, 256, 40, past=1000, window=512), 64),  # Gemma 3, a prompt behind a past
        (Shape(4, 4, 256, 150, past=30, window=50), 96),  # longer than the window, in two sweeps
        (Shape(4, 4, 128, 300, window=20), 160),  # a window shorter than a chunk
        (Shape(2, 2, 256, 33, past=1100, window=1024), 64),
    ],
    ids=str,
)
def test_a_prompt_reads_only_the_keys_of_its_windows(
    session: Session, shape: Shape, tokens: int
) -> None:
    (result,) = attend(session, shape)
    queries = shape.padded(session.design.device) * shape.heads * shape.head_dim * 2
    parts = max(1, 4 // shape.kv_heads) if shape.group > 1 else 1
    keys = keys_read(shape, tokens) * shape.head_dim * 2 * 2
    assert result.read == shape.kv_heads * parts * keys + queries


@pytest.mark.parametrize(
    ("shape", "tokens"),
    [
        ((32, 8, 64, 1), 32),
        ((32, 8, 64, 128), 128),
        ((32, 8, 64, 129), 192),
        ((4, 1, 256, 1000), 1024),
    ],
)
def test_room_for_rounded_prompts(shape: tuple[int, int, int, int], tokens: int) -> None:
    assert flow_qkv.padded_prompt(device("npu2"), *shape) == tokens
