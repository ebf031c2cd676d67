"""What `bench --peers` makes of measurements: bounds, ratios, goals, tables, files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from ort_aie_ep.cli.tables import sheet_tables
from ort_aie_ep.tools.bench import conditions
from ort_aie_ep.tools.bench.bench import Comparison, Speed
from ort_aie_ep.tools.bench.peers import plot
from ort_aie_ep.tools.bench.peers import report as reports
from ort_aie_ep.tools.bench.peers.engines import CPU_EP, OURS, OURS_FLOAT
from ort_aie_ep.tools.bench.peers.report import Goal, fit_growth
from ort_aie_ep.tools.bench.peers.results import Batches, Growth, Measured, Results, Starts
from ort_aie_ep.tools.bench.peers.sheets import markdown, sheets
from ort_aie_ep.tools.bench.statistics import median, ratio

HELD = conditions.Conditions(
    conditions.Machine("CPU", "AuthenticAMD, family 26", ("avx2",), 2, "L2 1M", 0, True, "Linux"),
    date="2026-11-22",
    command="ort-aie bench MODEL --peers",
    model="tiny",
    versions={"onnxruntime": "1.32.0"},
    plan="2 threads",
)


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


def measured(engine: str, decode: float, prefill: float, seconds: float = 1.0) -> Measured:
    return Measured(
        engine,
        settings={"threads": "2", "KV": "float16"},
        bits=4.5,
        weight_bytes=500_000_000,
        file_bytes=600_000_000,
        starts=Starts(
            {"warm": [seconds / 2] * 5, "cold": [seconds] * 5},
            {"warm": [seconds] * 5, "cold": [2 * seconds] * 5},
            kept=0,
        ),
        memory={"peak": 900_000_000, "anonymous": 300_000_000, "files": 580_000_000},
        speeds={
            "decode": {64: [decode] * 7, 512: [decode / 2] * 7},
            "prefill": {512: [prefill] * 7},
        },
    )


@pytest.fixture
def results() -> Results:
    slow = measured("llama.cpp, no FA", 20, 210, 4)
    slow.speeds["decode"][64] = [20, 22]
    found = (
        measured(OURS, 60, 600),
        measured(OURS_FLOAT, 55, 700),
        measured(CPU_EP, 30, 100, 5),
        measured("llama.cpp", 50, 200, 3),
        slow,
        measured("OpenVINO", 40, 400, 0.9),
    )
    # 10 ms, plus 1 µs for each token of context, whose 32 kB take 0.8 µs at 40 GB/s.
    seconds = {n: [0.01 + 1e-6 * n] * 7 for n in (512, 2048, 4096)}
    grown = Growth(seconds, cache_bytes=32_000, read_bytes_per_second=[40e9] * 7)
    left_out = {"OpenVINO GenAI": "not installed: pip install other"}
    return Results(found, left_out, [40e9] * 7, 100_000_000, 4128, grown)


def goal(results: Results, words: str) -> Goal:
    return next(g for g in reports.report(results).goals if g.what.startswith(words))


def test_ort_aie_ep_is_compared_with_the_best_peer_of_each_column(results: Results) -> None:
    report = reports.report(results)
    ratios = {(r.phase, r.length): r for r in report.ratios}
    assert ratios["decode", 64].peer == "llama.cpp"
    assert ratios["decode", 64].ratio.value == pytest.approx(1.2)
    assert ratios["prefill", 512].peer == "OpenVINO"
    assert ratios["prefill", 512].ratio.value == pytest.approx(1.5)
    warm, cold = report.start_ratios
    assert (warm.state, warm.peer, cold.state) == ("warm", "OpenVINO", "cold")
    assert warm.first_token.value == pytest.approx(1 / 0.9)
    assert warm.load is not None
    assert warm.load.value == pytest.approx(0.2)


def test_what_was_left_out_counts_where_all_that_beat_it_failed(results: Results) -> None:
    some = replace(results, measured=(results.measured[0], results.measured[4]))
    ratios = {(r.phase, r.length): r for r in reports.report(some).ratios}
    first = ratios["decode", 64]
    assert (first.peer, first.ratio.value) == ("llama.cpp, no FA", pytest.approx(60 / 21, rel=0.01))
    assert "| ort_aie_ep / best peer |" in markdown(reports.report(some), HELD)


def test_growth_is_the_slope_over_reading_the_cache_once(results: Results) -> None:
    assert results.growth is not None
    fit = fit_growth(results.growth)
    assert fit.start == pytest.approx(0.01)
    assert fit.slope == pytest.approx(1e-6)
    assert (fit.ratio.low, fit.ratio.value, fit.ratio.high) == pytest.approx((1.25, 1.25, 1.25))


def test_bounds_of_growth_hold_it_where_rounds_scatter() -> None:
    generator = np.random.default_rng(0)
    lengths = (512, 4096, 16384, 32768)
    noise = 1 + 0.05 * generator.standard_normal((4, 15))
    seconds = {n: list((0.01 + 1e-6 * n) * row) for n, row in zip(lengths, noise, strict=True)}
    fit = fit_growth(Growth(seconds, 40_000, [40e9] * 15))
    assert fit.ratio.low < 1 < fit.ratio.high
    assert fit.ratio.low < fit.ratio.value < fit.ratio.high


def test_goals_are_met_where_the_bad_bound_meets_them(results: Results) -> None:
    # 60 of 50 and 30 of 25, 600 of 400 tokens a second
    assert goal(results, "ahead of the best peer in every column").met
    assert goal(results, "decode at 64: at least 1.4").met is False
    assert goal(results, "prefill at 512: at least 1.3").met
    assert goal(replace(results, amx=True), "prefill at 512: at least 2").met is False
    # 60 tokens a second of 500 MB each are 30 GB/s, 75 % of 40.
    share = goal(results, "decode at the shortest context: at least 90%")
    assert share.measured is not None
    assert (share.measured.value, share.met) == (pytest.approx(75), False)
    assert goal(results, "session load, warm: under 0.25").met
    assert goal(results, "process start to first token, warm").met is False
    assert goal(results, "cost of context: at most 1.2").met is False
    # 1.1 · 600 + 100 + 200 MB
    memory = goal(results, "peak memory")
    assert memory.met
    assert "300 anonymous, 580 of files. Limit 960" in memory.detail
    # The median reaches it, the lower bound does not.
    results.measured[0].speeds["decode"][64][:3] = [48] * 3
    assert goal(results, "ahead of the best peer in every column").met is False


def test_goals_that_were_not_measured_are_listed(results: Results) -> None:
    warm = replace(results.measured[2], starts=replace(results.measured[2].starts, kept=0.7))
    unknown = replace(results.measured[0], memory={"peak": 0, "anonymous": 0, "files": 0})
    some = replace(results, measured=(unknown, results.measured[1], warm), growth=None)
    assert goal(some, "decode at 4096, KV of any type: at least 2 ×").met is None
    assert goal(some, "4 sequences in a call").met is None
    assert goal(some, "a token of the demonstration model").met is None
    assert goal(some, "prefill at 2048").met is None
    assert goal(some, "peak memory").met is None
    assert goal(some, "cost of context").met is None
    assert goal(some, "process start to first token, warm").met is not None
    cold = goal(some, "process start to first token, cold")
    assert (cold.met, cold.detail) == (None, "not cold: up to 70% of a model stayed in memory")
    assert "70% of ORT CPU EP" in markdown(reports.report(some), HELD)


def test_several_rows_and_the_demonstration_have_goals(results: Results) -> None:
    # 10 ms a call, a tenth of it for each row beyond the first.
    seconds = {n: [0.01 * (1 + (n - 1) / 10)] * 7 for n in (1, 4, 8)}
    slower = {n: [s * n for s in rounds] for n, rounds in seconds.items()}
    rows = Batches({OURS: {"sequences": seconds, "tokens of one": slower}})
    speed = Comparison("decode", 256, Speed(9, 8, 10), Speed(4, 4, 4), Speed(2.25, 1.9, 2.5))
    some = replace(results, batches=rows, demonstration=speed)
    cost = goal(some, "4 sequences in a call: at most 1.3")
    assert cost.measured is not None
    assert (cost.measured.value, cost.met) == (pytest.approx(1.3), True)
    assert goal(some, "4 tokens of one in a call: at most 1.3").met is False
    # The median reaches it, the least does not.
    assert goal(some, "a token of the demonstration model: at least 2").met is False
    text = markdown(reports.report(some), HELD)
    assert "| ort_aie_ep, n sequences | 10.00 (10.00–10.00) | 1.30 (1.30–1.30) | 1.70 (" in text
    assert "| ort_aie_ep / ORT CPU EP | 2.25 | 1.90 | 2.50 |" in text


def test_another_variant_of_ort_aie_ep_may_reach_the_goal_of_long_contexts(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "COMPARED", (OURS, OURS_FLOAT))
    for m, speed in zip(results.measured, (60, 110, 30, 50, 20, 40), strict=True):
        m.speeds["decode"][4096] = [speed] * 7
    found = goal(results, "decode at 4096, KV of any type: at least 2")
    assert (found.met, found.detail) == (True, f"× llama.cpp, {OURS_FLOAT}")
    assert goal(results, "decode at 4096: at least 1.4").met is False


def test_tables_show_speeds_bandwidth_settings_and_what_is_left_out(results: Results) -> None:
    console = Console(width=200, record=True)
    console.print(sheet_tables(sheets(reports.report(results))))
    text = console.export_text()
    for words in (
        "decode 512",
        "60.0 (60.0–60.0)",
        "[21.0]",
        "1.50 (1.50–1.50)",
        "KV: float16",
        "pip install other",
        "30.0 (30.0–30.0)",
        "75 (75–75) %",
        "gap",
        "not measured",
    ):
        assert words in text


def test_files_hold_every_round_goals_and_a_plot(results: Results, tmp_path: Path) -> None:
    report = reports.report(results)
    reports.write_json(report, tmp_path / "bench.json", {"environment": {"cpu": "x"}})
    content = json.loads((tmp_path / "bench.json").read_text())
    first = content["results"]["measured"][0]
    assert first["speeds"]["decode"]["64"] == [60] * 7
    assert first["starts"]["first_token_seconds"]["cold"] == [2] * 5
    assert content["results"]["growth"]["seconds"]["512"] == [0.010512] * 7
    assert {g["met"] for g in content["goals"]} == {True, False, None}
    assert content["environment"] == {"cpu": "x"}
    pytest.importorskip("matplotlib")
    plot.plot(report, tmp_path / "bench.png", "title")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_markdown_has_all_tables_with_full_rows(results: Results) -> None:
    text = markdown(reports.report(results), HELD, "bench.png")
    assert text.startswith("# CPU, AuthenticAMD, family 26\n")
    assert "2026-11-22" in text
    assert "ort-aie bench MODEL --peers" in text
    assert "| instructions | avx2 |\n| cores | 2, virtual |\n" in text
    assert "![speed against context](bench.png)" in text
    names = ["Speed", "Starts", "Memory and bandwidth", "Cost of context", "Goals", "Engines"]
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == names
    for table in text.split("## ")[1:]:
        widths = {line.count(" | ") for line in table.splitlines() if line.startswith("|")}
        assert len(widths) == 1
    assert "| ort_aie_ep / best peer | 1.20 (1.20–1.20) | 1.20 (1.20–1.20) | 1.50 (" in text
    assert "Unfinished" not in text


def test_a_page_of_a_run_that_goes_on_says_so(results: Results) -> None:
    so_far = tuple(replace(m, starts=None) for m in results.measured)
    some = replace(results, measured=so_far, growth=None, unfinished="starts")
    text = markdown(reports.report(some), HELD)
    assert "Unfinished: starts" in text
    assert "## Starts" not in text
    assert "| ort_aie_ep / best peer |" in text


def test_a_machine_is_described_by_what_its_kernel_says(tmp_path: Path) -> None:
    proc, cache = tmp_path / "proc", tmp_path / "sys/devices/system/cpu/cpu0/cache"
    proc.mkdir()
    (proc / "cpuinfo").write_text(
        "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n"
        "model name\t: Intel(R) Xeon(R)\nstepping\t: 8\n"
        "flags\t\t: fpu avx2 hypervisor avx512vbmi amx_bf16\n\nprocessor\t: 1\nmodel name\t: x\n"
    )
    (proc / "meminfo").write_text("MemTotal:       16000000 kB\nMemFree: 1 kB\n")
    for index, level, kind, size in ((0, 1, "Data", "48K"), (1, 1, "Instruction", "32K"),
                                     (2, 2, "Unified", "2048K")):  # fmt: skip
        (cache / f"index{index}").mkdir(parents=True)
        for name, value in (("level", level), ("type", kind), ("size", size)):
            (cache / f"index{index}" / name).write_text(f"{value}\n")
    machine = conditions.machine(proc, tmp_path / "sys")
    assert machine.cpu == "Intel(R) Xeon(R)"
    assert machine.identity == "GenuineIntel, family 6, model 143, stepping 8"
    assert (machine.features, machine.amx) == (("avx2", "avx512vbmi", "amx_bf16"), True)
    assert (machine.caches, machine.memory) == ("L1d 48K, L2 2048K", 16000000 << 10)
    assert machine.virtual
    nothing = conditions.machine(tmp_path / "none", tmp_path / "none")
    assert (nothing.identity, nothing.caches, nothing.memory) == ("", "", 0)
