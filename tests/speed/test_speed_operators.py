"""The designs' closed forms compared with figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from npu_papers.machine import copies

from ort_aie_ep.aie_kernels.dequant.cost import dequant
from ort_aie_ep.aie_kernels.flow_kv.cost import flow_kv, padded_head
from ort_aie_ep.aie_kernels.flow_kv.kernels import FLOW_KV_VALUES
from ort_aie_ep.aie_kernels.flow_qkv.cost import flow_qkv
from ort_aie_ep.aie_kernels.flow_qkv.kernels import FLOW_QKV_VALUES
from ort_aie_ep.aie_kernels.fused_dqp.cost import fused_dqp
from ort_aie_ep.aie_kernels.fused_dqp.kernels import DQP_BLOCK
from ort_aie_ep.aie_kernels.gemm.cost import gemm, row_gate, row_norm
from ort_aie_ep.aie_kernels.gemm.kernels import GEMM_TILE
from ort_aie_ep.aie_kernels.kernel_cycles import OURS, PUBLISHED
from ort_aie_ep.aie_kernels.machine import TASK, Machine, Step, control
from ort_aie_ep.aie_kernels.vector_ops.cost import gated, rms_norm, rope, token_rope
from ort_aie_ep.aie_kernels.vector_ops.kernels import GELU_MUL
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.errors import DesignError

BLOCK_CYCLES = 1280  # 5,120 bytes at 4 bytes per cycle


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


def test_fused_dqp_streams_whole_rounds() -> None:
    # 2048 x 2048 on 16 cores: 64 block rows, so 4 rounds; 8 blocks deep; 2 cores per channel.
    _, steady = fused_dqp(2048, 2048)
    assert steady.shim == 4 * 8 * 2 * 5120
    assert steady.gates == 4 * costs.GATE_PIPELINED.value
    assert steady.kernels == 4 * 8 * PUBLISHED.dqp_block
    assert steady.read == 2048 * 2048 * 5 / 8
    assert steady.commands == 3 * 8 * TASK


def test_fused_dqp_computes_the_last_round_whole_and_pads_k_to_256() -> None:
    # 1152 = 36 block rows: 3 rounds of 16; 1152 / 256 = 4.5, so 5 blocks deep.
    _, steady = fused_dqp(1152, 1152)
    assert steady.read == 3 * 16 * 5 * 5120
    assert fused_dqp(1536, 1280)[1] == steady


def test_eight_columns_of_fused_dqp_need_half_the_rounds_and_wait_for_activations() -> None:
    start, steady = fused_dqp(4096, 4096, columns=8)
    assert steady.shim == 4 * 16 * 2 * 5120
    exposed = 2 * 4096 / 4
    expected = control(16 + 1 + 8, 6 * 32) + exposed + PUBLISHED.dqp_block
    assert start.control == pytest.approx(expected)
    four, _ = fused_dqp(4096, 4096, columns=4)  # two blocks a core hide 2,048 cycles
    assert four.control == pytest.approx(control(8 + 1 + 4, 6 * 16) + PUBLISHED.dqp_block)


def test_fused_dqp_is_bound_by_ddr_until_its_channels_are() -> None:
    # Eight channels at 1.8 GHz carry 57.6 GB/s, less a little at each task.
    def bound(bandwidth: float) -> str:
        bounds = replace(Machine(), ddr_read=bandwidth).by_bound(fused_dqp(4096, 4096)[1:])
        return max(bounds, key=lambda name: bounds[name])

    assert bound(40e9) == "DDR"
    assert bound(90e9) == "streams"


@pytest.mark.parametrize(("head_dim", "keys_per_chunk"), [(64, 64), (80, 32), (128, 32), (256, 16)])
def test_flow_kv_reads_whole_chunks_of_8_kb(head_dim: int, keys_per_chunk: int) -> None:
    keys = 3 * keys_per_chunk + 1
    _, steady = flow_kv(keys, heads=16, kv_heads=8, head_dim=head_dim, window=None)
    assert steady.read == 2 * 8 * 4 * 8192  # keys and values, heads, chunks
    queries = 2 * padded_head(head_dim) * 2  # two queries of a group, ahead of the keys
    assert steady.shim == 2 * (4 * 8192 + queries)  # the two heads of a pair alternate


@pytest.mark.parametrize(
    ("shared", "bandwidth"), [(False, 2 * 4 * 1.8e9), (True, Machine().ddr_read)]
)
def test_flow_kv_with_one_kv_head(shared: bool, bandwidth: float) -> None:
    """A pair with all keys has two channels; pairs that share them have DDR's bandwidth."""
    _, steady = flow_kv(32768, heads=4, kv_heads=1, head_dim=256, window=None, shared=shared)
    # Apart from the queries and the merge.
    assert steady.read / Machine().seconds((steady,)) == pytest.approx(bandwidth, rel=1e-2)


