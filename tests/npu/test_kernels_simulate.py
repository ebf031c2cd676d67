"""`ort-aie kernels simulate`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from commands import ort_aie

kernels = partial(ort_aie, "kernels")
SHAPE = [f"--shape={item}" for item in ("N=512", "K=256", "bias=0")]


def test_simulate_reports_times_and_bytes() -> None:
    result = kernels("simulate", "fused_dqp", "matvec", *SHAPE, "--json")
    assert result.exit_code == 0, result.output
    (run,) = json.loads(result.stdout)
    assert run["read"] == 512 * 256 * 5 // 8 + 2 * 256
    assert run["written"] == 2 * 512
    assert run["seconds"] > 0
    assert set(run["workers"]["dqp0_0"]) == {"kernel", "wait"}


def test_simulate_writes_a_timeline(tmp_path: Path) -> None:
    trace = tmp_path / "run.json"
    result = kernels("simulate", "fused_dqp", "matvec", *SHAPE, "--trace", trace)
    assert result.exit_code == 0, result.output
    tracks = [
        e["args"]["name"] for e in json.loads(trace.read_text())["traceEvents"] if "args" in e
    ]
    assert "core tile (0, 2)" in tracks


def test_a_timeline_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    file = tmp_path / "nowhere" / "run.json"
    result = kernels("simulate", "fused_dqp", "matvec", *SHAPE, "--trace", file)
    assert result.exit_code == 1
    assert f"{file}" in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fused_dqp", "gemv"], "has no sequence 'gemv'; it has matvec"),
        (
            ["fused_dqp", "matvec", "--shape=N=256"],
            "takes N, K, bias; got N: give --shape NAME=VALUE for each",
        ),
        (["fused_dqp", "matvec", *SHAPE, "--device=npu3"], "unknown device 'npu3'; known: npu1"),
        (["fused", "matvec"], "fused"),
        (["fused_dqp", "matvec", *SHAPE[1:], "--shape=N=100"], "N=100 must be a multiple of 32"),
        (["fused_dqp", "matvec", "--shape=N=x"], "expected NAME=VALUE"),
        (
            ["fused_dqp", "matvec", *SHAPE, "--shape=N=64"],
            "--shape N=64: N was already given as 512",
        ),
        (["fused_dqp", "matvec", *SHAPE[1:], "--shape=N=64000000000"], "argument w would have"),
    ],
)
def test_mistakes_are_named(words: list[str], message: str) -> None:
    result = kernels("simulate", *words)
    assert result.exit_code != 0
    text = " ".join((result.output + str(result.exception)).split())
    assert message in text
