"""The row operators of prompts on GEMM's cores, simulated, compared with numpy."""

from __future__ import annotations

from functools import cache

import pytest
from judged import run

from ort_aie_ep.aie_kernels.gemm import design as gemm
from ort_aie_ep.aie_kernels.gemm import reference as products
from ort_aie_ep.aie_kernels.gemm import row_reference as reference
from ort_aie_ep.aie_kernels.reference import EPS, Context, bits
from ort_aie_ep.npu.simulator.machine import Result
from ort_aie_ep.npu.simulator.session import Session
from ort_aie_ep.npu.terms.device import device

DEVICES = ["npu2", "npu2_4col", "npu2_2col", "npu2_1col"]
# Those between need more rounds than all columns and fewer than one.
FEWER = [*(pytest.param(n, marks=pytest.mark.in_turn) for n in DEVICES[1:3]), DEVICES[3]]


@cache
def session_of(name: str) -> Session:
    return Session(gemm.build(device(name)))


@pytest.fixture(scope="module")
def session() -> Session:
    return session_of("npu2")


# --- gate -----------------------------------------------------------------------------------------
def gate(session: Session, m: int, n: int, kind: int) -> None:
    shape = {"M": m, "N": n, "kind": kind}
    run(session, reference.gate(Context.of(session.design, "gate"), shape))


@pytest.mark.parametrize(
    ("m", "n", "kind"),
    [
        (64, 512, 0),
        (64, 512, 1),
        (7, 256, 0),  # both halves are the same columns
        (65, 300, 1),  # they overlap
        (100, 700, 0),  # bands of rows and columns moved back
        pytest.param(520, 1152, 1, marks=pytest.mark.in_turn),  # two rounds, as on one column
    ],
)
def test_gate(session: Session, m: int, n: int, kind: int) -> None:
    gate(session, m, n, kind)


@pytest.mark.parametrize("name", FEWER)
def test_gate_on_fewer_columns(name: str) -> None:
    gate(session_of(name), 130, 544, 0)


def test_more_results_than_the_queues_of_the_shim_hold() -> None:
    gate(session_of("npu2_1col"), 130, 9 * 512 + 258, 1)


def test_a_long_gate_is_divided_into_runs(session: Session) -> None:
    n = 32768  # 64 results per round, 256 per run
    shape = {"M": 5 * 512, "N": n, "kind": 0}
    assert len(session.build("gate", shape, ["gate", "up", "y"])) == 2


def test_gate_reads_each_operand_once(session: Session) -> None:
    m, n = 512, 2048
    shape = {"M": m, "N": n, "kind": 0}
    result = run(session, reference.gate(Context.of(session.design, "gate"), shape))
    assert result.read == 2 * m * n * 2
    assert result.written == m * n * 2


def test_gemm_between_row_operators_finds_its_accumulator(session: Session) -> None:
    gate(session, 64, 256, 0)
    shape = {"M": 64, "K": 256, "N": 512}
    run(session, products.problem(Context.of(session.design, "gemm"), shape))
    gate(session, 64, 256, 1)


# --- add_norm -------------------------------------------------------------------------------------
def add_norm(
    session: Session, m: int, k: int, n: int, residual: int = 1, norm: int = 1, size: float = 1.0
) -> Result:
    shape = {"M": m, "K": k, "n": n, "residual": residual, "norm": norm, "eps_bits": bits(EPS)}
    context = Context.of(session.design, "add_norm")
    return run(session, reference.add_norm(context, shape, size))


@pytest.mark.parametrize(
    ("m", "k", "n", "residual", "norm"),
    [
        *((64, 512, 512, *both) for both in [(1, 1), (0, 1), (1, 0)]),
        (9, 256, 256, 1, 1),  # both halves of a result are the same columns
        *((100, 768, 576, *both) for both in [(1, 1), (0, 1), (1, 0)]),  # padded, moved back
        pytest.param(520, 1280, 1152, 1, 1, marks=pytest.mark.in_turn),  # two rounds
    ],
)
def test_add_norm(session: Session, m: int, k: int, n: int, residual: int, norm: int) -> None:
    add_norm(session, m, k, n, residual, norm)


def test_add_norm_of_the_longest_rows() -> None:
    add_norm(session_of("npu2_1col"), 64, 7168, 7000)


@pytest.mark.parametrize("name", FEWER)
def test_add_norm_on_fewer_columns(name: str) -> None:
    add_norm(session_of(name), 130, 512, 512)


