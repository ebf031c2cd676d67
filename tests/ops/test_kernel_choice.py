"""Which kernels a CPU gets: the rules (also for other CPUs than this machine's), the measurements
that `ort-aie tune` kept, and the settings that override both."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from ort_aie_ep import _native
from ort_aie_ep.cli import app
from ort_aie_ep.cli.tables import tuning_table
from ort_aie_ep.explain import tune as tuning_module
from ort_aie_ep.explain.tune import choose, forget, roles, tune
from ort_aie_ep.runtime.kernels import (
    Chosen,
    Tried,
    chosen_kernels,
    kernels_line,
    this_cpu_by_rule,
)

ISAS = ("portable", "avx2", "avx2_vnni", "avx512", "avx512_bf16", "amx")
# What a whole table takes over from the tables that it extends.
BASES = {
    "avx2_vnni": {"avx2"},
    "avx512_bf16": {"avx512"},
    "amx": {"avx512", "avx512_bf16"},
    "amx_standin": {"portable"},
    "avx512_bf16_standin": {"avx2"},
}
ONE_ROW = ("one row, int8", "one row, bf16")


def kernels_by_rule(vendor: str, isa: str, family: int = 0) -> tuple[Chosen, ...]:
    return tuple(Chosen(*fields) for fields in _native.kernel_rules(vendor, isa, family))


def variants(chosen: tuple[Chosen, ...]) -> dict[str, str]:
    return {one.role: one.variant for one in chosen}


def in_process(script: str, **environment: str) -> tuple[Any, str]:
    """What a script prints as JSON, and stderr. A process makes the choice only once."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={k: v for k, v in os.environ.items() if k != "ORT_AIE_ISA"} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout), done.stderr


SHOW_CHOICE = (
    "import json; from ort_aie_ep import _native; print(json.dumps(_native.kernel_choice()))"
)


# A vendor and a family of each kind of CPU that a rule tells apart.
ZEN3_ZEN4, ZEN5, AFTER_ZEN5 = ("amd", 25), ("amd", 26), ("amd", 27)
INTEL, UNKNOWN = ("intel", 6), ("other", 0)
CPUS = [ZEN3_ZEN4, ZEN5, AFTER_ZEN5, INTEL, UNKNOWN, ("amd", 0)]


def chosen_for(cpu: tuple[str, int], isa: str) -> dict[str, str]:
    vendor, family = cpu
    return variants(kernels_by_rule(vendor, isa, family))


@pytest.mark.parametrize("isa", ["avx512", "avx512_bf16"])
@pytest.mark.parametrize("cpu", CPUS)
def test_only_amd_from_zen_5_on_fetches_past_the_caches(isa: str, cpu: tuple[str, int]) -> None:
    of_memory = {role: chosen_for(cpu, isa)[role] for role in (*ONE_ROW, "lookups")}
    past = {role for role, variant in of_memory.items() if variant.endswith("-nta")}
    assert past == (set(of_memory) if cpu in (ZEN5, AFTER_ZEN5) else set())


def test_a_cpu_that_was_measured_gets_what_was_fastest_there() -> None:
    for cpu, isa, fastest in (
        (ZEN3_ZEN4, "avx512_bf16", "avx512-in-order"),
        (INTEL, "amx", "avx512-t1"),
    ):
        assert chosen_for(cpu, isa)["one row, int8"] == fastest


def test_dot_products_of_bfloat16_are_for_those_that_are_fast_at_them() -> None:
    for role in ("one row, bf16", "rows, bf16", "attention of prompts"):
        for cpu, isa, kernels in (
            (ZEN3_ZEN4, "avx512_bf16", "avx512_bf16"),
            (ZEN5, "avx512_bf16", "avx512_bf16"),
            (ZEN5, "avx512", "avx512"),
            (INTEL, "avx512_bf16", "avx512"),
        ):
            assert chosen_for(cpu, isa)[role].partition("-")[0] == kernels


@pytest.mark.parametrize("cpu", CPUS)
def test_tiles_are_for_many_rows_whoever_made_the_cpu(cpu: tuple[str, int]) -> None:
    with_tiles = {"rows, int8", "rows, bf16", "attention of prompts"}
    without, chosen = (chosen_for(cpu, isa) for isa in ("avx512_bf16", "amx"))
    assert {role for role, variant in chosen.items() if variant == "amx"} == with_tiles
    assert all(chosen[role] == without[role] for role in chosen.keys() - with_tiles)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("isa", ISAS)
