"""The descriptions of linear kernels compared with their sources, and what the loader refuses."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from linear_kernels import zeros

from ort_aie_ep import _native
from ort_aie_ep.aie_kernels.dequant import kernels as dequant
from ort_aie_ep.aie_kernels.flow_kv import kernels as flow_kv
from ort_aie_ep.aie_kernels.flow_qkv import kernels as flow_qkv
from ort_aie_ep.aie_kernels.fused_dqp import kernels as fused_dqp
from ort_aie_ep.aie_kernels.gemm import kernels as gemm
from ort_aie_ep.aie_kernels.gemm import row_kernels as rows
from ort_aie_ep.aie_kernels.vector_ops import kernels as vector_ops
from ort_aie_ep.npu.kernels import Kernels
from ort_aie_ep.npu.terms.errors import SimulationError
from ort_aie_ep.npu.terms.kernel import DTYPES, Array, Kernel

SOURCES = Path(__file__).parents[2] / "aie_kernels"


def described(*modules: ModuleType) -> dict[str, Kernel]:
    """The kernels of modules, by the names of their constants."""
    found = [(n, v) for module in modules for n, v in vars(module).items()]
    return {name: value for name, value in found if isinstance(value, Kernel)}


LINEAR = described(fused_dqp, dequant, gemm)
CATALOG = list(LINEAR.values())
ALL = CATALOG + list(described(flow_kv, flow_qkv, rows, vector_ops).values())
C_TYPES = {"u8": "uint8_t", "bf16": "bfloat16", "i32": "int32_t", "f32": "float"}
ARCHITECTURES = ["aie2", "aie2p"]


def declared(kernel: Kernel) -> list[str]:
    """The C types of a kernel's arguments, a pointer as `type*`."""
    source = (SOURCES / kernel.source).read_text()
    body = source[source.index('extern "C"') :]
    found = re.search(rf"^void {kernel.name}\(([^)]*)\)", body, re.MULTILINE)
    assert found, f"{kernel.source} has no {kernel.name}"
    words = [part.replace("const ", "").split() for part in found[1].split(",")]
    return [part[0] for part in words]


@pytest.mark.parametrize("kernel", CATALOG, ids=lambda k: k.name)
def test_catalog_agrees_with_the_source(kernel: Kernel) -> None:
    wanted = [
        f"{C_TYPES[a.element]}*" if isinstance(a, Array) else "int32_t" for a in kernel.arguments
    ]
    assert declared(kernel) == wanted
    assert LINEAR[kernel.name.upper()] is kernel


def test_every_entry_point_is_in_the_catalog() -> None:
    for source in {kernel.source for kernel in CATALOG}:
        text = (SOURCES / source).read_text()
        names = re.findall(r"^void (\w+)\(", text[text.index('extern "C"') :], re.MULTILINE)
        assert set(names) == {k.name for k in CATALOG if k.source == source}


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_library_has_the_catalog(arch: str) -> None:
    kernels = Kernels(arch)
    for kernel in CATALOG:
        if arch in kernel.architectures:
            assert kernels._library[kernel.name]


def misaligned() -> Any:
    return zeros(64, np.float32)[1:33]


def strided() -> Any:
    return zeros(64, np.float32)[::2]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "takes 1 arguments, got 0"),
        ([3], "argument 0 of dqp_zero must be .* float32 with 128 bytes or more, .* got a int"),
        ([np.zeros(32, np.int32)], "got int32 of 128 bytes"),
        ([zeros(16, np.float32)], "got float32 of 64 bytes"),
        ([misaligned()], "4 bytes past a multiple of 64"),
        ([strided()], "not contiguous"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments: list[Any], complaint: str) -> None:
    with pytest.raises(SimulationError, match=complaint):
        Kernels("aie2").call(fused_dqp.DQP_ZERO, *arguments)


def test_scalars_must_be_integers() -> None:
    with pytest.raises(SimulationError, match="gemm_zero"):
        Kernels("aie2").call(gemm.GEMM_ZERO, zeros(8192, np.float32), 64.5)


