"""Constants of the performance model, and what it does not cover."""

from __future__ import annotations

import pytest

from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.prediction.simulation import simulate


def test_every_cost_says_what_it_is() -> None:
    for name, cost in costs.all_costs().items():
        assert cost.value > 0, name
        assert cost.unit, name
        assert cost.device, name
        assert len(cost.source) > 5, name
        assert cost.interval is not None or cost.status != "fitted", name


def test_the_control_path_is_marked_as_measured_on_npu1() -> None:
    for cost in (costs.WRITE32, costs.RTP_WORD, costs.MASKWRITE, costs.BLOCKWRITE_WORD,
                 costs.GATE_IDLE, costs.GATE_PIPELINED, costs.BD_SETUP):  # fmt: skip
        assert (cost.device, cost.status) == ("NPU1", "measured")


def test_an_unknown_model_gets_a_list_of_the_known_ones() -> None:
    with pytest.raises(DesignError, match=r"'gpt-5'.*llama-3\.2-1b.*gemma3"):
        simulate("gpt-5")
    with pytest.raises(DesignError, match="'tiny-llama'"):
        simulate("tiny-llama")


def test_an_unknown_device_and_one_too_small_are_refused() -> None:
    with pytest.raises(DesignError, match=r"'npu9'.*npu2"):
        simulate("qwen3-4b", "npu9")
    for name in ("npu1", "npu2_4col"):
        with pytest.raises(DesignError, match=rf"{name}.*npu2"):
            simulate("qwen3-4b", name)


@pytest.mark.parametrize("context", [0, -1, 40961])
def test_a_context_that_the_model_does_not_have_is_refused(context: int) -> None:
    with pytest.raises(DesignError, match=f"{context}.*qwen3-4b .*40960"):
        simulate("qwen3-4b", contexts=[context])
