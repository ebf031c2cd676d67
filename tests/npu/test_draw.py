"""Pictures: what they show, and what happens if one cannot be made."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from small_designs import relay, through_memory

from ort_aie_ep.aie_kernels.flow_kv import design as flow_kv
from ort_aie_ep.aie_kernels.fused_dqp import design as fused_dqp
from ort_aie_ep.aie_kernels.gemm import design as gemm
from ort_aie_ep.npu.checks import draw
from ort_aie_ep.npu.checks.draw import draw_placement, draw_utilisation
from ort_aie_ep.npu.checks.route import Hop, route
from ort_aie_ep.npu.terms.configuration import configure
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.device import Device, Tile, device
from ort_aie_ep.npu.terms.errors import DesignError

pytest.importorskip("matplotlib")


def texts(path: Path) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]+)</text>", path.read_text())


@pytest.mark.parametrize("build", [fused_dqp.build, gemm.build, flow_kv.build])
def test_a_placement_names_every_worker_and_fills_every_memory(
    build: Callable[[Device], Design], tmp_path: Path
) -> None:
    design = build(device("npu2_2col"))
    words = texts(draw_placement(design, tmp_path / "placement.svg"))
    assert f"{design.name} on npu2_2col" in words
    assert set(design.workers) <= set(words)
    memory = configure(design).memory
    filled = [f"{used / 1024:.1f} of {64 if t.row > 1 else 512} KB" for t, used in memory.items()]
    assert sorted(w for w in words if w.endswith(" KB")) == sorted(filled)
    broadcasts = {f"broadcast {f.name}" for f in design.fifos.values() if len(f.consumers) > 1}
    assert broadcasts == {w for w in words if w.startswith("broadcast ")}


def test_shared_memory_is_told_apart(tmp_path: Path) -> None:
    shared = "fifo in shared memory"
    assert shared in texts(draw_placement(flow_kv.build(device("npu2_2col")), tmp_path / "a.svg"))
    assert shared not in texts(draw_placement(relay(), tmp_path / "b.svg"))


def test_streams_that_cross_a_gap_have_lanes_of_their_own() -> None:
    configuration = configure(fused_dqp.build(device("npu2"), 8))
    used: dict[Hop, set[int]] = {}
    count = 0
    for net in route(device("npu2"), configuration.streams).nets:
        for hop in net.hops:
            used.setdefault(hop, set())
        lanes = draw._lanes(net, used)  # type: ignore[arg-type]
        assert set(lanes) == set(net.hops)
        count += len(lanes)
    assert count == sum(len(lanes) for lanes in used.values())


def test_a_placement_is_a_picture(tmp_path: Path) -> None:
    path = draw_placement(through_memory(), tmp_path / "placement.png")
    assert path.read_bytes().startswith(b"\x89PNG")


TILES = {Tile(0, 2): {"kernel": 0.6, "wait": 0.3}, Tile(1, 4): {"kernel": 0.25}}


def test_utilisation_says_how_much_of_the_time_went_where(tmp_path: Path) -> None:
    path = draw_utilisation(TILES, 2.0, tmp_path / "u.svg", title="a run")
    words = texts(path)
    assert {"a run", "30%", "waits 15%", "12%", "waits 0%", "column 1", "row 4"} <= set(words)
    assert "row 5" not in words
    assert "channels" not in words


def test_utilisation_shows_the_busiest_channels(tmp_path: Path) -> None:
    channels = {f"MM2S {i}": i / 20 for i in range(30)}
    words = texts(draw_utilisation(TILES, 2.0, tmp_path / "u.svg", channels=channels))
    assert "channels, the busiest 24" in words
    shown = [w for w in words if w.startswith("MM2S ")]
    assert sorted(shown) == sorted(f"MM2S {i}" for i in range(6, 30))
    assert "72%" in words  # 29 / 20 of 2 seconds


def test_nothing_to_draw_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DesignError, match="0 tiles"):
        draw_utilisation({}, 1.0, tmp_path / "u.svg")
    with pytest.raises(DesignError, match="2 tiles in 0"):
        draw_utilisation(TILES, 0.0, tmp_path / "u.svg")


def test_an_ending_that_matplotlib_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DesignError, match=r"placement\.dwg.*\.svg or \.png"):
        draw_placement(relay(), tmp_path / "placement.dwg")


def test_without_matplotlib_a_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(DesignError, match=r"matplotlib.*\[npu\]"):
        draw_placement(relay(), tmp_path / "placement.svg")
    with pytest.raises(DesignError, match="matplotlib"):
        draw_utilisation(TILES, 1.0, tmp_path / "u.svg")