def test_no_rule_chooses_a_stand_in(cpu: tuple[str, int], isa: str) -> None:
    assert not any(variant.endswith("_standin") for variant in chosen_for(cpu, isa).values())


@pytest.mark.parametrize("cpu", CPUS)
def test_avx_vnni_is_for_int8_on_cpus_without_avx512(cpu: tuple[str, int]) -> None:
    of_int8 = dict.fromkeys(("one row, int8", "rows, int8"), "avx2_vnni")
    assert chosen_for(cpu, "avx2_vnni") == chosen_for(cpu, "avx2") | of_int8
    assert "avx2_vnni" not in chosen_for(cpu, "avx512").values()


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("isa", ["portable", "avx2"])
def test_older_cpus_get_their_widest_instruction_set_for_all(
    cpu: tuple[str, int], isa: str
) -> None:
    assert set(chosen_for(cpu, isa).values()) == {isa}


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("isa", ISAS)
def test_every_rule_says_what_it_rests_on(cpu: tuple[str, int], isa: str) -> None:
    for one in kernels_by_rule(cpu[0], isa, cpu[1]):
        assert one.origin == "rule"
        assert one.why


def test_rules_want_a_vendor_and_an_instruction_set() -> None:
    with pytest.raises(ValueError, match=r"vendor .*via"):
        kernels_by_rule("via", "avx2")
    with pytest.raises(ValueError, match="sse9"):
        kernels_by_rule("amd", "sse9")


@pytest.mark.parametrize("isa", _native.available_isas())
def test_the_environment_forces_a_whole_table(isa: str) -> None:
    choice, _ = in_process(SHOW_CHOICE, ORT_AIE_ISA=isa)
    assert {(origin, why) for _, _, origin, why in choice} == {("forced", "ORT_AIE_ISA")}
    isas = {variant.split("-")[0] for _, variant, _, _ in choice}
    assert isa in isas
    assert isas <= {isa} | BASES.get(isa, set())


def test_every_chosen_variant_is_one_of_its_role() -> None:
    of_role = _native.kernel_variants()
    for one in chosen_kernels():
        assert one.variant in of_role[one.role]


def test_a_choice_in_one_line() -> None:
    rows = Chosen("rows, int8", "avx512", "rule", "the widest instruction set")
    lookups = Chosen("lookups", "avx512", "rule", "the widest instruction set")
    one_row = Chosen("one row, int8", "avx512-nta", "rule", "AMD: fetching past the caches")
    forced = Chosen("rows, int8", "avx2", "forced", "ORT_AIE_ISA")
    assert kernels_line([one_row, rows, lookups]) == (
        "avx512-nta (one row, int8), avx512 (rows, int8; lookups); by rules"
    )
    assert kernels_line([forced]) == "avx2; ORT_AIE_ISA"
    measured = Chosen("rows, int8", "avx2", "measured", "2026-11-22")
    assert kernels_line([measured]) == "avx2; measured on 2026-11-22"
    tried = Tried("one row, int8", 2, "avx512-t1", 40, 0.8)
    assert kernels_line([one_row], [tried]) == (
        "avx512-nta; by rules, by trials avx512-t1 (one row, int8; 2 threads)"
    )
    the_same = replace(tried, variant="avx512-nta")
    assert kernels_line([one_row], [the_same]) == kernels_line([one_row])