def test_flow_kv_divides_a_group_that_does_not_fit_and_reads_again() -> None:
    # 2,048 query elements of a sweep: 8 queries of 256. 12 are two sweeps of 6.
    _, steady = flow_kv(16, heads=12, kv_heads=1, head_dim=256, window=None)
    assert steady.read == 2 * 2 * 8192
    assert steady.shim == 8192 + 6 * 256 * 2


def test_flow_kv_with_a_window_does_not_grow_beyond_it() -> None:
    def steps(keys: int, window: int | None) -> tuple[Step, ...]:
        return flow_kv(keys, 8, 4, 256, window)

    assert steps(32768, 512) == steps(512, None)
    assert steps(100, 512) == steps(100, None)
    # 513 to 1024 of 1025, in chunks of 16: the first chunk begins before the window.
    assert steps(1025, 512)[1].read == 2 * 4 * 33 * 8192


def test_flow_kv_kernel_counts_the_queries_of_a_group() -> None:
    _, steady = flow_kv(64, heads=32, kv_heads=8, head_dim=64, window=None)
    # One chunk: 4 queries x 64 keys x 64, two heads in turn.
    assert steady.kernels == pytest.approx(2 * 4 * 64 * 64 / costs.FLOW_KV_RATE.value)


def test_dequant_is_bound_by_its_output() -> None:
    # 1024 x 1024: 128 blocks, four fours of a column; two channels carry 32,768 bytes each per
    # four.
    (step,) = dequant(1024, 1024)
    assert step.shim == 4 * 2 * 16384
    assert step.kernels == 4 * 2115
    assert (step.read, step.write) == (128 * 5120, 128 * 16384)
    (more,) = dequant(1024 + 32, 1024)  # one column has one more group, so all do
    assert more.write == 160 * 16384


def test_gemm_counts_megatiles_and_reads_a_and_b_again_for_each() -> None:
    # 1024 x 256 x 1024: 2 x 2 megatiles, 4 steps of 64 deep.
    body, drain, ends = gemm(1024, 256, 1024)
    assert body.kernels == 4 * 4 * 64 * 128 * 64 / costs.GEMM_RATE.value
    assert body.streams == 4 * 4 * 16384 / 4
    assert body.read == 2 * (1024 * 256 * 2 + 256 * 1024 * 2)
    assert body.write == 2 * 1024 * 1024
    assert drain.streams == 4 * 16384 / 4 / 2  # half of C leaves during products
    assert ends.shim == 256 * 128 * 2 + 4 * 64 * 128 * 2  # the first B of a channel, the last C


def test_bfp16_takes_nine_bytes_for_eight_weights() -> None:
    wide, *_ = gemm(1024, 256, 1024)
    body, drain, ends = gemm(1024, 256, 1024, bfp16=True)
    assert body.kernels == 4 * 4 * 2 * 1313  # 64^3 in 1,313
    assert body.streams == wide.streams * 9 / 16
    assert body.read == 2 * 1024 * 256 * 2 + 2 * 256 * 1024 * 9 / 8
    assert drain.streams == 0
    assert ends.shim == 256 * 128 * 9 / 8 + 4 * 64 * 128 * 2
    (step,) = dequant(1024, 1024, bfp16=True)
    assert (step.read, step.write) == (128 * 5120, 128 * 9216)


def test_gemm_of_a_clamped_tail_costs_a_whole_pass_and_k_is_padded() -> None:
    assert gemm(513, 256, 512) == gemm(1024, 256, 512)
    assert gemm(1, 256, 512) == gemm(512, 256, 512)
    assert gemm(512, 257, 512) == gemm(512, 512, 512)


def test_flow_qkv_sweeps_causally() -> None:
    # Head dimension 128, group 4: 64 rows hold 16 queries of 4 heads, 64 per super-chunk; 16 keys
    # per chunk. Two super-chunks see 64 and 128 keys: 4 + 8 chunks; 8 KV heads are two turns.
    body, between = flow_qkv(128, 0, heads=32, kv_heads=8, head_dim=128, window=None)
    assert body.streams == 2 * 12 * 1024
    assert body.read == 2 * 8 * 12 * 4096
    assert body.kernels == pytest.approx(2 * 12 * 64 * 16 * 128 / costs.FLOW_QKV_RATE.value)
    assert body.commands == (2 * 2 - 1) * 4 * 10 * TASK
    # 64 rows of 128, two cores per channel, in each of 4 sweeps.
    assert between.streams == 4 * 2 * 64 * 128 * 2 / 4


def test_flow_qkv_without_a_mask_sees_all_keys_and_with_a_window_few() -> None:
    full, _ = flow_qkv(128, 0, 32, 8, 128, None, causal=False)
    assert full.streams == 2 * 16 * 1024
    # Window 64: the first super-chunk begins at 0, the second, at 64, sees 1 to 127: 8 chunks of
    # 16 keys from the 0th.
    windowed, _ = flow_qkv(128, 0, 32, 8, 128, 64)
    assert windowed.streams == 2 * (4 + 8) * 1024
    narrow, _ = flow_qkv(128, 0, 32, 8, 128, 17)
    assert narrow.streams == 2 * (4 + 5) * 1024  # 48 to 127
    later, _ = flow_qkv(64, 64, 32, 8, 128, None)
    assert later.streams == 2 * 8 * 1024