def test_larger_buffers_are_taken() -> None:
    acc = zeros(64, np.float32)
    acc[:] = 1
    Kernels("aie2").call(fused_dqp.DQP_ZERO, acc)
    np.testing.assert_array_equal(acc, [0] * 32 + [1] * 32)


def test_unknown_kernels_and_architectures_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = Kernels("aie2")
    with pytest.raises(SimulationError, match=r"has no mystery \(fused_dqp/fused_dqp.cc\)"):
        kernels.call(replace(fused_dqp.DQP_ZERO, name="mystery"))
    with pytest.raises(SimulationError, match=r"dqp_zero .*aie2p.*aie2"):
        kernels.call(replace(fused_dqp.DQP_ZERO, architectures=("aie2p",)))
    with pytest.raises(SimulationError, match=r"aie1 .*reinstall"):
        Kernels("aie1")
    monkeypatch.setattr(_native, "__file__", str(tmp_path / "_native.so"))
    (tmp_path / "libaie_kernels_aie2.so").write_bytes(b"no library")
    with pytest.raises(SimulationError, match=r"libaie_kernels_aie2\.so"):
        Kernels("aie2")


def test_a_broken_promise_is_reported_and_the_next_call_starts_afresh() -> None:
    kernels = Kernels("aie2")
    unlimited = replace(gemm.GEMM_ZERO, limits=None)
    acc = zeros(8192, np.float32)
    acc[:] = 1
    with pytest.raises(SimulationError, match="gemm_zero"):
        kernels.call(unlimited, acc, 32)
    assert (acc == 1).all()
    kernels.call(unlimited, acc, 64)
    np.testing.assert_array_equal(acc[:65], [0] * 64 + [1])


def test_scalars_that_lead_out_of_the_buffers_are_refused() -> None:
    kernels = Kernels("aie2")
    with pytest.raises(SimulationError, match=r"gemm_zero .* \(8224,\)"):
        kernels.call(gemm.GEMM_ZERO, zeros(8192, np.float32), 8224)


@pytest.mark.parametrize("kernel", ALL, ids=lambda k: k.name)
def test_a_kernel_with_scalars_has_limits_that_garbage_does_not_meet(kernel: Kernel) -> None:
    scalars = [a for a in kernel.arguments if not isinstance(a, Array)]
    assert (kernel.limits is not None) == bool(scalars)
    if kernel.limits is not None:
        for garbage in (-1, 0x7FFFFFFF, -(1 << 31), 0x3F803F80):
            assert not kernel.limits((garbage,) * len(scalars))


GELU = rows.GELU_GATE + 3 * rows.CORE
NORM = rows.NORM + rows.SLABS * 28 + rows.MEAN * 28 * 256
ROTATION = rows.ROTATE + rows.HEAD * 2 + rows.ROTARY * 8 + rows.HEAD_NORM + rows.INTERLEAVED

