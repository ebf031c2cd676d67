"""The rules by which bundles are counted, and what they are worth for published kernels."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from ort_aie_ep.aie_kernels import issue_api as api
from ort_aie_ep.aie_kernels.issue import VECTORS, Body, Slot

LAB = Path(__file__).parents[2] / "lab"


def test_two_loads_start_in_a_bundle() -> None:
    body = Body()
    for vector in api.load(body, 8):
        api.store(body, [vector])
    assert body.used()[Slot.LDA] == body.used()[Slot.LDB] == 4
    assert body.issued() == 8  # the stores
    assert body.scheduled() == 7 + 8  # which wait for the first load


def test_a_product_adds_to_the_one_before_after_three_cycles_and_is_read_after_six() -> None:
    body = Body()
    x, y = api.load(body, 2)
    total = api.multiply(body, x, y)
    for _ in range(9):
        total = api.multiply(body, x, y, onto=total)
    api.narrow(body, [total], lanes=32)
    assert body.scheduled() == 7 + 9 * 3 + 6 + 1


def test_moves_follow_each_other_at_once() -> None:
    body = Body()
    (vector,) = api.load(body)
    for _ in range(10):
        vector = api.move(body, vector)
    assert body.scheduled() == 7 + 10


def test_registers_bound_how_much_is_under_way() -> None:
    def sums_of(count: int) -> Body:
        body = Body()
        for _ in range(count):
            (vector,) = api.widen(body, api.load(body))
            api.store(body, api.narrow(body, [api.add(body, vector)], lanes=32))
        return body

    few, many = sums_of(5), sums_of(50)
    assert many.issued() == 10 * few.issued()
    # Five accumulators, each held for the six cycles of its addition and the one that reads it.
    assert many.scheduled() - few.scheduled() >= 45 * 7 / 5


def test_more_vectors_than_registers_are_spilled() -> None:
    def held(count: int) -> int:
        body = Body()
        vectors = api.load(body)
        for _ in range(count - 1):
            vectors.append(api.move(body, vectors[-1]))
        last = vectors.pop()
        for vector in reversed(vectors):
            last = api.move(body, last, vector)
        return body.scheduled()

    assert held(VECTORS) - held(VECTORS - 2) == 2 * 2  # two moves there, two back
    assert held(VECTORS + 2) - held(VECTORS) > 2 * 2


def test_a_stretch_waits_for_the_one_before_only_in_turn() -> None:
    body = Body()
    for _ in range(4):
        api.store(body, api.each(body, api.load(body)))
        body.next_stretch()
    assert body.in_turn() == 4 * 10
    assert body.scheduled() == 10 + 3


def test_published_kernels_left_out_are_predicted_within_a_quarter(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(LAB))
    bundles = importlib.import_module("bundles")
    assert bundles.main() == 0, capsys.readouterr().out
