"""The papers' programs, the fit of the constants, and both beside the papers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from npu_papers.fit import COSTS, Fit, fit, leave_one_out, predicted
from npu_papers.judgement import judge
from npu_papers.machine import Machine
from npu_papers.model import points_of, simulate
from npu_papers.program import decode, layer_overlays, prefill, switches_of
from npu_papers.sizes import layer_projections, lm_head, windows
from npu_papers.tables import CONTEXTS, ROWS, Cell, cells

from ort_aie_ep.aie_kernels.flow_kv.cost import flow_kv
from ort_aie_ep.aie_kernels.fused_dqp.cost import fused_dqp
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.prediction.composition import compose
from ort_aie_ep.prediction.shapes import MODELS, plans_of, shape_of

CALIBRATION = {("III", "qwen3-0.6b"), ("III", "qwen3-1.7b"), ("III", "qwen3-4b"),
               ("III", "qwen3-8b"), ("1", "gemma3-1b")}  # fmt: skip


def test_at_most_four_constants_are_fitted_and_all_by_the_fit() -> None:
    fitted = {n.lower() for n, c in costs.all_costs().items() if c.status == "fitted"}
    assert len(fitted) <= 4
    assert fitted == set(COSTS) == set(Fit.__dataclass_fields__)


def test_fitting_again_gives_the_committed_constants() -> None:
    again = fit()
    for name, cost in COSTS.items():
        # The committed values have three digits.
        assert f"{getattr(again, name):.3g}" == f"{cost.value:.3g}", name


def test_the_fit_sees_nothing_but_the_five_calibration_cells() -> None:
    used = [c for c in cells() if c.calibrates]
    assert {(c.table, c.model) for c in used} == CALIBRATION
    assert {c.context for c in used} == {1024}
    assert fit(used) == fit()


def test_the_fit_finds_constants_that_made_the_data() -> None:
    truth = Fit(ddr_read=50e9, dispatch=100e-6, overlay_switch=1e-3)
    made = [replace(c, value=predicted(c, truth.machine())) for c in cells() if c.calibrates]
    found = fit(made)
    # The golden section ends at a relative 1e-6. A token's time changes with 1/bandwidth, and the
    # runs, a tenth of that time, make up for the change.
    assert found.ddr_read == pytest.approx(truth.ddr_read, rel=1e-5)
    assert found.dispatch == pytest.approx(truth.dispatch, rel=1e-4)
    assert found.overlay_switch == pytest.approx(truth.overlay_switch, rel=1e-3)


def test_leaving_out_the_only_prompt_leaves_the_least_published_switch() -> None:
    without = {r.cell.model: r for r in leave_one_out() if r.cell.phase == "prefill"}
    assert costs.OVERLAY_SWITCH.interval is not None
    assert without["gemma3-1b"].constants.overlay_switch == costs.OVERLAY_SWITCH.interval[0]
    assert len(leave_one_out()) == len(CALIBRATION)


def test_a_layer_of_llama_is_four_projections() -> None:
    shape = shape_of("llama-3.2-1b")
    sizes = [(p.outputs, p.inputs) for p in layer_projections(shape)]
    assert sizes == [(3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192)]
    assert lm_head(shape).weights == 128256 * 2048


def test_gemma_has_five_local_layers_to_a_global_one() -> None:
    assert windows(shape_of("gemma3-1b")) == {512: 22, None: 4}
    assert windows(shape_of("gemma3-4b")) == {1024: 29, None: 5}
    assert windows(shape_of("qwen3-4b")) == {None: 36}


def test_a_token_is_the_sum_of_its_operators() -> None:
    shape, machine = shape_of("llama-3.2-1b"), Machine()
    timing = decode(shape, 2048, machine)
    assert timing.runs == 17
    assert timing.seconds == pytest.approx(sum(timing.parts.values()))
    assert sum(timing.by_bound.values()) + timing.parts["dispatch"] == pytest.approx(timing.seconds)
    attention = machine.seconds(flow_kv(2048, 32, 8, 64, None))
    assert timing.parts["attention"] == pytest.approx(16 * attention)
    assert timing.parts["lm_head"] == pytest.approx(machine.seconds(fused_dqp(128256, 2048)))
    # Packed weights have 5 bits, and each of them is read once.
    weights = 16 * sum(p.weights for p in layer_projections(shape)) + lm_head(shape).weights
    assert timing.read > weights * 5 / 8 + 16 * 2 * 2 * 512 * 2048
    assert timing.read < 1.02 * (weights * 5 / 8 + 16 * 2 * 2 * 512 * 2048)


def test_prefill_counts_a_run_and_a_switch_for_each_place_in_a_layer() -> None:
    overlays = layer_overlays()
    assert len(overlays) == 10
    assert switches_of(3) == 30
    timing = prefill(shape_of("llama-3.2-1b"), 128, Machine())
    assert (timing.runs, timing.switches) == (16 * 10 + 1, 160)
    assert timing.seconds == pytest.approx(sum(timing.parts.values()))


def test_work_beyond_the_watchdog_is_divided_into_runs() -> None:
    short = prefill(shape_of("llama-3.1-8b"), 1024, Machine())
    long = prefill(shape_of("llama-3.1-8b"), 131072, Machine())
    assert long.runs > short.runs
    # One layer's attention at this length: its seconds need that many half seconds.
    one = long.parts["attention"] / 32
    assert long.runs >= 32 * one / costs.WATCHDOG_BUDGET.value


@pytest.mark.parametrize("model", MODELS)
def test_speed_falls_with_context_and_rises_with_bandwidth(model: str) -> None:
    shape = shape_of(model)
    slow, fast = Machine(), replace(Machine(), ddr_read=90e9, ddr_write=90e9)
    # Whole chunks: a window that begins within a chunk reads one more.
    contexts = (64, 512, 1024, 4096, 30016)
    for phase in (decode, prefill):
        seconds = [phase(shape, c, slow).seconds for c in contexts]
        assert seconds == sorted(seconds)
        for context, at_slow in zip(contexts, seconds, strict=True):
            assert phase(shape, context, fast).seconds < at_slow


def test_larger_models_of_a_family_are_slower() -> None:
    for family in (("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b"),
                   ("llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b"),
                   ("gemma3-1b", "gemma3-4b")):  # fmt: skip
        for phase in (decode, prefill):
            seconds = [phase(shape_of(m), 1024, Machine()).seconds for m in family]
            assert seconds == sorted(seconds)


def test_the_papers_tables_are_whole() -> None:
    assert len(list(cells())) == 4 * 6 + 2 * 6 + 6 + 8
    assert all(len(row.values) <= len(CONTEXTS) for row in ROWS)
    decoding = [row for row in ROWS if row.hardware == "NPU" and row.phase == "decode"]
    for row in decoding:
        assert list(row.values) == sorted(row.values, reverse=True)


def test_judgement_keeps_or_misses_each_goal_openly() -> None:
    judged = judge()
    assert {g.limit for g in judged.goals} == {0.10, 0.35, 0.30}
    for goal in judged.goals:
        assert goal.met == (goal.value <= goal.limit)
    for kernels in ("published", "ort_aie_ep"):
        every = [c for c in judged.cells if c.kernels == kernels]
        assert [c.cell for c in every] == list(cells())
        errors = [abs(c.error) for c in every if c.cell.phase == "decode" and not c.cell.calibrates]
        by_name = {g.name: g for g in judged.goals if g.kernels == kernels}
        assert by_name["decode, worst error"].value == max(errors)


def test_a_constant_outside_of_its_sources_is_named() -> None:
    judged = judge()
    for name, cost in judged.constants.items():
        assert cost.interval is not None
        low, high = cost.interval
        assert (name in judged.outside) == (not low <= cost.value <= high)


def test_the_cache_is_read_as_fast_as_the_papers_tables_imply() -> None:
    # Eight shim channels carry 57.6 GB/s, so DDR decides whenever four pairs have work.
    for row in judge().kv_bandwidths:
        assert row.paper_low <= row.paper <= row.paper_high
        if row.model_name.startswith("qwen3"):
            assert row.model == pytest.approx(costs.DDR_READ.value, rel=0.01)
    one_head = next(r for r in judge().kv_bandwidths if r.model_name == "gemma3-1b")
    assert one_head.model == pytest.approx(14.4e9, rel=0.01)


def test_simulation_stands_beside_the_papers() -> None:
    points = points_of("gemma3-1b")
    assert [p.context for p in points if p.phase == "decode"] == list(CONTEXTS[:6])
    first = next(p for p in points if p.phase == "prefill")
    assert first.calibrates
    assert first.paper == 1.02
    assert first.error is not None
    assert abs(first.error) < 0.005  # the constants have three digits
    assert first.residual == pytest.approx(first.paper - first.value)
    assert first.residual_unfitted is not None
    assert first.residual is not None
    assert first.residual_unfitted > first.residual
    assert first.others == {"iGPU": 0.51, "CPU": 4.06}
    odd = simulate("gemma3-1b", contexts=[100]).points[0]
    assert (odd.paper, odd.error, odd.others) == (None, None, {})


def test_llama_has_ratios_only() -> None:
    simulation = simulate("llama-3.2-1b", contexts=[1024])
    assert all(p.paper is None for p in simulation.points)
    assert simulation.speedups["iGPU"][131072] == 16.2


def test_what_if_gives_more_columns_more_where_bandwidth_allows() -> None:
    rows = [w for w in simulate("llama-3.1-8b", contexts=[1024]).what_if if w.decode]
    speed = {(w.placement, w.ddr_read): w.decode[1024] for w in rows if w.kernels == "published"}
    four, eight, apart, *of_bits = dict.fromkeys(w.placement for w in rows)
    assert speed[four, 57.6e9] == pytest.approx(speed[four, 120e9], rel=0.02)  # channels limit
    assert speed[eight, 90e9] > 1.3 * speed[four, 90e9]
    assert speed[eight, 120e9] > speed[eight, 90e9]
    assert all(speed[apart, b] < speed[eight, b] for b in (40e9, 57.6e9, 90e9, 120e9))
    four_bits, two_bits, eight_bits = (speed[name, costs.DDR_READ.value] for name in of_bits[:3])
    assert two_bits > 1.3 * four_bits > 2 * eight_bits


def test_what_if_says_what_copies_of_the_vector_operators_give_a_prompt() -> None:
    rows = [w for w in simulate("gemma3-4b", contexts=[4096]).what_if if w.prefill]
    at_fitted = {
        (w.placement, w.kernels): w.prefill[4096]
        for w in rows
        if w.ddr_read == costs.DDR_READ.value
    }
    assert at_fitted["eight copies", "ort_aie_ep"] < at_fitted["a core each", "ort_aie_ep"]
    assert at_fitted["eight copies", "published"] < at_fitted["eight copies", "ort_aie_ep"]


def test_a_cell_is_predicted_in_its_own_unit() -> None:
    cell = Cell(1, "III", "decode", "qwen3-4b", 1024, 14.0, True)
    seconds = decode(shape_of("qwen3-4b"), 1024, Machine()).seconds
    assert predicted(cell, Machine()) == pytest.approx(1 / seconds)
    prompt = Cell(2, "2", "prefill", "gemma3-4b", 1024, 1.98, False)
    assert predicted(prompt, Machine()) == pytest.approx(
        prefill(shape_of("gemma3-4b"), 1024, Machine()).seconds
    )


@pytest.mark.parametrize("name", MODELS)
def test_a_token_has_the_work_of_this_projects_operators(name: str) -> None:
    shape, machine = shape_of(name), Machine()
    token = compose(plans_of(shape), 1, 1024, machine, fused_layers=False)
    # Some operators are joined here. The work is the same except for the commands of those that are
    # separate in a plan (gate and up, rotations, keys and values: at most 5 a layer, each under 30
    # µs), and that one row's norms, rotations and appends take up to 12 µs a layer less by the
    # forms for one row.
    papers = decode(shape, 1024, machine)
    more = token.timing.seconds - token.timing.parts["dispatch"]
    more -= papers.seconds - papers.parts["dispatch"]
    assert -12e-6 * shape.layers < more < 5 * shape.layers * 30e-6
