"""`check` quotes mlir-aie's errors: compares them with aie-opt where it is installed."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from small_designs import add_worker, empty, relay
from test_check import LIMITS

from ort_aie_ep.aie_kernels.mlir.module import print_module
from ort_aie_ep.npu.checks.check import examine
from ort_aie_ep.npu.terms.design import Design, Fifo, Layout
from ort_aie_ep.npu.terms.device import Tile

AIE_OPT = Path(os.environ.get("MLIR_AIE_BIN", "")) / "aie-opt"
pytestmark = pytest.mark.skipif(
    not AIE_OPT.is_file(), reason="MLIR_AIE_BIN names no folder with aie-opt"
)
# aiecc's passes up to the routes, with nothing else left out.
PIPELINE = (
    "builtin.module(aie.device(aie-assign-lock-ids,aie-assign-bd-ids,aie-assign-tile-controller-ids"
    "),aie-generate-column-control-overlay{route-shim-to-tile-ctrl=false},"
    "aie.device(aie-assign-buffer-addresses,aie-create-pathfinder-flows))"
)


def fan(ends: int) -> Design:
    """A shim's channel that sends packets to the given number of ends around it."""
    places = [(1, 0), (1, 0), (1, 1), (0, 0), (2, 0), (0, 1), (2, 1)][:ends]
    design = empty()
    fifos: dict[tuple[int, int], list[Fifo]] = {}
    for i, place in enumerate(places):
        fifo = design.fifo(f"in{i}", "u8", 64, design.shim(1, 0), design.core(*place), packet=i)
        fifos.setdefault(place, []).append(fifo)
    for (column, row), into in fifos.items():
        add_worker(design, column, row, into, [])
    return design


def laid_out(*dimensions: tuple[int, int]) -> Design:
    return relay(layout=Layout(dimensions))


def far_apart(distance: int) -> Design:
    """Two workers that share memory, the given number of rows apart."""
    design = empty()
    into = design.fifo("in", "u8", 64, design.shim(0), design.core(0, 0))
    shared = design.fifo("s", "u8", 64, design.core(0, 0), design.core(0, 1), shared=True)
    add_worker(design, 0, 0, [into], [shared])
    add_worker(design, 0, 1, [shared], [])
    tile = Tile(0, 2 + distance)
    shared.consumers[0] = dataclasses.replace(shared.consumers[0], tile=tile)
    design.workers["worker0_1"].tile = tile
    return design


#: Designs besides `LIMITS`: the last good one, and the first bad one.
PAIRS: dict[str, tuple[Callable[[], Design], Callable[[], Design]]] = {
    "packet rules": (lambda: fan(4), lambda: fan(7)),
    "out of bounds": (lambda: laid_out((2, 32), (8, 4)), lambda: laid_out((2, 64), (8, 4))),
    "stride 0": (lambda: laid_out((2, 4), (8, 8), (1, 4)), lambda: laid_out((2, 0), (8, 4))),
    "stack": (lambda: relay(stack=32768), lambda: relay(stack=70000)),
    "shared memory": (lambda: far_apart(1), lambda: far_apart(2)),
}


def beyond(name: str) -> tuple[Design, Design]:
    """The last good design, and the first bad one."""
    if name in PAIRS:
        good, bad = PAIRS[name]
        return good(), bad()
    build, last, first, _ = LIMITS[name]
    return build(last), build(first)


def aie_opt(text: str) -> str:
    """aie-opt's error for a module; '' for one that it accepts."""
    command = [str(AIE_OPT), f"--pass-pipeline={PIPELINE}", "-", "-o", os.devnull]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize("name", [*(name for name in LIMITS if name != "acquire"), *PAIRS])
def test_what_is_refused_has_the_words_of_aie_opt(name: str) -> None:
    """Where `check` quotes nothing, mlir-aie (7e00b579) takes the design."""
    good, bad = beyond(name)
    assert aie_opt(print_module(good)) == ""
    said = aie_opt(print_module(bad))
    quoted = {violation.real for violation in examine(bad).violations if violation.real}
    assert bool(quoted) == bool(said)
    assert all(words in said for words in quoted)
