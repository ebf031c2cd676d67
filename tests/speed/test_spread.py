"""Ranges of predictions, and the nearest measured figures."""

from __future__ import annotations

import pytest

from ort_aie_ep.npu.terms.eras import ERAS
from ort_aie_ep.prediction.measured import BILLIONS, KRACKAN, PROMPTS, STRIX, TOKENS, nearest
from ort_aie_ep.prediction.spread import basis, nearest_words, range_of


def test_a_range_goes_from_the_constants_machine_to_the_slowest_of_its_kind() -> None:
    assert range_of("prompt", 0.5) == (0.5, pytest.approx(0.95))
    slow, fast = range_of("token", 0.02)
    assert fast == 50
    assert slow == pytest.approx(50 / 1.9)


def test_the_nearest_figure_is_of_the_model_if_there_is_one() -> None:
    found = nearest("llama-3.2-1b", "token", 2500, 99)
    assert (found.model, found.context, found.value) == ("llama-3.2-1b", 2048, 63.49)
    # Its prompts were measured on two machines; the constants are of one of them.
    found = nearest("llama-3.2-1b", "prompt", 1024, 99)
    assert (found.value, found.machine) == (0.483, KRACKAN)
    assert nearest("qwen3-4b", "prompt", 1 << 20, 1).machine == STRIX


def test_the_nearest_figure_of_another_model_is_of_its_size() -> None:
    assert nearest("my-model", "token", 1024, 1.0).model == "llama-3.2-1b"
    assert nearest("my-model", "prompt", 1024, 3.9).model == "gemma3-4b"
    assert "qwen3-8b" in nearest_words("my-model", "token", 1024, 40.0)


def test_every_measured_model_has_a_size() -> None:
    assert {*PROMPTS, *TOKENS} <= BILLIONS.keys()


@pytest.mark.parametrize("name", ERAS)
def test_a_range_says_its_basis(name: str) -> None:
    assert ERAS[name].platform.processor in basis(name)
    assert "FastFlowLM issue 625" in basis(name)
