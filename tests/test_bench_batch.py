"""`bench --batch`, and the bounds that its costs and those of other measurements have."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from commands import ort_aie

import ort_aie_ep
from ort_aie_ep.tools.bench.several_rows import CPU_EP, OURS, SHAPES
from ort_aie_ep.tools.bench.statistics import median, ratio
from ort_aie_ep.tools.synth import synth


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synth("tiny-llama", tmp_path_factory.mktemp("batch") / "model")


def test_command_measures_several_rows_of_any_model(model: Path) -> None:
    result = ort_aie("bench", model, "--batch", "1,3", "--runs", "2", "--threads", "1", "--json")
    assert result.exit_code == 0, result.output
    seconds = json.loads(result.stdout)["seconds"]
    assert list(seconds) == [OURS, CPU_EP]
    for shapes in seconds.values():
        for shape in SHAPES:
            assert {n: len(runs) for n, runs in shapes[shape].items()} == {"1": 2, "3": 2}


def test_a_batch_is_compared_with_one_row_whatever_was_asked_for(model: Path) -> None:
    result = ort_aie("bench", model, "--batch", "3", "--runs", "1", "--threads", "1")
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines() if ", n " in line]
    # The ms of one row and the cost of three.
    assert [sum("." in word for word in row if word[0].isdigit()) for row in rows] == [2] * 4


def test_command_refuses_what_does_not_fit(model: Path, tmp_path: Path) -> None:
    assert "259" in ort_aie("bench", model, "--batch", "39").stderr
    for option in ("--prompt-lengths", "--new-tokens"):
        assert option in ort_aie("bench", model, "--batch", 2, option, 8).stderr
    ort_aie_ep.compile(model, tmp_path / "compiled", last_logits=True)
    pruned = ort_aie("bench", tmp_path / "compiled", "--baseline", model, "--batch", 2).stderr
    assert "--last-logits" in pruned


def test_bounds_hold_the_median_and_shrink_with_the_spread() -> None:
    generator = np.random.default_rng(1)
    wide, narrow = (median(100 + s * generator.standard_normal(15)) for s in (10, 1))
    for interval in (wide, narrow):
        assert interval.low < interval.value < interval.high
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)
    same = median([5.0] * 7)
    assert (same.value, same.low, same.high) == (5, 5, 5)


def test_ratios_are_taken_within_rounds() -> None:
    # A machine that is half as fast in every other round slows both alike.
    slow = np.array([1, 0.5, 1, 0.5, 1, 0.5, 1])
    interval = ratio(list(30 * slow), list(20 * slow))
    assert (interval.low, interval.high) == (1.5, 1.5)
