"""Constants of the performance model, and what it does not cover."""

from __future__ import annotations

import pytest

from ort_aie_ep.aie_kernels.build import make_design
from ort_aie_ep.npu.packages.package import manifest
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.device import device
from ort_aie_ep.prediction.ranges import range_of


def test_a_range_goes_from_the_constants_machine_to_the_slowest_of_its_kind() -> None:
    assert range_of("prompt", 0.5) == (0.5, pytest.approx(0.95))
    slow, fast = range_of("token", 0.02)
    assert fast == 50
    assert slow == pytest.approx(50 / 1.9)


@pytest.mark.parametrize("name", ["npu1", "npu2"])
def test_limits_of_runs_are_those_of_the_slowest_machine(name: str) -> None:
    """A run that ends in time by its manifest also does on the machine of the predictions."""
    limits = manifest(make_design("gemm", device(name)))
    read, write = costs.ddr(device(name).architecture)
    slowest = costs.SLOWEST_DDR if name == "npu2" else costs.DDR_NPU1
    assert limits["ddr_bytes_per_second"] == slowest.value <= read.value
    assert limits["ddr_write_bytes_per_second"] == slowest.value <= write.value
    assert limits["costs"]["gate_idle"] == costs.SLOWEST_GATE_IDLE.value >= costs.GATE_IDLE.value
