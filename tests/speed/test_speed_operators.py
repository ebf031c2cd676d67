"""The closed forms of operators: how steps add up, and what shapes do to them."""

from __future__ import annotations

import pytest

from ort_aie_ep.aie_kernels.flow_kv.cost import flow_kv
from ort_aie_ep.aie_kernels.flow_qkv.cost import flow_qkv
from ort_aie_ep.aie_kernels.fused_dqp.cost import fused_dqp
from ort_aie_ep.aie_kernels.gemm.cost import gemm
from ort_aie_ep.aie_kernels.machine import TASK, Machine, Step, control
from ort_aie_ep.npu.terms.errors import DesignError


def test_within_a_step_the_slowest_decides_and_steps_follow_each_other() -> None:
    machine = Machine(clock_hz=1e9, ddr_read=1e9, ddr_write=1e9)
    steps = (Step(streams=100, kernels=300, read=200, control=50), Step(read=400, write=900))
    assert machine.seconds(steps) == pytest.approx((50 + 300 + 900) / 1e9)
    bounds = machine.by_bound(steps)
    assert bounds == pytest.approx(
        {"DDR": 900e-9, "streams": 0, "kernels": 300e-9, "control": 50e-9}
    )


def test_a_shim_channel_has_a_rate_of_its_own() -> None:
    machine = Machine(clock_hz=1e9, shim_channel=2e9, gate_idle=1e-6)
    assert machine.seconds((Step(shim=2000, gates=500, idle=2),)) == pytest.approx(3.5e-6)
    # A stream inside of the array does not carry more than before.
    assert machine.seconds((Step(shim=2000, streams=3000),)) == pytest.approx(3e-6)


def test_a_task_and_the_start_of_an_operator_cost_what_their_writes_cost() -> None:
    task = 203 + 210 + 100.5  # BLOCKWRITE of 8 words, DDR_PATCH, WRITE32
    assert pytest.approx(task) == TASK
    assert control(3, words=5) == pytest.approx(3 * task + 5 * 100.5 + 210 + 100.5)


def test_fused_dqp_computes_the_last_round_whole_and_pads_k_to_256() -> None:
    # 1152 = 36 block rows: 3 rounds of 16; 1152 / 256 = 4.5, so 5 blocks deep.
    _, steady = fused_dqp(1152, 1152)
    assert steady.read == 3 * 16 * 5 * 5120
    assert fused_dqp(1536, 1280)[1] == steady


def test_flow_kv_with_a_window_does_not_grow_beyond_it() -> None:
    def steps(keys: int, window: int | None) -> tuple[Step, ...]:
        return flow_kv(keys, 8, 4, 256, window)

    assert steps(32768, 512) == steps(512, None)
    assert steps(100, 512) == steps(100, None)
    # 513 to 1024 of 1025, in chunks of 16: the first chunk begins before the window.
    assert steps(1025, 512)[1].read == 2 * 4 * 33 * 8192


def test_flow_kv_divides_a_group_that_does_not_fit_and_reads_again() -> None:
    # 2,048 query elements of a sweep: 8 queries of 256. 12 are two sweeps of 6.
    _, steady = flow_kv(16, heads=12, kv_heads=1, head_dim=256, window=None)
    assert steady.read == 2 * 2 * 8192


def test_flow_qkv_divides_a_group_over_rows_of_cores_that_would_be_idle() -> None:
    # Gemma3-1B: 4 query heads on one KV head become 4 heads of one query head each: 32 queries per
    # chunk, 128 per super-chunk, one turn. All four read K and V.
    body, _ = flow_qkv(128, 0, heads=4, kv_heads=1, head_dim=256, window=None)
    assert body.streams == 16 * 1024  # 128 keys, 8 per chunk
    assert body.read == 2 * 4 * 16 * 4096


def test_gemm_reads_a_and_b_again_for_each_megatile() -> None:
    body, *_ = gemm(1024, 256, 1024)  # 2 x 2 megatiles
    assert body.read == 2 * (1024 * 256 * 2 + 256 * 1024 * 2)
    narrow, *_ = gemm(1024, 256, 1024, bfp16=True)
    assert narrow.read == 2 * (1024 * 256 * 2 + 256 * 1024 * 9 / 8)


def test_a_head_too_wide_for_the_designs_is_refused() -> None:
    with pytest.raises(DesignError, match=r"head dimension 320.*256"):
        flow_kv(16, 8, 8, 320, None)
