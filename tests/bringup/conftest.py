"""Packages for the recorder, shorter streams than a host's clock needs, and runs of it all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from overlay_site import TOKEN, Site, shortened
from pyxrt_recorder import Recorder

from ort_aie_ep.bringup import Report, device, first_token, steps, validate
from ort_aie_ep.bringup.bench import Measurement
from ort_aie_ep.bringup.report import write
from ort_aie_ep.machine import Finding


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture(autouse=True)
def short_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """See `shortened`."""
    shortened(monkeypatch)


@pytest.fixture
def record(site: Site, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Recorder]:
    """Make a recorder of the site's designs this machine's pyxrt, and its clock the clock."""

    def recorded(**options: Any) -> Recorder:
        recorder = Recorder(site.designs, **options)
        monkeypatch.setattr(device, "perf_counter", recorder.clock)
        monkeypatch.setitem(sys.modules, "pyxrt", recorder)
        return recorder

    return recorded


@pytest.fixture
def run(
    site: Site, record: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Report, Recorder]]:
    """`validate` with the site's packages, which are all that are wanted; other options are the
    recorder's. Written to day.json. Unless others are given, the machine has what it needs, and its
    model's tokens are right."""

    def validated(
        quick: bool = True, wanted: Sequence[str] = (), constants: bool = False, designs: Any = (),
        look: Any = lambda: [Finding("NPU", "NPU2")], token: Any = lambda folder: TOKEN,
        progress: Any = None, **options: Any,
    ) -> tuple[Report, Recorder]:  # fmt: skip
        monkeypatch.setattr(steps, "links", look)
        monkeypatch.setattr(first_token, "run_apart", token)
        monkeypatch.setattr(steps, "designs_on", lambda *_: dict.fromkeys(wanted))
        recorder = record(**options)
        if not constants:
            monkeypatch.setattr(steps, "measure", _measured)
        report = validate(
            site.folder / "overlays", lambda made: write(made, site.folder / "day.json"),
            quick=quick, designs=designs, progress=progress,
        )  # fmt: skip
        return report, recorder

    return validated


def _measured(npu: Any, packages: Any, quick: bool, begin: Any) -> Iterator[Measurement]:
    """A measurement that the device has no part in."""
    begin("DISPATCH")
    yield Measurement("DISPATCH", "s", "not at all", 210e-6, "a test's", "made up", 210e-6, 0.0)