# --- what was measured ---


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache without a measurement; gives the file that a measurement would have."""
    monkeypatch.setenv("ORT_AIE_CACHE", str(tmp_path))
    monkeypatch.delenv("ORT_AIE_ISA", raising=False)
    return Path(_native.kernel_measurement()[0])


def another_than_by_rule() -> tuple[str, str]:
    """A role, and a variant of it that the rules do not choose for this CPU."""
    for one in this_cpu_by_rule():
        for variant in _native.kernel_variants()[one.role]:
            if variant != one.variant:
                return one.role, variant
    pytest.skip("this CPU can run but one variant of each role")


def chosen_with(cache: Path, **environment: str) -> tuple[dict[str, list[str]], str]:
    choice, errors = in_process(SHOW_CHOICE, ORT_AIE_CACHE=str(cache.parent), **environment)
    return {role: rest for role, *rest in choice}, errors


def test_a_measurement_lies_in_the_cache_by_the_cpus_name(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache.parent == tmp_path
    assert cache.name.startswith("kernels-")
    monkeypatch.delenv("ORT_AIE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert _native.kernel_measurement()[0] == f"/somewhere/ort_aie_ep/{cache.name}"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/me")
    assert _native.kernel_measurement()[0] == f"/home/me/.cache/ort_aie_ep/{cache.name}"
    monkeypatch.delenv("HOME")
    assert _native.kernel_measurement()[:2] == ("", "none")


def test_a_measurement_overrides_the_rules_for_its_roles_alone(cache: Path) -> None:
    role, variant = another_than_by_rule()
    cache.write_text(_native.kernel_measurement_text("2026-11-22", {role: variant}))
    chosen, errors = chosen_with(cache)
    assert errors == ""
    assert chosen[role] == [variant, "measured", "2026-11-22"]
    others = {one.role: one.variant for one in this_cpu_by_rule() if one.role != role}
    assert {name: chosen[name][:2] for name in others} == {
        name: [one, "rule"] for name, one in others.items()
    }


def test_a_forced_table_passes_over_a_measurement(cache: Path) -> None:
    role, variant = another_than_by_rule()
    cache.write_text(_native.kernel_measurement_text("2026-11-22", {role: variant}))
    chosen, _ = chosen_with(cache, ORT_AIE_ISA="portable")
    assert {tuple(one[:2]) for one in chosen.values()} == {("portable", "forced")}


@pytest.mark.parametrize(
    ("line", "why"), [(1, "it is for another CPU"), (2, "it is for another version's kernels")]
)
def test_a_measurement_of_something_else_does_not_count(cache: Path, line: int, why: str) -> None:
    role, variant = another_than_by_rule()
    lines = _native.kernel_measurement_text("2026-11-22", {role: variant}).split("\n")
    lines[line] += "0"
    cache.write_text("\n".join(lines))
    assert _native.kernel_measurement()[1:3] == ("stale", why)
    chosen, errors = chosen_with(cache)
    assert errors == ""
    assert chosen[role][1] == "rule"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda lines: [], "line 1 is not"),
        (lambda lines: ["ort_aie_ep kernels 1", *lines[1:]], "line 1 is not"),
        (lambda lines: [*lines[:3], "measured: today", *lines[4:]], "line 4 is not"),
        (lambda lines: lines[:3], "line 4 is not"),
        (lambda lines: lines[:-1], "does not name a role"),
        (lambda lines: [*lines[:4], "dancing: avx2", "end"], "line 5 does not name a role"),
        (lambda lines: [*lines[:4], "rows, int8: sse9", "end"], "line 5 does not name a variant"),
        (
            lambda lines: [*lines[:4], "rows, int8: avx512-nta", "end"],
            "line 5 does not name a variant",
        ),
        (lambda lines: [*lines[:4], "samples: rows, int8; 2 threads; sse9: 900", "end"], "line 5"),
        (lambda lines: [*lines[:4], "samples: lookups; two threads; avx2: 900", "end"], "line 5"),
        (lambda lines: [*lines[:4], "samples: lookups; 2 threads; avx2: 1.5", "end"], "line 5"),
        (lambda lines: [*lines[:4], "samples: lookups; 2 threads", "end"], "line 5"),
        (lambda lines: [*lines, "more"], "it continues after its end"),
        (lambda lines: ["x" * 70000], "it is too long"),
    ],
)
def test_what_is_not_a_measurement_is_said_once_and_ignored(
    cache: Path, change: Callable[[list[str]], list[str]], why: str
) -> None:
    role, variant = another_than_by_rule()
    lines = _native.kernel_measurement_text("2026-11-22", {role: variant}).splitlines()
    cache.write_text("".join(f"{line}\n" for line in change(lines)))
    assert _native.kernel_measurement()[1] == "malformed"
    assert why in _native.kernel_measurement()[2]
    chosen, errors = chosen_with(cache)
    assert errors.count("\n") == 1
    assert f"{cache} " in errors
    assert why in errors
    assert chosen[role][1] == "rule"


def test_a_measurement_that_is_not_a_file_is_not_waited_for(cache: Path) -> None:
    os.mkfifo(cache)
    assert _native.kernel_measurement()[1:3] == (
        "malformed", "it is not a regular file, or cannot be read"
    )  # fmt: skip


def test_what_is_kept_must_be_a_variant_of_its_role() -> None:
    with pytest.raises(ValueError, match="dancing"):
        _native.kernel_measurement_text("2026-11-22", {"dancing": "avx2"})
    with pytest.raises(ValueError, match="line 5"):
        _native.kernel_measurement_text("2026-11-22", {"rows, int8": "sse9"})


def test_the_rules_choice_stays_where_nothing_is_much_faster() -> None:
    assert choose({"a": 1.0, "b": 0.98}, "a", 0.03) == "a"
    assert choose({"a": 1.0, "b": 0.96}, "a", 0.03) == "b"
    assert choose({"a": 1.0, "b": 0.9}, "a", 0.15) == "a"
    assert choose({"b": 1.0, "c": 0.9}, "a", 0.15) == "c"


def test_nothing_is_kept_of_a_busy_machine(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuning_module.why_busy(0.99, [30e9, 33e9]) == ""
    assert "took 40 % of the CPU's time" in tuning_module.why_busy(0.6, [30e9, 33e9])
    assert "from 20.0 to 33.0 GB/s" in tuning_module.why_busy(0.99, [20e9, 33e9])
    monkeypatch.setattr(tuning_module, "why_busy", lambda *_: "others work")
    assert tune(1, 0.01, weights=1).busy == "others work"
    assert not cache.exists()


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nothing else ran here."""
    monkeypatch.setattr(tuning_module, "why_busy", lambda *_: "")


