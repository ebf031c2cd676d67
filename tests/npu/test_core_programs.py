"""What Peano may make of a core's kernels: ranges that warn or refuse, and their basis."""

from __future__ import annotations

import pytest
from small_designs import COPY, relay

from ort_aie_ep.aie_kernels.build import designs_on
from ort_aie_ep.npu import peano
from ort_aie_ep.npu.checks import core_programs
from ort_aie_ep.npu.checks.check import examine
from ort_aie_ep.npu.checks.core_programs import operations
from ort_aie_ep.npu.checks.report import Estimate, Report
from ort_aie_ep.npu.terms.configuration import configure
from ort_aie_ep.npu.terms.device import DEVICES, PROGRAM_BYTES, device


def counted(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The kernel of `relay` asks for so many operations."""
    monkeypatch.setitem(core_programs._OPERATIONS, COPY.name, number)


def row(report: Report, resource: str) -> Estimate:
    (found,) = {e for e in report.estimates if e.resource == resource}
    return found


@pytest.mark.parametrize(("asked", "status"), [(900, "unproven"), (1500, "warns"), (2180, "warns")])
def test_a_program_that_may_not_fit_warns(
    monkeypatch: pytest.MonkeyPatch, asked: int, status: str
) -> None:
    counted(monkeypatch, asked)
    report = examine(relay(stack=4096))
    assert report.passed
    assert row(report, "program bytes").status == status


def test_a_program_that_cannot_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    counted(monkeypatch, 2190)
    (violation,) = examine(relay(stack=4096)).violations
    assert violation.resource == "program bytes"
    assert f"the limit is {PROGRAM_BYTES:,}" in violation.text
    assert "mlir-air" in violation.text


def test_a_kernel_that_spills_on_the_default_stack_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    """960 bytes with one version of LLVM and 1,216 with the next, on a stack of 1,024."""
    counted(monkeypatch, 100)
    assert row(examine(relay()), "stack bytes").status == "warns"
    assert row(examine(relay(stack=2048)), "stack bytes").status == "unproven"
    counted(monkeypatch, 2)
    assert row(examine(relay()), "stack bytes").status == "unproven"


def test_arrays_that_exceed_the_stack_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    counted(monkeypatch, 100)
    monkeypatch.setitem(core_programs._ARRAYS, COPY.name, 2048)
    (violation,) = examine(relay(stack=3000 // 64 * 64)).violations
    assert (violation.resource, "3,008 at least" in violation.text) == ("stack bytes", True)


def test_a_source_that_peano_compiles_wrongly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peano, "mistakes_of", lambda source: ("line 1: chess_storage",))
    (violation,) = examine(relay()).violations
    assert (violation.resource, violation.text) == ("source", "line 1: chess_storage")


@pytest.mark.parametrize("name", DEVICES)
def test_shipped_kernels_are_counted_and_need_less_than_they_have(name: str) -> None:
    for design in designs_on(device(name), ()).values():
        for worker in design.workers.values():
            assert all(operations(kernel) is not None for kernel in worker.kernels)
        for found in core_programs.estimates(configure(design)):
            assert found.status == "unproven"
