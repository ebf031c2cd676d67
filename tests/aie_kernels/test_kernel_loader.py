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
from ort_aie_ep.npu.terms.kernel import Array, Kernel

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


def test_a_kernel_has_at_most_sixteen_arguments() -> None:
    kernel = replace(fused_dqp.DQP_ZERO, arguments=(Array("f32", 32), *(int,) * 16))
    with pytest.raises(SimulationError, match=r"dqp_zero takes 17 .*16"):
        Kernels("aie2").call(kernel, zeros(32, np.float32), *range(16))
