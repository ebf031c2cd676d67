"""Measured constants: on the simulator they must equal the constants that it was built with."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pytest
from overlay_site import Site, shortened
from pyxrt_recorder import CHAINED, SWITCH, Recorder

from ort_aie_ep.bringup import data_path, streams
from ort_aie_ep.bringup import device as device_module
from ort_aie_ep.bringup.constants import Measurement, measure
from ort_aie_ep.bringup.device import Npu
from ort_aie_ep.npu.packages.package import read_package
from ort_aie_ep.npu.simulator.txn import Wait, decode
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.errors import DesignError

OBJECT = {"blocks": 4}


def measured(
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    *folders: object,
    data: Collection[str] | None = None,
    **options: object,
) -> dict[str, Measurement]:
    """Measurements by name: all, or of the data path only those in `data`."""
    if data is not None:
        few = [each for each in data_path.experiments(True) if each.name in data]
        monkeypatch.setattr(data_path, "experiments", lambda quick: few)
    recorder = Recorder(site.designs, **options)  # type: ignore[arg-type]
    monkeypatch.setattr(device_module, "perf_counter", recorder.clock)
    packages = [read_package(folder) for folder in folders]  # type: ignore[arg-type]
    return {each.name: each for each in measure(Npu(recorder), packages, True)}  # type: ignore[arg-type]


def value(found: dict[str, Measurement], name: str) -> float:
    assert found[name].measured is not None, found[name].reason
    return float(found[name].measured or 0)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Measurement]]:
    """Everything, measured once."""
    site = Site(tmp_path_factory.mktemp("site"))
    with pytest.MonkeyPatch.context() as monkeypatch:
        shortened(monkeypatch)
        yield measured(site, monkeypatch, site.add("micro"), site.add("fused_dqp"))


def test_constants_come_out_as_the_simulator_has_them(found: dict[str, Measurement]) -> None:
    for name in (
        "WRITE32", "RTP_WORD", "MASKWRITE", "BLOCKWRITE", "BLOCKWRITE_WORD", "DDR_PATCH",
        "TCT_WAIT", "GATE_IDLE", "GATE_PIPELINED", "BD_SETUP", "LOCK_ACQUIRE",
    ):  # fmt: skip
        want = costs.all_costs()[name].value
        # Exact except for the clock's float64: differences of 1e-6 in times of 1e-3.
        assert value(found, name) == pytest.approx(want, rel=1e-3), name
        assert found[name].in_costs == want
        assert found[name].unit == costs.all_costs()[name].unit


def test_every_constant_of_the_control_and_data_path_is_measured(
    found: dict[str, Measurement],
) -> None:
    """The others are limits, or cannot be seen alone."""
    names = {name.partition(",")[0] for name in found}
    others = {"CLOCK", "STREAM", "DDR_NPU1", "SLOWEST_DDR", "SLOWEST_GATE_IDLE", "WATCHDOG_BUDGET"}
    assert names | others == set(costs.all_costs())


def test_dispatch_is_that_of_one_write(found: dict[str, Measurement]) -> None:
    want = costs.DISPATCH.value + costs.WRITE32.value / costs.CLOCK.value
    assert value(found, "DISPATCH") == pytest.approx(want, rel=1e-6)
    for runs in (2, 24):
        chained = (costs.DISPATCH.value + (runs - 1) * CHAINED) / runs
        want = chained + costs.WRITE32.value / costs.CLOCK.value
        assert value(found, f"DISPATCH, {runs} in a chain") == pytest.approx(want, rel=1e-6)


def test_a_channel_carries_what_it_can_except_for_descriptors(
    found: dict[str, Measurement],
) -> None:
    # An object of 8,192 bytes, and the next descriptor; from a core there are more pieces.
    for name in ("SHIM_CHANNEL", "SHIM_CHANNEL, to memory"):
        assert value(found, name) == pytest.approx(costs.SHIM_CHANNEL.value, rel=0.01)
        assert found[name].in_costs == costs.SHIM_CHANNEL.value
        assert found[name].unit == "B/s"


@pytest.mark.in_turn
def test_bandwidth_grows_with_the_channels_up_to_the_memorys(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = measured(site, monkeypatch, site.add("micro", "npu2"))
    limits = {"DDR_READ": costs.DDR_READ.value, "DDR_WRITE": costs.DDR_WRITE.value}
    for name, limit in limits.items():
        for title, channels in (("1 channel", 1), ("2 channels", 2), ("4 channels", 4),
                                ("8 channels", 8), ("8 channels of 4 columns", 8)):  # fmt: skip
            each = found[f"{name}, {title}"]
            assert each.in_costs == min(channels * costs.SHIM_CHANNEL.value, limit)
            # 4 of 2,052 cycles are a descriptor's; if memory is the limit, the channels that were
            # served last still have a piece of 8 KB to move: one of 8 further objects each.
            assert value(found, each.name) == pytest.approx(each.in_costs, rel=0.03)
        assert value(found, name) == pytest.approx(limit, rel=0.03)


def test_switch_of_overlays_is_half_of_a_turn(found: dict[str, Measurement]) -> None:
    assert value(found, "OVERLAY_SWITCH") == pytest.approx(SWITCH, rel=1e-6)


def test_packages_of_one_xclbin_share_a_context(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = site.add_together(["dequant", "micro"])
    found = measured(site, monkeypatch, *together, site.add("fused_dqp"), data=("BD_SETUP",))
    assert value(found, "PDI_SWITCH") == pytest.approx(costs.PDI_SWITCH.value, rel=1e-6)
    assert value(found, "OVERLAY_SWITCH") == pytest.approx(SWITCH, rel=1e-6)
    # A measurement on `micro` uses its kernel, not the first of the xclbin.
    assert value(found, "BD_SETUP") == pytest.approx(costs.BD_SETUP.value, rel=1e-3)


def test_npu1_is_judged_by_its_own_bandwidth(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(site, monkeypatch, site.add("dequant", "npu1_1col"), names=("NPU Phoenix",))
    assert found["DDR_WRITE"].in_costs == costs.DDR_NPU1.value
    assert found["BD_SETUP"].reason == "needs a package with the sequence read_small"
    assert "NPU1" in found["DISPATCH, 24 in a chain"].reason
    assert found["OVERLAY_SWITCH"].reason == "needs two packages of different xclbins"


def test_a_fault_costs_one_measurement(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []

    def fail(call: str) -> str | None:
        waits.extend([1] if call == "run.wait" else [])
        return "TIMEOUT" if call == "run.wait" and len(waits) == 1 else None

    found = measured(site, monkeypatch, site.add("dequant"), fail=fail, data=())
    assert "8 s" in found["DISPATCH"].reason
    assert found["WRITE32"].measured is not None


def test_after_three_faults_nothing_more_is_tried(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(call: str) -> str | None:
        return "TIMEOUT" if call == "run.wait" else None

    found = list(measured(site, monkeypatch, site.add("micro"), fail=fail).values())
    assert ["did not end" in each.reason for each in found[:3]] == [True] * 3
    assert all("not tried: 3" in each.reason for each in found[3:])


# --- streams --------------------------------------------------------------------------------------
def test_parts_of_a_stream_are_all_of_it(site: Site) -> None:
    its = operations(site)[1]
    parts = streams.parts(its)
    together = [*parts.to_device, *parts.from_device, *parts.starts, *parts.waits]
    assert sorted(map(repr, together)) == sorted(map(repr, its))
    assert [each[0] for each in parts.waits] == ["wait"] * 2
    assert parts.to_device[0][0] == "block_write"
    with pytest.raises(DesignError, match="push"):
        streams.parts(parts.to_device[:1])


def operations(site: Site) -> tuple[dict[str, object], streams.Operations]:
    content = read_package(site.add("dequant", "npu2_1col")).manifest
    words = streams.build_one(content, "dequant", OBJECT)
    return content, streams.operations_of(words)


def test_waits_that_are_left_out_give_no_tokens(site: Site) -> None:
    content, its = operations(site)
    left = decode(streams.encode(content, streams.with_waits(its, 1, []))).operations
    assert sum(isinstance(each, Wait) for each in left) == 1
    tokens = [each for each in left if getattr(each, "value", 0) >> 31]
    assert len(tokens) == 1
