"""Measured constants: on the simulator they must come out as what it was built with."""

from __future__ import annotations

import numpy as np
import pytest
from overlay_site import Site
from pyxrt_recorder import SWITCH, Recorder

from ort_aie_ep.npu.packages.package import read_package
from ort_aie_ep.npu.simulator.txn import Wait, decode
from ort_aie_ep.npu.validate import npu as npu_module
from ort_aie_ep.npu.validate import streams
from ort_aie_ep.npu.validate.control import Measurement, measure
from ort_aie_ep.npu.validate.npu import Npu
from ort_aie_ep.npu.vocabulary import costs
from ort_aie_ep.npu.vocabulary.errors import DesignError

OBJECT = {"blocks": 4}


def measured(
    site: Site, monkeypatch: pytest.MonkeyPatch, *folders: object, **options: object
) -> dict[str, Measurement]:
    recorder = Recorder(site.designs, **options)  # type: ignore[arg-type]
    monkeypatch.setattr(npu_module, "perf_counter", recorder.clock)
    packages = [read_package(folder) for folder in folders]  # type: ignore[arg-type]
    found = measure(Npu(recorder), packages, True)  # type: ignore[arg-type]
    return {each.name: each for each in found}


def value(found: dict[str, Measurement], name: str) -> float:
    assert found[name].measured is not None, found[name].reason
    return float(found[name].measured or 0)


@pytest.fixture
def found(site: Site, monkeypatch: pytest.MonkeyPatch) -> dict[str, Measurement]:
    return measured(site, monkeypatch, site.add("dequant"), site.add("fused_dqp"))


def test_constants_come_out_as_the_simulator_has_them(found: dict[str, Measurement]) -> None:
    for name in ("WRITE32", "RTP_WORD", "MASKWRITE", "BLOCKWRITE", "BLOCKWRITE_WORD", "DDR_PATCH",
                 "TCT_WAIT", "GATE_PIPELINED"):  # fmt: skip
        want = costs.all_costs()[name].value
        # Exact but for the clock's float64: differences of 1e-6 in times of 1e-3.
        assert value(found, name) == pytest.approx(want, rel=1e-3), name
        assert found[name].in_costs == want
        assert found[name].unit == costs.all_costs()[name].unit


def test_dispatch_is_that_of_one_write(found: dict[str, Measurement]) -> None:
    want = costs.DISPATCH.value + costs.WRITE32.value / 1.8e9
    assert value(found, "DISPATCH") == pytest.approx(want, rel=1e-6)


def test_bandwidth_is_below_the_models_and_near_it(found: dict[str, Measurement]) -> None:
    # Two columns: four channels of weights in, four out, of 7.2 GB/s each; both are below the cap
    # of the memory, and cores are slower than either.
    for name in ("DDR_READ", "DDR_WRITE"):
        assert 2e9 < value(found, name) < 4 * 7.2e9
        assert found[name].unit == "B/s"


def test_switch_of_overlays_is_half_of_a_turn(found: dict[str, Measurement]) -> None:
    assert value(found, "OVERLAY_SWITCH") == pytest.approx(SWITCH, rel=1e-6)


def test_npu1_stands_beside_its_own_bandwidth(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(site, monkeypatch, site.add("dequant", "npu1_1col"), names=("NPU Phoenix",))
    assert found["DDR_WRITE"].in_costs == costs.DDR_NPU1.value
    assert found["DDR_READ"].reason == "needs a package with the sequence matvec"
    assert found["OVERLAY_SWITCH"].reason == "needs a folder with two packages for this device"


def test_a_fault_costs_one_measurement(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []

    def fail(call: str) -> str | None:
        waits.extend([1] if call == "run.wait" else [])
        return "TIMEOUT" if call == "run.wait" and len(waits) == 1 else None

    found = measured(site, monkeypatch, site.add("dequant"), fail=fail)
    assert "did not end within 2.5 s" in found["DISPATCH"].reason
    assert found["WRITE32"].measured is not None


# --- streams --------------------------------------------------------------------------------------
def operations(site: Site) -> tuple[dict[str, object], streams.Operations]:
    content = read_package(site.add("dequant")).manifest
    (words,) = streams.build(content, "dequant", OBJECT)
    return content, streams.operations_of(words)


def test_a_stream_survives_being_taken_apart(site: Site) -> None:
    content, its = operations(site)
    (words,) = streams.build(content, "dequant", OBJECT)
    np.testing.assert_array_equal(streams.encode(content, its), words)


def test_waits_that_are_left_out_give_no_tokens(site: Site) -> None:
    content, its = operations(site)
    left = decode(streams.encode(content, streams.with_waits(its, 1, []))).operations
    assert sum(isinstance(each, Wait) for each in left) == 1
    tokens = [each for each in left if getattr(each, "value", 0) >> 31]
    assert len(tokens) == 1


def test_only_what_divides_is_divided(site: Site) -> None:
    content, its = operations(site)
    one = streams.of_column(its, 0)
    odd = [
        ("block_write", each[1], [each[2][0] - 1, *each[2][1:]])
        if each[0] == "block_write"
        else each
        for each in one
    ]
    with pytest.raises(DesignError, match="is not 16 equal runs"):
        streams.split_tasks(content, odd, "MM2S", 4)
    with pytest.raises(DesignError, match="too few descriptors"):
        streams.split_tasks(content, one, "S2MM", 16)
