"""The reach within a buffer, space for static data, and what descriptors may touch."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from combinations import on_each_device
from small_designs import refusal, relay, through_memory
from stream_checks import build, call, manifest, sequence_of
from stream_words import Words

from ort_aie_ep import _npu
from ort_aie_ep.aie_kernels.build import find_designs
from ort_aie_ep.npu.checks.check import check
from ort_aie_ep.npu.checks.descriptors import descriptors
from ort_aie_ep.npu.checks.report import Findings
from ort_aie_ep.npu.checks.static_data import largest_gap
from ort_aie_ep.npu.simulator.machine import Machine
from ort_aie_ep.npu.terms.configuration import Configuration, Lock, configure
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.device import BUFFER_REACH, Tile
from ort_aie_ep.npu.terms.errors import SimulationError

FOUR_GIB = 1 << 32


# --- the reach within a buffer --------------------------------------------------------------------
def reaching(offset: int, run: int = 64, **outer: Any) -> Any:
    s = sequence_of(bytes=FOUR_GIB + 4096)
    s.transfer("y0", "y", offset=offset, run=run, **outer)
    s.wait("y0")
    return s


def test_streams_reach_four_gib_of_a_buffer_and_no_more() -> None:
    assert build(reaching(FOUR_GIB - 64))
    assert build(reaching(FOUR_GIB - 256, outer=[(2, 192)]))
    for s in (
        reaching(FOUR_GIB - 60),
        reaching(FOUR_GIB - 256, outer=[(2, 196)]),
        reaching(FOUR_GIB - 640, outer=[(5, 192)]),
    ):
        with pytest.raises(ValueError, match="4 GiB"):
            build(s)


def test_the_place_of_an_argument_in_its_buffer_counts() -> None:
    s = reaching(0)
    text = json.dumps(manifest(s))
    assert _npu.build(text, [call(s, y=(1, FOUR_GIB - 64))])
    with pytest.raises(ValueError, match=r"4294967300 of buffer 1"):
        _npu.build(text, [call(s, y=(1, FOUR_GIB - 60))])


def test_check_refuses_a_sequence_that_reaches_further() -> None:
    def reaching_from(offset: int) -> Design:
        design = relay()
        s = design.sequence("run")
        s.argument("a", "inout", FOUR_GIB + 4096)
        s.transfer("in", "a", offset=offset, run=64)
        s.transfer("out", "a", offset=0, run=64)
        s.wait("out")
        return design

    assert check(reaching_from(FOUR_GIB - 64)).passed
    assert "reaches byte 4294967300 of buffer 0" in refusal(reaching_from(FOUR_GIB - 60))


def test_the_simulator_refuses_a_patch_that_reaches_further() -> None:
    w = Words()
    w.move(0, ("MM2S", 0), 0, 16, 0)
    w.operations[1][11] = BUFFER_REACH >> 32  # the upper word of the patch
    with pytest.raises(SimulationError, match="4,294,967,296 of argument 0"):
        Machine(relay()).run(w.words(), [("a", np.zeros(64, np.uint8))])


# --- space for static data ------------------------------------------------------------------------
def test_the_largest_piece_counts_wherever_it_lies() -> None:
    assert largest_gap([(0, 1024)], 65536) == 64512
    assert largest_gap([(0, 1024), (60000, 5000)], 65536) == 58976
    assert largest_gap([(0, 1024), (1024, 60000)], 65536) == 4512
    assert largest_gap([(0, 1024), (32768, 0)], 65536) == 64512  # nothing is in it
    assert largest_gap([(0, 70000)], 65536) == 0


@pytest.mark.parametrize(
    "name",
    # Their own tests in tests/designs have the checks with each change.
    [
        pytest.param(d, marks=pytest.mark.in_turn if d in ("gemm", "gemm_bfp16") else [])
        for d in sorted(find_designs())
    ],
)
def test_designs_pass(name: str) -> None:
    for design in on_each_device(name):
        assert len(check(design).proved) >= 2


# --- what descriptors may touch -------------------------------------------------------------------
def found(configuration: Configuration) -> list[str]:
    findings = Findings()
    descriptors(findings, configuration)
    return [str(violation) for violation in findings.violations]


def with_first(configuration: Configuration, tile: Tile, **fields: Any) -> Configuration:
    """The configuration with another first descriptor for the first channel of `tile`."""
    channels = list(configuration.channels)
    at = next(i for i, c in enumerate(channels) if c.tile == tile)
    ring = (dataclasses.replace(channels[at].ring[0], **fields), *channels[at].ring[1:])
    channels[at] = dataclasses.replace(channels[at], ring=ring)
    return dataclasses.replace(configuration, channels=channels)


def test_descriptors_keep_to_their_tile() -> None:
    configuration = configure(through_memory())
    assert not found(configuration)
    core, mem = Tile(0, 2), Tile(0, 1)
    other = Lock(Tile(0, 3), 0, 1, "another's")
    for changed, said in (
        (with_first(configuration, core, acquire=other), "or releases lock another's of core"),
        (with_first(configuration, core, release=other), "can only access a lock in the same tile"),
        (with_first(configuration, core, address=65536), "can only access a buffer in the same"),
        (with_first(configuration, core, address=1026), "bd address must be 4 byte (32b) aligned"),
        (with_first(configuration, mem, address=524288), "moves bytes up to 524,352 of 524,288"),
        (
            with_first(configuration, mem, acquire=other),
            "acquires or releases lock another's of core",
        ),
    ):
        (text,) = (t for t in found(changed) if said in t)
        assert text.startswith(("core tile (0, 2), descriptor", "mem tile (0, 1), descriptor"))


def test_the_last_channels_of_a_memory_tile_reach_their_own_tile_only() -> None:
    configuration = configure(through_memory())
    channels = [
        dataclasses.replace(c, index=4) if c.tile.kind == "mem" else c
        for c in configuration.channels
    ]
    far = dataclasses.replace(configuration, channels=channels)
    assert not found(far)
    (text,) = found(with_first(far, Tile(0, 1), acquire=Lock(Tile(1, 1), 0, 1, "another's")))
    assert "is reachable from DMA channel 4 and attempts to access a non-local lock" in text
