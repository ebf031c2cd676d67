"""Eras: what each constant says of itself, and that the simulator and the CLI use them."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from ort_aie_ep.aie_kernels.build import make_design
from ort_aie_ep.aie_kernels.machine import Machine
from ort_aie_ep.cli import app
from ort_aie_ep.npu.simulator.session import Session, random_buffers
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.device import device
from ort_aie_ep.npu.terms.eras import ERAS, MLIR_AIR, PAPERS, Era, era
from ort_aie_ep.npu.terms.errors import DesignError


@pytest.mark.parametrize("each", ERAS.values(), ids=ERAS)
def test_every_constant_of_an_era_says_what_it_is(each: Era) -> None:
    assert all(vars(each.platform).values())
    for name, cost in each.all_costs().items():
        assert cost.value > 0, name
        assert cost.unit, name
        assert cost.device, name
        assert len(cost.source) > 5, name


def test_the_papers_era_has_the_fitted_constants() -> None:
    fitted = {cost.source for cost in costs.all_costs().values() if cost.status == "fitted"}
    assert fitted <= {cost.source for cost in PAPERS.all_costs().values()}
    assert Machine() == Machine.of(PAPERS)


def test_an_unknown_era_is_refused_with_the_known_ones() -> None:
    assert era("mlir-air") is MLIR_AIR
    with pytest.raises(DesignError, match="papers, mlir-air, silicon-2026"):
        era("2027")


def test_npu1_has_its_own_bandwidth_in_every_era() -> None:
    npu1 = device("npu1")
    for each in ERAS.values():
        assert each.ddr(npu1.architecture) == (costs.DDR_NPU1, costs.DDR_NPU1)
        assert each.shim_rate(npu1) == costs.STREAM.value * npu1.clock_hz


def rate(each: Era, lanes: int) -> float:
    """Bytes a second by which `lanes` channels read more, in the simulator."""
    design = make_design("micro", device("npu2"))

    def seconds(objects: int) -> float:
        shape = {"bytes": objects * 8192, "lanes": lanes, "first": 0}
        (result,) = Session(design, era=each).run(
            "read", shape, random_buffers(design, "read", shape)
        )
        return result.seconds

    return lanes * 32 * 8192 / (seconds(64) - seconds(32))


@pytest.mark.parametrize("each", ERAS.values(), ids=ERAS)
def test_the_simulator_reads_at_the_rates_of_its_era(each: Era) -> None:
    # A descriptor of a core takes four cycles more than its 2,048 words.
    assert rate(each, 1) == pytest.approx(each.shim_rate(device("npu2")), rel=0.01)
    assert rate(each, 8) == pytest.approx(
        min(8 * each.shim_rate(device("npu2")), each.ddr_read.value), rel=0.02
    )


def test_kernels_simulate_takes_an_era() -> None:
    seconds = []
    for name in ERAS:
        words = ["kernels", "simulate", "fused_dqp", "matvec", "--shape", "N=512", "--shape",
                 "K=512", "--shape", "bias=0", "--shape", "activation=0"]  # fmt: skip
        done = CliRunner().invoke(app, [*words, "--era", name, "--json"])
        assert done.exit_code == 0, done.output
        (result,) = json.loads(done.stdout)
        seconds.append(result["seconds"])
    assert seconds[1] < seconds[0]


@pytest.mark.parametrize(("npu", "marked"), [("npu1", True), ("npu2", False)])
def test_a_time_that_is_faster_than_any_measured_one_says_so(npu: str, marked: bool) -> None:
    words = ["kernels", "simulate", "gemm", "gemm", "--device", npu]
    for shape in ("M=64", "K=256", "N=512"):
        words += ["--shape", shape]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert ("unconfirmed" in done.stdout) == marked