@pytest.mark.usefixtures("idle")
def test_tune_keeps_what_it_found_and_doctor_shows_it(cache: Path) -> None:
    if not roles():
        pytest.skip("this CPU can run but one variant of each role")
    told: list[tuple[int, int, str]] = []
    tuning = tune(1, 0.01, lambda *call: told.append(call), weights=1)
    assert tuning.file == cache
    chosen = {trial.role: trial.variant for trial in tuning.trials if trial.chosen}
    assert list(chosen) == roles() == list(dict.fromkeys(what for _, _, what in told))
    assert told[-1][0] == told[-1][1] == len(roles())
    assert all(0 < trial.seconds < 60 for trial in tuning.trials)
    text = io.StringIO()
    Console(file=text, width=120).print(tuning_table(tuning))
    shown = [line.split() for line in text.getvalue().splitlines()]
    of_table = [variant for variant in chosen.values() if any(variant in line for line in shown)]
    assert of_table == list(chosen.values())
    assert sum("chosen" in " ".join(line) for line in shown) == len(chosen)
    assert [path.name for path in cache.parent.iterdir()] == [cache.name]  # nothing else is left

    kept, errors = chosen_with(cache)
    assert errors == ""
    assert {role: kept[role][:2] for role in chosen} == {
        role: [variant, "measured"] for role, variant in chosen.items()
    }
    found = {one["name"]: one["found"] for one in json.loads(succeeded("doctor", "--json"))["host"]}
    role, variant = next(iter(chosen.items()))
    assert found[f"kernels: {role}"].startswith(f"{variant} (measured by ort-aie tune on 20")
    assert found["kernels measured"].endswith(str(cache))

    assert forget() == cache
    assert not cache.exists()
    assert forget() is None


@pytest.mark.usefixtures("idle")
def test_tune_ends_at_its_roles(
    cache: Path, monkeypatch: pytest.MonkeyPatch, ends: Callable[[str], dict[str, str]]
) -> None:
    # With weights too small to measure anything, but fast.
    monkeypatch.setattr(tuning_module, "tune", partial(tune, weights=1))
    result = CliRunner().invoke(app, ["tune", "--seconds", "0.1", "--threads", "1"])
    assert result.exit_code == 0, result.output
    count = len(roles())
    assert ends(result.stderr).get("tune") == (
        f"{count} role{'s' * (count > 1)}" if count else None
    )
    assert f"{cache}" in result.stderr


def test_tune_measures_with_as_many_threads_as_sessions_have(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not with one thread for each of two that share a core.
    monkeypatch.setattr(tuning_module, "physical_cores", lambda: 3)
    monkeypatch.setattr(tuning_module, "roles", list)
    assert tune(threads=None, seconds=0.01, weights=1).threads == 3
    assert cache.exists()


def test_doctor_says_why_a_measurement_does_not_count(cache: Path) -> None:
    cache.write_text("something")
    host = {one["name"]: one for one in json.loads(succeeded("doctor", "--json"))["host"]}
    assert host["kernels measured"]["found"] == ""
    assert "line 1" in host["kernels measured"]["remedy"]
    assert "ort-aie tune" in host["kernels measured"]["remedy"]


def succeeded(*words: str) -> str:
    """What a command prints, in its own process: each process makes the choice once."""
    command = [sys.executable, "-m", "ort_aie_ep", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
