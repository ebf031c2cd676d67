"""Cached streams: patched ones equal fresh ones, and only words that may change are patched."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_checks import call, layered, manifest, rounds

from ort_aie_ep import _npu


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(2, 40), st.integers(0, 2), st.integers(0, 3)),
        min_size=1,
        max_size=12,
    )
)
@settings(max_examples=60)
def test_patched_streams_equal_fresh_ones(walk: list[tuple[int, int, int, int]]) -> None:
    s = layered()
    text = json.dumps(manifest(s))
    cache = _npu.StreamCache(text, capacity=3)
    kept: dict[int, list[np.ndarray]] = {}
    for n, k, argument, offset in walk:
        plan = [call(s, {"n": n, "k": k}, x=(argument, 4 * offset))]
        found = cache.get(plan)
        fresh = _npu.build(text, plan)
        assert len(found["runs"]) == len(fresh)
        for a, b in zip(found["runs"], fresh, strict=True):
            np.testing.assert_array_equal(a["words"], b["words"])
            assert a["predicted_seconds"] == b["predicted_seconds"]
            assert a["sources"] == b["sources"]
            assert a["buffers"] == b["buffers"]
        words = [run["words"] for run in fresh]
        if found["outcome"] == "encoded":
            assert found["id"] not in kept
        else:
            # Exactly the words within the reported ranges changed, and these may change.
            before = kept[found["id"]]
            changed = set()
            for run, begin, end in found["changed"]:
                changed |= {(run, word) for word in range(begin, end)}
            differing = {
                (run, int(word))
                for run, (old, new) in enumerate(zip(before, words, strict=True))
                for word in np.flatnonzero(old != new)
            }
            assert changed == differing
            assert all(word in fresh[run]["variable"] for run, word in changed)
            assert found["outcome"] == "patched" or not changed
        kept[found["id"]] = words


def test_other_buffers_of_a_divided_plan_are_the_same_words() -> None:
    s = layered()
    cache = _npu.StreamCache(json.dumps(manifest(s)))
    found = [cache.get([call(s, {"n": 2, "k": 8}, x=(x, 0), y=(5, 0))]) for x in (6, 7)]
    assert [f["runs"][0]["buffers"] for f in found] == [[6, 5], [7, 5]]
    assert found[1]["id"] == found[0]["id"]
    assert not found[1]["changed"]


def test_the_stream_used_longest_ago_is_dropped() -> None:
    s = layered()
    cache = _npu.StreamCache(json.dumps(manifest(s)), capacity=2)

    def outcome(n: int) -> str:
        return cache.get([call(s, {"n": n, "k": 8})])["outcome"]

    assert [outcome(n) for n in (1, 2, 1, 3)] == ["encoded", "encoded", "same", "encoded"]
    assert [outcome(n) for n in (1, 2)] == ["same", "encoded"]
    with pytest.raises(ValueError, match="capacity"):
        _npu.StreamCache(json.dumps(manifest(s)), capacity=0)


def test_of_a_plan_of_many_what_differs_is_patched() -> None:
    s = layered()
    text = json.dumps(manifest(s))
    cache = _npu.StreamCache(text)

    def plan(lengths: list[int], y: int = 0) -> list[dict[str, Any]]:
        return [call(s, {"n": 2, "k": k}, y=(1, y + 64 * i)) for i, k in enumerate(lengths)]

    first = cache.get(plan([8] * 20))
    assert first["outcome"] == "encoded"
    for changed in (plan([8] * 7 + [9] * 2 + [8] * 11), plan([8] * 20, y=4), plan([8] * 19 + [9])):
        found = cache.get(changed)
        assert (found["outcome"], found["id"]) == ("patched", first["id"])
        for a, b in zip(found["runs"], _npu.build(text, changed), strict=True):
            np.testing.assert_array_equal(a["words"], b["words"])
            assert {k: a[k] for k in ("predicted_seconds", "sources", "buffers")} == {
                k: b[k] for k in ("predicted_seconds", "sources", "buffers")
            }
    # A plan with other operations is another stream, and the first stays unchanged.
    other = plan([8] * 20)
    other[10]["parameters"]["n"] = 3
    assert cache.get(other)["outcome"] == "encoded"
    assert cache.get(plan([8] * 19 + [9]))["outcome"] == "same"


def test_a_patch_that_makes_a_run_too_long_divides_it_anew() -> None:
    s = rounds()
    text = json.dumps(manifest(s))
    cache = _npu.StreamCache(text)

    def plan(cycles: int) -> list[dict[str, Any]]:
        return [call(s, {"rounds": 2, "cycles": cycles}) for _ in range(4)]

    assert len(cache.get(plan(1000))["runs"]) == 1
    assert cache.get(plan(2000))["outcome"] == "patched"
    found = cache.get(plan(120_000_000))  # eight rounds of 0.12 s
    assert found["outcome"] == "encoded"
    assert [round(run["predicted_seconds"], 6) for run in found["runs"]] == [0.4801, 0.4801]


def test_streams_share_a_memory_and_the_one_used_longest_ago_makes_room() -> None:
    s = layered()
    text = json.dumps(manifest(s))
    memory = _npu.StreamMemory(2 * _npu.STREAM_UNIT)
    one, other = (_npu.StreamCache(text, memory=memory) for _ in range(2))

    def outcome(cache: _npu.StreamCache, n: int) -> str:
        return cache.get([call(s, {"n": n, "k": 8})])["outcome"]

    # Each is one run, and its few words take one unit.
    assert [outcome(one, 1), outcome(other, 2), outcome(one, 1)] == ["encoded", "encoded", "same"]
    assert (memory.used, memory.dropped) == (2 * _npu.STREAM_UNIT, 0)
    assert [outcome(one, 3), outcome(one, 1), outcome(other, 2)] == ["encoded", "same", "encoded"]
    assert (memory.used, memory.dropped) == (2 * _npu.STREAM_UNIT, 2)
    # A cache's streams go with the cache.
    del one
    assert memory.used == _npu.STREAM_UNIT
    assert outcome(other, 2) == "same"


def test_a_stream_larger_than_the_memory_is_named_and_changes_nothing() -> None:
    s = rounds()
    memory = _npu.StreamMemory(_npu.STREAM_UNIT)
    cache = _npu.StreamCache(json.dumps(manifest(s)), memory=memory)

    def plan(count: int) -> list[dict[str, Any]]:
        return [call(s, {"rounds": 2, "cycles": 120_000_000}) for _ in range(count)]

    assert len(cache.get(plan(2))["runs"]) == 1
    with pytest.raises(ValueError, match=r"4 invocations, .* 65536 bytes in 2 runs"):
        cache.get(plan(4))
    assert (cache.get(plan(2))["outcome"], memory.used) == ("same", _npu.STREAM_UNIT)


def test_a_plan_that_is_refused_leaves_the_cache_as_it_was() -> None:
    s = layered()
    cache = _npu.StreamCache(json.dumps(manifest(s)))
    plan = [call(s, {"n": 1, "k": 8})]
    cache.get(plan)
    with pytest.raises(ValueError, match="touches bytes"):
        cache.get([call(s, {"n": 1, "k": 1 << 20})])
    assert cache.get(plan)["outcome"] == "same"
