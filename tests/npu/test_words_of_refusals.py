"""What `check` says that mlir-aie says: it says it, held against aie-opt where there is one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from small_designs import add_worker, empty, without_kernels
from test_check import LIMITS, core_dimensions, l2, memory_dimensions, memory_length

from ort_aie_ep.aie_kernels.mlir.module import print_module
from ort_aie_ep.npu.checks.check import examine
from ort_aie_ep.npu.vocabulary.design import Design, Fifo

AIE_OPT = Path(os.environ.get("MLIR_AIE_BIN", "")) / "aie-opt"
# What aiecc runs of its passes up to the routes, without shortening anything else.
PIPELINE = (
    "builtin.module(aie.device(aie-assign-lock-ids,aie-assign-bd-ids,aie-assign-tile-controller-ids"
    "),aie-generate-column-control-overlay{route-shim-to-tile-ctrl=false},"
    "aie.device(aie-assign-buffer-addresses,aie-create-pathfinder-flows))"
)


def fan(ends: int) -> Design:
    """A channel of a shim that sends packets to so many ends round about."""
    places = [(1, 0), (1, 0), (1, 1), (0, 0), (2, 0), (0, 1), (2, 1)][:ends]
    design = empty()
    fifos: dict[tuple[int, int], list[Fifo]] = {}
    for i, place in enumerate(places):
        fifo = design.fifo(f"in{i}", "u8", 64, design.shim(1, 0), design.core(*place), packet=i)
        fifos.setdefault(place, []).append(fifo)
    for (column, row), into in fifos.items():
        add_worker(design, column, row, into, [])
    return design


#: By the case, what mlir-aie says to it: of `LIMITS` what is beyond.
SAID = {
    "L1": "allocated buffers exceeded available memory",
    "L2": "allocated buffers exceeded available memory",
    "core channels": "uses more input channels than available on this tile",
    "mem channels": "uses more output channels than available on this tile",
    "shim channels": "Unable to find a legal routing",
    "core BDs": "has more than 16 blocks",
    "core locks": "lock assigned invalid id (maximum is 15)",
    "core dimensions": "Cannot give more than 3 dimensions for step sizes and wraps on this tile "
    "(got 4 dimensions).",
    "mem dimensions": "Cannot give more than 4 dimensions for step sizes and wraps on this tile "
    "(got 5 dimensions).",
    "mem count": "Size may not exceed 1023.",
    "mem elements": "Size may not exceed 1023.",
    "core step": "Step size 8193 exceeds memref size 8192",
    "core stride": "Step size 17 exceeds memref size 16",
    "mem stride": "Step size 17 exceeds memref size 16",
    "mem length": "buffer descriptor length (131072 32-bit words) exceeds the maximum of 131071 "
    "words supported by this tile type",
    "ports": "Unable to find a legal routing",
    "packet id": "packet id 32 exceeds the maximum of 31",
    "pin": "Unable to find a legal routing",
    "packet rules": "slave port packet rules exceed the 4-slot limit",
}
#: Of `LIMITS`, what mlir-aie (7e00b579) takes all the same, and why it is refused here.
MORE = {
    "static data": "the linker would refuse it, if the kernels need it",
    "mem BDs": "ids are given, and only those that it gives itself keep to a channel's half",
    "lock value": "the first value of a lock is not looked at",
    "core count": "other versions refuse it",
    "core elements": "other versions refuse it",
    "core outermost": "other versions refuse it",
    "controller's id": "routes of control packets come later",
    "arguments": "the host's kernel has five",
    "acquire": "nothing counts objects that never come",
}


def beyond(name: str) -> tuple[Design, Design]:
    """The last design that is good, and the first that is not."""
    if name == "packet rules":
        return fan(4), fan(7)
    build, last, first, _ = LIMITS[name]
    bare: tuple[Callable[[int], Design], ...] = (
        core_dimensions, memory_dimensions, memory_length, l2,
    )  # fmt: skip
    if build in bare:
        return without_kernels(build(last)), without_kernels(build(first))
    return build(last), build(first)


def aie_opt(design: Design) -> str:
    """What aie-opt says against a design; '' for one that it takes."""
    command = [str(AIE_OPT), f"--pass-pipeline={PIPELINE}", "-", "-o", os.devnull]
    done = subprocess.run(command, input=print_module(design), capture_output=True, text=True)
    return done.stderr if done.returncode else ""


def test_every_limit_has_words_or_a_reason_to_have_none() -> None:
    assert set(SAID) | set(MORE) == {*LIMITS, "packet rules"}
    assert not set(SAID) & set(MORE)


@pytest.mark.parametrize("name", SAID)
def test_check_has_the_words(name: str) -> None:
    good, bad = beyond(name)
    assert examine(good).passed
    assert SAID[name] in {violation.real for violation in examine(bad).violations}
    assert f'(mlir-aie: "{SAID[name]}")' in "\n".join(map(str, examine(bad).violations))


@pytest.mark.parametrize("name", MORE)
def test_check_has_none_where_mlir_aie_says_nothing(name: str) -> None:
    assert [violation.real for violation in examine(beyond(name)[1]).violations] == [""]


@pytest.mark.skipif(not AIE_OPT.is_file(), reason="MLIR_AIE_BIN names no folder with aie-opt")
@pytest.mark.parametrize("name", SAID)
def test_aie_opt_has_them_too(name: str) -> None:
    good, bad = beyond(name)
    assert aie_opt(good) == ""
    assert SAID[name] in aie_opt(bad)


@pytest.mark.skipif(not AIE_OPT.is_file(), reason="MLIR_AIE_BIN names no folder with aie-opt")
@pytest.mark.parametrize("name", sorted(set(MORE) - {"acquire"}))  # of which nothing is printed
def test_aie_opt_takes_what_it_has_no_words_for(name: str) -> None:
    assert aie_opt(beyond(name)[1]) == ""