# By kernel: the largest scalars that stay within the buffers, and others that differ in one.
EDGES: list[tuple[Kernel, tuple[int, ...], list[tuple[int, int]]]] = [
    (
        flow_qkv.FLOW_QKV_SCHEDULE,
        (3, 1, 2, 64, 0x7FFFFFFF - 512, 0x7FFFFFFF, 0x7FFFFFFF, 1, 32),
        [(0, 4), (1, 2), (3, 128), (4, 0x7FFFFFFF), (5, -1), (6, -1), (7, 2), (8, 0), (8, 24)],
    ),
    (
        flow_qkv.FLOW_QKV_LOAD_Q,
        (15, 64, 128),
        [(0, 16), (0, -1), (1, 128), (1, 32), (2, 136), (2, 0), (2, 4)],
    ),
    (flow_qkv.FLOW_QKV_LOAD_Q, (7, 256, 16), [(0, 8), (2, 8)]),
    (
        flow_qkv.FLOW_QKV_SCORES,
        (256, 32, 32, 3, 25, 0, 1, 0, 0),
        [(0, 512), (1, 40), (2, 0), (2, 40), (3, -1), (3, 4), (4, 24), (5, -1), (6, 2)],
    ),
    (flow_qkv.FLOW_QKV_VALUES, (128, 64), [(0, 256), (1, 72), (1, 0), (1, 60)]),
    (flow_qkv.FLOW_QKV_OUTPUT, (15, 64), [(0, 16), (0, -1), (1, 0), (1, 96)]),
    (vector_ops.RMS_LOAD, (127,), [(0, 128), (0, -1)]),
    (vector_ops.RMS_ADD, (127,), [(0, 128), (0, -1)]),
    (vector_ops.RMS_SUM, (127,), [(0, 128), (0, -1)]),
    (vector_ops.RMS_FINISH, (127,), [(0, 128), (0, -1)]),
    (vector_ops.RMS_SCALE, (16384, 0), [(0, 0), (0, 16385)]),
    (vector_ops.QK_NORM, (256, 0), [(0, 512), (0, 0), (0, 96)]),
    (vector_ops.ROPE, (64, 64, 1), [(0, 32), (1, 96), (1, 48), (1, -32), (2, 2)]),
    (vector_ops.SILU_MUL, (256,), [(0, 288), (0, 0), (0, 33)]),
    (vector_ops.GELU_MUL, (256,), [(0, 288), (0, 0), (0, 33)]),
    (rows.ROWS_BEGIN, (0x7FFFFFFF, 0), [(0, -1), (1, 32), (1, 6)]),
    (
        rows.ROWS_TAKE,
        (GELU, 0, 0, 15),
        [(0, GELU + rows.SLABS), (0, 6), (0, 0), (2, 1), (3, 16), (3, -1)],
    ),
    (
        rows.ROWS_TAKE,
        (NORM, 0, 14, 7),
        [(0, NORM + rows.SLABS), (0, NORM + rows.MEAN), (2, 15), (3, 8), (3, -1)],
    ),
    (
        rows.ROWS_TAKE,
        (ROTATION, 0, 0, 11),
        [
            (0, ROTATION + rows.HEAD),
            (0, ROTATION + rows.ROTARY),
            (0, ROTATION + rows.NARROW),
            (2, 1),
            (3, 12),
        ],
    ),
    (
        rows.ROWS_PREPARE,
        (NORM, 0, 1, 111),
        [(0, NORM + rows.SLABS), (0, GELU), (0, ROTATION), (2, 2), (3, 112), (3, -1)],
    ),
    (rows.ROWS_PREPARE, (NORM, 0, 0, 3), [(3, 4)]),
    (rows.ROWS_PREPARE, (ROTATION, 0, 0, 3), [(2, 1), (3, 4)]),
    (rows.ROWS_STORE, (GELU, 15), [(0, 0), (1, 16), (1, -1)]),
    (rows.ROWS_STORE, (ROTATION + rows.IN_BLOCKS, 15), [(1, 16)]),
]


@pytest.mark.parametrize(("kernel", "most", "others"), EDGES, ids=lambda v: getattr(v, "name", ""))
def test_kernels_run_to_the_edge_of_their_limits(
    kernel: Kernel, most: tuple[int, ...], others: list[tuple[int, int]]
) -> None:
    kernels = Kernels("aie2p")
    buffers = [zeros(a.count, DTYPES[a.element]) for a in kernel.arguments if isinstance(a, Array)]
    kernels.call(kernel, *buffers, *most)
    for place, value in others:
        scalars = (*most[:place], value, *most[place + 1 :])
        with pytest.raises(SimulationError, match=rf"{kernel.name} would reach outside"):
            kernels.call(kernel, *buffers, *scalars)


def test_a_kernel_has_at_most_sixteen_arguments() -> None:
    kernel = replace(fused_dqp.DQP_ZERO, arguments=(Array("f32", 32), *(int,) * 16))
    with pytest.raises(SimulationError, match=r"dqp_zero takes 17 .*16"):
        Kernels("aie2").call(kernel, zeros(32, np.float32), *range(16))
