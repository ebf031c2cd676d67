"""Power: what the published watts say, and what the model makes of them."""

from __future__ import annotations

import pytest
from npu_papers.power import alternatives, draw, figure_errors, fitted
from npu_papers.tables import CONTEXTS, FASTFLOWLM_SPEEDS, FIGURES, PAPER2, ROWS, SPEEDUPS

from ort_aie_ep.prediction import power
from ort_aie_ep.prediction.tally import Timing

# Paper 2's totals, of iGPU and CPU (Table 5), and the gains that its text states at 1k.
GAINS = [
    ("gemma3-1b", "prefill", 57, 6.6),
    ("gemma3-4b", "prefill", 58, 13.3),
    ("gemma3-4b", "decode", 54, 9.3),
]


def timing(seconds: float) -> Timing:
    return Timing(seconds, {}, {}, 1, 0, 0, 0, 0)


@pytest.mark.parametrize(("model", "phase", "igpu_watts", "gain"), GAINS)
def test_paper2_divides_by_the_watts_of_npu_and_cpu(
    model: str, phase: str, igpu_watts: float, gain: float
) -> None:
    # This is also why the watts that Table 5 prints under GPU belong to the NPU's run.
    at_1k = {r.hardware: r.values[0] for r in ROWS if (r.model, r.phase) == (model, phase)}
    (figure,) = (f for f in FIGURES if (f.source, f.model, f.phase) == (PAPER2, model, phase))
    faster = at_1k["NPU"] / at_1k["iGPU"] if phase == "decode" else at_1k["iGPU"] / at_1k["NPU"]
    assert faster * igpu_watts / (figure.npu + figure.cpu) == pytest.approx(gain, rel=0.01)


def test_fastflowlms_speeds_have_the_ratios_of_paper_1() -> None:
    cpu_at_1k = {"llama-3.2-1b": 54.6, "llama-3.2-3b": 22.6, "llama-3.1-8b": 10.3}  # same page
    for model, speeds in FASTFLOWLM_SPEEDS.items():
        assert len(speeds) == len(CONTEXTS)
        ratio = SPEEDUPS[model]["CPU"][0]
        assert abs(speeds[0] / cpu_at_1k[model] - ratio) <= 0.05


def test_every_fitted_figure_is_within_a_tenth_and_the_others_are_not_hidden() -> None:
    errors = figure_errors()
    of_fit = [e for e in errors if e.left_out is not None]
    others = [e for e in errors if e.left_out is None]
    assert (len(of_fit), len(others)) == (7, 3)
    assert all(abs(e.error) < 0.10 for e in of_fit)
    assert {e.figure.phase for e in others} == {"prefill"}
    assert (
        max(abs(e.error) for e in others) > 0.10
    )  # the model does not explain the llamas' prompts


def test_no_other_cause_explains_the_figures_better() -> None:
    used, *rest = alternatives()
    assert used.cause.startswith("layers")
    assert all(used.worst_left_out <= a.worst_left_out for a in rest)
    assert (used.idle, used.slope) == (fitted().idle, fitted().layer)


def test_a_slower_token_draws_fewer_watts_and_more_joules() -> None:
    fast, slow = draw(timing(0.02), 1, 16), draw(timing(0.04), 1, 16)
    assert slow.npu_watts < fast.npu_watts < fast.with_cpu_watts
    assert slow.tokens_per_watt < fast.tokens_per_watt
    # Tokens per second and watt are tokens a joule.
    joules = fitted().idle * 0.02 + fitted().layer * 16
    assert fast.tokens_per_watt == pytest.approx(1 / joules)


def test_the_package_has_the_constants_of_the_fit() -> None:
    kept, here = power.draw(timing(0.02), 1, 16), draw(timing(0.02), 1, 16)
    assert kept.npu_watts == pytest.approx(here.npu_watts, rel=1e-4)
    assert kept.tokens_per_watt == pytest.approx(here.tokens_per_watt, rel=1e-4)