@pytest.mark.parametrize("size", [2.0**-60, 2.0**40])
def test_norms_of_tiny_and_huge_rows(session: Session, size: float) -> None:
    add_norm(session, 64, 256, 256, residual=0, size=size)


def test_add_norm_reads_the_sum_instead_of_adding_twice(session: Session) -> None:
    m, k = 512, 1024
    result = add_norm(session, m, k, k)
    # x and the residual, the sum twice, and the weights of 64 slabs for each column.
    assert result.read == 4 * m * k * 2 + 8 * 64 * 512
    assert result.written == 2 * m * k * 2


# --- rotate ---------------------------------------------------------------------------------------
def rotation(
    m: int, heads: int, head_dim: int, rotary_dim: int, interleaved: int, norm: int, stride: int
) -> dict[str, int]:
    """The parameters of `rotate`."""
    return {
        "M": m, "heads": heads, "head_dim": head_dim, "rotary_dim": rotary_dim,
        "interleaved": interleaved, "norm": norm, "eps_bits": bits(EPS), "x_stride": stride,
    }  # fmt: skip


HEADS = [
    # heads, head_dim, rotary_dim, interleaved, norm
    (8, 64, 64, 0, 1),
    (4, 128, 128, 0, 1),
    (3, 256, 256, 0, 1),
    (9, 64, 64, 1, 1),  # the last results are moved back
    (5, 128, 96, 0, 0),
    (6, 64, 32, 1, 0),  # two halves that overlap
    (3, 64, 64, 0, 1),  # four quarters
    (2, 64, 64, 0, 1),  # four times the same columns
    (1, 128, 128, 1, 1),
    (1, 256, 192, 0, 0),
    (2, 256, 256, 1, 0),
    (4, 128, 0, 0, 0),  # a copy
    (4, 128, 0, 0, 1),  # only a norm
]


def rotate(session: Session, m: int, heads: tuple[int, int, int, int, int], more: int) -> None:
    shape = rotation(m, *heads, heads[0] * heads[1] + more)
    run(session, reference.rotate(Context.of(session.design, "rotate"), shape))


@pytest.mark.parametrize("heads", HEADS)
def test_rotate(session: Session, heads: tuple[int, int, int, int, int]) -> None:
    rotate(session, 100, heads, 0)


@pytest.mark.parametrize(("m", "more"), [(5, 2), (64, 768), (520, 130)])
def test_rotate_rows_that_are_a_part_of_a_product(session: Session, m: int, more: int) -> None:
    rotate(session, m, (10, 64, 64, 0, 0), more)


@pytest.mark.parametrize("name", FEWER)
def test_rotate_on_fewer_columns(name: str) -> None:
    rotate(session_of(name), 130, (5, 128, 128, 0, 1), 0)


# --- append_rows ----------------------------------------------------------------------------------
def append_rows(
    session: Session, m: int, heads: tuple[int, int, int, int, int], position: int, behind: int
) -> None:
    shape = rotation(m, *heads, heads[0] * heads[1] + 64)
    shape["kv_heads"] = shape.pop("heads")
    shape |= {"position": position, "capacity": position + m + behind}
    run(session, reference.append_rows(Context.of(session.design, "append_rows"), shape))


# The rotation is that of `rotate`; how many heads a result has decides where it goes.
WRITTEN = [(9, 64, 64, 1, 1), (3, 64, 64, 0, 1), (2, 64, 64, 0, 1), (1, 128, 128, 1, 1),
           (2, 256, 256, 1, 0), (10, 128, 128, 0, 1), (24, 64, 0, 0, 0)]  # fmt: skip


@pytest.mark.parametrize(
    "heads",
    [*WRITTEN, *(pytest.param(h, marks=pytest.mark.in_turn) for h in HEADS if h not in WRITTEN)],
)
def test_append_rows(session: Session, heads: tuple[int, int, int, int, int]) -> None:
    append_rows(session, 72, heads, 16, 8)


@pytest.mark.parametrize(("m", "position", "behind"), [(64, 0, 0), (520, 8, 64)])
def test_append_rows_of_several_bands(session: Session, m: int, position: int, behind: int) -> None:
    append_rows(session, m, (8, 64, 64, 0, 0), position, behind)


@pytest.mark.parametrize("name", FEWER)
def test_append_rows_on_fewer_columns(name: str) -> None:
    append_rows(session_of(name), 136, (5, 128, 128, 0, 1), 0, 8)
