"""Trials of kernels on the work of sessions: they change no bit, and what follows from them."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from op_models import open_session
from projection_calls import Weights, activations, make_weights, q4nx_model

from ort_aie_ep import _native
from ort_aie_ep.runtime.kernels import chosen_kernels, this_cpu_by_rule, tried_kernels

ROLES = {"int8": "one row, int8", "bf16": "one row, bf16"}
BY_RULE = {one.role: one.variant for one in this_cpu_by_rule()}
CANDIDATES = _native.kernel_candidates(ROLES["int8"], BY_RULE[ROLES["int8"]])
LEFT_TO_RULES = {one.role for one in chosen_kernels() if one.origin == "rule"}
NEED_CANDIDATES = pytest.mark.skipif(
    not CANDIDATES or ROLES["int8"] not in LEFT_TO_RULES, reason="there is nothing to try"
)
# More than the 4 MB from which on a projection may be a trial, and an odd number of rows of blocks.
N, K = 8200, 1024
EVERY = 127  # projections for a trial


@pytest.fixture(scope="module")
def large() -> Weights:
    few = make_weights(32, K)
    return replace(few, n=N, q4nx=np.tile(few.q4nx, (-(-N // 32), 1, 1)))


# --- candidates give the same bits ---


def classes(role: str) -> list[list[str]]:
    """The variants of a role, those that give the same bits together."""
    found: list[list[str]] = []
    for variant in _native.kernel_variants()[role]:
        if not any(variant in some for some in found):
            found.append([variant, *_native.kernel_candidates(role, variant)])
    return [some for some in found if len(some) > 1]


@pytest.mark.parametrize("numerics", ["int8", "bf16"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_candidates_give_the_same_bits(bits: int, numerics: str) -> None:
    n, k = 70, 600
    role = "lookups" if bits == 2 else ROLES[numerics]
    for symmetric in (False, True):
        w = make_weights(n, k, bits=bits, zero_points=not symmetric)
        a = activations(64, k)
        for first, *others in classes(role):
            for rows in range(1, 65):
                y = _native.project(a[:rows], w.q4nx, n, numerics, first, symmetric=symmetric)
                for other in others:
                    its = _native.project(a[:rows], w.q4nx, n, numerics, other, symmetric=symmetric)
                    np.testing.assert_array_equal(its, y, f"{other}, {rows} rows, {symmetric=}")


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_dot_products_of_four_bytes_give_the_bits_of_those_of_two(bits: int) -> None:
    n, k = 70, 600
    runnable = _native.kernel_variants()[ROLES["int8"]]
    with_four = {"avx2_vnni", "avx2_vnni_standin"} & set(runnable)
    for isa, symmetric, gemm in product(sorted(with_four), (False, True), (False, True)):
        w = make_weights(n, k, bits=bits, zero_points=not symmetric)
        a = activations(13, k)
        for rows in range(1, 14):
            y, expected = (
                _native.project(a[:rows], w.q4nx, n, "int8", one, symmetric=symmetric, gemm=gemm)
                for one in (isa, "avx2")
            )
            np.testing.assert_array_equal(y, expected, f"{isa}, {rows} rows, {symmetric=}, {gemm=}")


# --- from samples to a choice ---

# One thread on an AMD EPYC (Zen 3), while six others wanted its two cores. What prefetches is as
# fast as the rule there.
ALIKE = [
    [1012, 1161, 1164, 9999, 267, 1030, 1071, 882, 901, 956, 1141, 9999, 958, 156, 883, 1202],
    [135, 838, 1005, 1013, 1050, 1085, 5198, 9999, 162, 849, 938, 942, 1030, 1074, 1161, 9999],
    [1239, 68, 994, 7434, 9999, 117, 170, 1073, 946, 897, 952, 7215, 1081, 1011, 173, 178],
    [977, 1154, 1280, 951, 929, 230, 1044, 668, 137, 1086, 1094, 1007, 159, 190, 981, 852],
    [158, 168, 840, 936, 1077, 1122, 1145, 1246, 173, 784, 809, 982, 1022, 1104, 5529, 9999],
]
# The same with a rule that did not prefetch, which made a token take 1.6 times as long. The first
# two runs of a process.
RULE_IS_SLOW = [
    [[3287, 497, 784, 3536, 150, 93, 612, 609], [640, 650, 742, 157, 473, 1924, 576, 76]],
    [[157, 168, 606, 607, 648, 655, 3585, 7548], [111, 520, 543, 587, 622, 774, 789, 3806]],
    [[842, 543, 656, 185, 578, 589, 192, 4131], [806, 571, 620, 185, 611, 572, 131, 3651]],
    [[157, 3721, 679, 92, 150, 146, 561, 72], [641, 159, 652, 8105, 684, 594, 718, 672]],
    [[82, 107, 574, 602, 626, 646, 659, 3974], [87, 531, 568, 582, 607, 671, 672, 4671]],
]


def test_what_a_busy_machine_recorded() -> None:
    assert _native.fastest_candidate(ALIKE) is None
    for runs in (1, 2):
        assert _native.fastest_candidate([after(*of[:runs]) for of in RULE_IS_SLOW]) is not None


def after(*runs: list[int]) -> list[int]:
    kept: list[int] = []
    for run in runs:
        kept = _native.add_run(run, kept)
    return kept


def around(ratio: float, spread: float, count: int, seed: int) -> list[int]:
    rng = np.random.default_rng(seed)
    return [int(1000 * x) for x in rng.normal(ratio, spread, count)]


def test_a_few_samples_decide_nothing() -> None:
    assert _native.fastest_candidate([]) is None
    assert _native.fastest_candidate([[], [500] * 7]) is None
    assert _native.fastest_candidate([[], [500] * 8]) == 1


def test_a_candidate_must_be_faster_than_the_rule_by_more_than_its_spread() -> None:
    assert _native.fastest_candidate([[970] * 64]) is None
    assert _native.fastest_candidate([[960] * 64]) == 0
    assert _native.fastest_candidate([around(0.9, 0.05, 64, 1)]) == 0
    assert _native.fastest_candidate([around(0.9, 0.3, 64, 1)]) is None


def test_another_candidate_must_be_faster_by_more_than_the_spreads_of_both() -> None:
    good, better = around(0.8, 0.02, 64, 1), around(0.78, 0.02, 64, 2)
    assert _native.fastest_candidate([good, better]) == 0
    assert _native.fastest_candidate([good, around(0.6, 0.02, 64, 3)]) == 1


def test_a_third_of_the_samples_may_be_nonsense() -> None:
    slow, fast = [9999] * 15, [1] * 15
    assert _native.fastest_candidate([[*around(0.7, 0.02, 49, 1), *slow]]) == 0
    assert _native.fastest_candidate([[*around(1, 0.02, 49, 1), *fast]]) is None


def test_a_run_counts_for_eight_samples_however_long_it_was() -> None:
    long = around(0.9, 0.1, 10_000, 1)
    kept = after(long)
    assert len(kept) == 8
    assert abs(np.median(kept) - np.median(long)) < 20
    assert after([900, 950], [910]) == [900, 950, 910]
    assert len(after(*[[1000] * 8] * 20)) == 64


def test_a_later_run_corrects_one_on_a_busy_machine() -> None:
    busy = [500] * 1000
    assert _native.fastest_candidate([after(busy)]) == 0
    assert _native.fastest_candidate([after(busy, [1000] * 8)]) is None
    # A good choice survives one as well.
    good = [around(0.7, 0.03, 50, seed) for seed in range(7)]
    assert _native.fastest_candidate([after(*good, [2000] * 1000)]) == 0
    # What was true once is forgotten, when the machine is another one under the same name.
    assert _native.fastest_candidate([after(*good, *[[1200] * 8] * 8)]) is None


def test_a_machine_that_is_always_busy_keeps_the_rules() -> None:
    rng = np.random.default_rng(5)
    for seed in range(20):
        noise = [[int(1000 * 2 ** rng.normal(0, 1)) for _ in range(50)] for _ in range(8)]
        assert _native.fastest_candidate([after(*noise)]) is None, seed


# --- the file ---


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORT_AIE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ORT_AIE_TUNE", "on")
    return Path(_native.kernel_measurement()[0])


def keep(file: Path, ratios: list[int], threads: int = 1, candidate: str | None = None) -> None:
    role = ROLES["int8"]
    _native.keep_samples(str(file), [(role, threads, candidate or CANDIDATES[0], ratios)])


@NEED_CANDIDATES
def test_samples_are_kept_for_later_processes(file: Path) -> None:
    keep(file, [900] * 4, threads=2)
    keep(file, [900] * 4, threads=2)
    keep(file, [800] * 4, threads=1)
    one, two = tried_kernels()
    assert (one.threads, one.variant, one.samples) == (1, BY_RULE[ROLES["int8"]], 4)
    assert (two.threads, two.variant, two.samples, two.time) == (2, CANDIDATES[0], 8, 0.9)
    assert _native.kernel_measurement()[1:] == ("good", "", "")


@NEED_CANDIDATES
def test_processes_add_to_the_same_file(file: Path) -> None:
    # Locks are those of open files, so that threads are like processes.
    with ThreadPoolExecutor(3) as writers:
        list(writers.map(lambda _: keep(file, [900]), range(15)))
    assert [one.samples for one in tried_kernels()] == [15]


@NEED_CANDIDATES
def test_what_tune_measured_outranks_samples(file: Path) -> None:
    keep(file, [500] * 8)
    role, rule = ROLES["int8"], BY_RULE[ROLES["int8"]]
    text = file.read_text().replace("measured: no\n", f"measured: 2026-11-22\n{role}: {rule}\n")
    file.write_text(text)
    script = "import json; from ort_aie_ep import _native; print(json.dumps({}))"
    script = script.format("[_native.kernel_choice(), _native.kernel_samples()]")
    choice, samples = json.loads(subprocess.check_output([sys.executable, "-c", script]))
    assert [one[1:3] for one in choice if one[0] == role] == [[rule, "measured"]]
    assert samples == []


@NEED_CANDIDATES
@pytest.mark.parametrize("what", ["a file", "something else", "no folder"])
def test_where_nothing_can_be_kept_nothing_is(
    file: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "a file":  # in place of the folder
        file.parent.write_text("a file")
    elif what == "something else":  # in place of the samples
        file.parent.mkdir()
        file.write_text("something else")
    else:
        for name in ("ORT_AIE_CACHE", "HOME", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        assert _native.kernel_measurement()[0] == ""
    path = _native.kernel_measurement()[0]
    _native.keep_samples(path, [(ROLES["int8"], 1, CANDIDATES[0], [900])])
    assert tried_kernels() == ()
    if what == "something else":
        assert file.read_text() == "something else"


@NEED_CANDIDATES
def test_samples_of_other_kernels_are_replaced(file: Path) -> None:
    keep(file, [900] * 8)
    lines = file.read_text().split("\n")
    file.write_text("\n".join([*lines[:2], "kernels: others", *lines[3:]]))
    assert tried_kernels() == ()
    keep(file, [900])
    assert [one.samples for one in tried_kernels()] == [1]


# --- trials ---


@NEED_CANDIDATES
def test_a_trial_changes_no_bit_and_uses_what_was_found(file: Path, large: Weights) -> None:
    a, best = activations(1, K)[0], CANDIDATES[-1]
    y, variant = _native.run_with_trials(a, large.q4nx, N, EVERY - 1)
    assert variant == BY_RULE[ROLES["int8"]]
    assert not file.exists()  # no trial yet
    for _ in range(2):
        keep(file, [1] * 8, candidate=best)
    # Sessions learn how many threads they have by their first trial.
    for calls, expected in ((EVERY - 1, BY_RULE[ROLES["int8"]]), (EVERY, best)):
        again, variant = _native.run_with_trials(a, large.q4nx, N, calls)
        assert variant == expected
        np.testing.assert_array_equal(again, y)
    assert [one.samples for one in tried_kernels()] == [17]


@NEED_CANDIDATES
@pytest.mark.parametrize("tune", ["on", "off"])
def test_a_session_keeps_its_samples_when_it_closes(
    file: Path, large: Weights, tune: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORT_AIE_TUNE", tune)
    a = activations(1, K)
    opened = open_session(q4nx_model(large, a, accuracy_level=4), threads=2)
    results = [opened.run(None, {"A": a})[0] for _ in range(2 * EVERY)]
    for y in results:
        np.testing.assert_array_equal(y, results[0])
    assert not file.exists()
    del opened
    gc.collect()
    assert file.exists() == (tune == "on")
    if tune == "on":
        assert sum(one.samples for one in tried_kernels()) == 2
