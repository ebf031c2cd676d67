"""`check` quotes mlir-aie's errors: compares them with aie-opt where it is installed."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from small_designs import add_worker, empty, relay, through_memory, without_kernels
from test_check import CHANGES, LIMITS, core_dimensions, l2, memory_dimensions, memory_length

from ort_aie_ep.aie_kernels.mlir.module import print_module
from ort_aie_ep.npu.checks import real_words
from ort_aie_ep.npu.checks.check import examine
from ort_aie_ep.npu.terms.design import Design, Fifo, Layout
from ort_aie_ep.npu.terms.device import Tile

AIE_OPT = Path(os.environ.get("MLIR_AIE_BIN", "")) / "aie-opt"
NEEDS_AIE_OPT = pytest.mark.skipif(
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

#: For each case, mlir-aie's error; for `LIMITS`, the error beyond the limit.
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
    "out of bounds": "Specified stride(s) and size(s) result in out of bounds access in buffer",
    "stride 0": "Invalid step size; must be a positive integer.",
    "stack": "stack_size 70000 leaves no local memory for this tile's buffers (65536 bytes total)",
    "shared memory": "is accessed from an unreachable tile in Column 0 and Row 4",
}
#: For `LIMITS`, cases that mlir-aie (7e00b579) accepts, and why they are refused here.
MORE = {
    "static data": "the linker would refuse it, if the kernels need it",
    "mem BDs": "ids are given, and only those that it gives itself keep to a channel's half",
    "lock value": "the first value of a lock is not looked at",
    "core count": "other versions refuse it",
    "core elements": "other versions refuse it",
    "core outermost": "other versions refuse it",
    "controller's id": "routes of control packets come later",
    "acquire": "nothing counts objects that never come",
}


def beyond(name: str) -> tuple[Design, Design]:
    """The last good design, and the first bad one."""
    if name in PAIRS:
        good, bad = PAIRS[name]
        return good(), bad()
    build, last, first, _ = LIMITS[name]
    bare: tuple[Callable[[int], Design], ...] = (
        core_dimensions, memory_dimensions, memory_length, l2,
    )  # fmt: skip
    if build in bare:
        return without_kernels(build(last)), without_kernels(build(first))
    return build(last), build(first)


def ring(
    descriptor: str,
    *,
    tile: str = "(0, 2)",
    dma: str = "aie.mem",
    channel: int = 0,
    address: int = 1024,
    other: str = "",
    lock: str = "",
) -> str:
    """A module with one descriptor, for a buffer b of 64 bytes, or as `other` has it."""
    return f"""aie.device(npu2) {{
      %t = aie.tile{tile}
      {other}
      %b = aie.buffer(%t) {{address = {address} : i32, sym_name = "b"}} : memref<64xi8>
      %one = arith.constant 1 : i32
      %d = {dma}(%t) {{
          %s = aie.dma_start(S2MM, {channel}, ^bd, ^end)
        ^bd:
          {lock}
          aie.dma_bd({descriptor})
          aie.next_bd ^bd
        ^end:
          aie.end
      }}
    }}"""


WHOLE = "%b : memref<64xi8> len = 64"
LOCK = "aie.use_lock(%l, AcquireGreaterEqual, %one)"
ABOVE, BESIDE = "%u = aie.tile(0, 3)", "%u = aie.tile(0, 1)"
OTHERS = '%o = aie.buffer(%u) {sym_name = "o"} : memref<64xi8>'

#: Cases that no printed design can show: modules, and their errors.
MODULES = {
    "length": (ring("%b : memref<64xi8> len = 63"), real_words.LENGTH_MULTIPLE),
    "innermost": (
        ring("%b : memref<64xi8> len = 64 sizes = [2, 16] strides = [32, 2]"),
        real_words.INNERMOST,
    ),
    "address": (ring(WHOLE, address=1026), real_words.DESCRIPTOR_ADDRESS),
    "another's buffer": (
        ring("%o : memref<64xi8> len = 64", other=ABOVE + OTHERS),
        real_words.OTHER_TILES_BUFFER,
    ),
    "another's lock": (
        ring(WHOLE, other=f"{ABOVE} %l = aie.lock(%u, 0)", lock=LOCK),
        real_words.OTHER_TILES_LOCK,
    ),
    "far buffer": (
        ring(
            "%o : memref<64xi8> len = 64", tile="(1, 1)", dma="aie.memtile_dma", channel=4,
            other=BESIDE + OTHERS,
        ),
        real_words.FAR_BUFFER.format(channel=4),
    ),
    "far lock": (
        ring(
            WHOLE, tile="(1, 1)", dma="aie.memtile_dma", channel=5, lock=LOCK,
            other=f"{BESIDE} %l = aie.lock(%u, 0)",
        ),
        real_words.FAR_LOCK.format(channel=5),
    ),
    "column": (
        "aie.device(npu2) { %t = aie.tile(9, 2) }", real_words.COLUMN.format(index=9, limit=8)
    ),
    "row": ("aie.device(npu2) { %t = aie.tile(0, 7) }", real_words.ROW.format(index=7, limit=6)),
    "second core": (
        "aie.device(npu2) { %t = aie.tile(0, 2) %a = aie.core(%t) { aie.end } "
        "%b = aie.core(%t) { aie.end } }",
        real_words.SECOND_CORE,
    ),
}  # fmt: skip


def aie_opt(text: str) -> str:
    """aie-opt's error for a module; '' for one that it accepts."""
    command = [str(AIE_OPT), f"--pass-pipeline={PIPELINE}", "-", "-o", os.devnull]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    return done.stderr if done.returncode else ""