def test_flow_qkv_divides_a_group_over_rows_of_cores_that_would_be_idle() -> None:
    # Gemma3-1B: 4 query heads on one KV head become 4 heads of one query head each: 32 queries per
    # chunk, 128 per super-chunk, one turn. All four read K and V.
    body, _ = flow_qkv(128, 0, heads=4, kv_heads=1, head_dim=256, window=None)
    assert body.streams == 16 * 1024  # 128 keys, 8 per chunk
    assert body.read == 2 * 4 * 16 * 4096


def test_flow_qkv_makes_the_chunks_of_a_short_prompt_even() -> None:
    # 200 queries of head dimension 64, one head a row: a super-chunk holds up to 512, but chunks of
    # 56 are enough.
    _, between = flow_qkv(200, 0, heads=8, kv_heads=8, head_dim=64, window=None)
    assert between.streams == 2 * 2 * 56 * 64 * 2 / 4


def test_a_head_too_wide_for_the_designs_is_refused() -> None:
    with pytest.raises(DesignError, match=r"head dimension 320.*256"):
        flow_kv(16, 8, 8, 320, None)


def test_vector_operators_are_bound_by_channel_kernel_or_tasks() -> None:
    (norm,) = rms_norm(10, 2048)
    assert norm.shim == 10 * 8192  # residual and weight on one channel
    assert norm.kernels == pytest.approx(10 * (2 * (438 + 150) + 3 * 520))
    assert norm.commands == 9 * 4 * TASK
    (gate,) = gated(1, 8192, gelu=False)
    assert gate.shim == 4 * 8192
    assert gate.kernels == pytest.approx(8 * (211 + 142))
    queries, keys, values = rope(16, 4, 1, 256, norm=True)
    assert queries.kernels == pytest.approx(16 * (298 + 438))
    assert queries.shim == 16 * 1024 * 2
    assert keys.kernels == pytest.approx(16 / 4 * (298 + 438))
    assert values.kernels == pytest.approx(16 / 4 * 298)
    assert keys.write == 4 * 16 * 256 * 2  # runs of 16 bytes cost 64
    assert keys.commands == TASK  # sixteen tokens: two tasks


def test_row_operators_wait_for_the_channel_of_their_column() -> None:
    # 512 x 1024: two results of 64 x 512 a column, from 8 objects of 64 x 64 of each operand.
    body, last = row_gate(512, 1024, gelu=False)
    assert body.streams == 2 * 16 * 2048
    assert body.read == 2 * 512 * 1024 * 2
    assert body.write + last.write == 512 * 1024 * 2
    # All objects of the gate but one; the second operand; 14 of 16 strips of the result.
    assert body.kernels == pytest.approx(2 * (7 * 2048 + 8 * (211 + 142) + 14 * 256))
    (body, _) = row_norm(512, 1024, residual=False, norm=True)
    assert body.streams == (4 + 2 * 16) * 2048  # all weights, then the rows twice


def test_the_first_result_of_a_token_waits_for_its_task() -> None:
    (one,) = token_rope(4, 64, norm=False)
    tasks = 2 * TASK + 9 * 100.5 + TASK + 210  # x, table; parameters; y
    ready = 298 / 4 + 128  # a piece of 256 rotated, and its arrival
    assert one.control + one.meanwhile == pytest.approx(tasks + 100.5 - ready)


def test_copies_share_the_rows_but_neither_ddr_nor_the_command_processor() -> None:
    (one,) = rms_norm(64, 1024)
    (shared,) = copies((one,), 8)
    assert shared == replace(one, shim=one.shim / 8, kernels=one.kernels / 8)


def test_kernels_of_ort_aie_ep_are_priced_by_their_catalogs() -> None:
    assert OURS.dqp_block == DQP_BLOCK.cycles("aie2p", (0,))
    assert OURS.gemm_step == 4 * GEMM_TILE.cycles("aie2p", (8, 8, 4, 0))
    assert OURS.gelu(300) == 2 * GELU_MUL.cycles("aie2p", (256,))  # two pieces of 256
    assert OURS.flow_kv_chunk(4, 128) >= FLOW_KV_VALUES.cycles("aie2p", (4, 128))
    assert OURS.flow_qkv_chunk(32, 256) >= FLOW_QKV_VALUES.cycles("aie2p", (256, 32))
    body, *_ = gemm(512, 256, 512, OURS)
    assert body.kernels == 4 * OURS.gemm_step


def test_no_kernel_of_the_decode_path_is_slower_than_its_stream() -> None:
    # Two cores share a weight channel; a pair has one channel each for keys and values.
    assert OURS.dqp_block < 2 * BLOCK_CYCLES
    for group, head_dim in ((2, 64), (2, 128), (2, 256)):
        assert OURS.flow_kv_chunk(group, head_dim) < 2048