def test_every_limit_has_words_or_a_reason_to_have_none() -> None:
    assert set(SAID) | set(MORE) == {*LIMITS, *PAIRS}
    assert not set(SAID) & set(MORE)


def test_every_word_is_held_against_aie_opt() -> None:
    """Except the one for selections: a design breaks the limit on rules first."""
    words = {k: v for k, v in vars(real_words).items() if k.isupper() and k != "SELECTIONS"}
    held = [*SAID.values(), *(said for _, said in MODULES.values())]
    for name, text in words.items():
        parts = re.split(r"\{\w+\}", text)
        assert any(all(part in said for part in parts) for said in held), name


@pytest.mark.parametrize("name", SAID)
def test_check_has_the_words(name: str) -> None:
    good, bad = beyond(name)
    assert examine(good).passed
    assert SAID[name] in {violation.real for violation in examine(bad).violations}
    assert f'(mlir-aie: "{SAID[name]}")' in "\n".join(map(str, examine(bad).violations))


@pytest.mark.parametrize("name", MORE)
def test_check_has_none_where_mlir_aie_says_nothing(name: str) -> None:
    assert [violation.real for violation in examine(beyond(name)[1]).violations] == [""]


@NEEDS_AIE_OPT
@pytest.mark.parametrize("name", SAID)
def test_aie_opt_has_them_too(name: str) -> None:
    good, bad = beyond(name)
    assert aie_opt(print_module(good)) == ""
    assert SAID[name] in aie_opt(print_module(bad))


@NEEDS_AIE_OPT
@pytest.mark.parametrize("name", MODULES)
def test_aie_opt_has_those_of_modules(name: str) -> None:
    text, said = MODULES[name]
    assert aie_opt(ring(WHOLE)) == ""
    assert said in aie_opt(text)


@pytest.mark.parametrize(
    ("change", "name"), [("odd size", "length"), ("consumer outside", "column")]
)
def test_check_has_those_of_modules(change: str, name: str) -> None:
    design = through_memory()
    CHANGES[change][0](design)
    said = MODULES[name][1]
    assert said in {violation.real for violation in examine(design).violations}


@NEEDS_AIE_OPT
@pytest.mark.parametrize("name", sorted(set(MORE) - {"acquire"}))  # which cannot be printed
def test_aie_opt_takes_what_it_has_no_words_for(name: str) -> None:
    assert aie_opt(print_module(beyond(name)[1])) == ""
