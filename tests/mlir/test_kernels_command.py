"""`ort-aie kernels`: what it prints, and its exit codes."""

from __future__ import annotations

import json
from functools import partial
from importlib import metadata
from pathlib import Path

import pytest
from commands import ort_aie

from ort_aie_ep.aie_kernels.build import find_designs
from ort_aie_ep.npu.terms.device import DEVICES

kernels = partial(ort_aie, "kernels")


def test_list_names_designs_their_sequences_and_devices() -> None:
    rows = {row["design"]: row for row in json.loads(kernels("list", "--json").stdout)}
    assert set(rows) == set(find_designs())
    assert rows["fused_dqp"]["devices"] == list(DEVICES)
    assert rows["fused_dqp"]["sequences"] == {
        "matvec": ["N", "K", "bias"],
        "matvec_part": ["N", "K", "row_K", "bias"],
    }
    assert "matvec(N, K, bias)" in kernels("list").stdout


def test_check_prints_a_report() -> None:
    result = kernels("check", "dequant", "--device", "npu1_1col")
    assert result.exit_code == 0, result.output
    assert "dequant on npu1_1col" in result.stdout
    (report,) = json.loads(kernels("check", "dequant", "--device", "npu1_1col", "--json").stdout)
    assert report["passed"]


def test_check_of_all_designs_leaves_out_those_that_are_not_for_the_device() -> None:
    result = kernels("check", "all", "--device", "npu2_1col", "--json")
    names = {report["design"] for report in json.loads(result.stdout)}
    assert "flow_kv" not in names
    assert "fused_dqp" in names


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["check", "nope"], "unknown design 'nope'; known: "),
        (["check", "fused_dqp", "--device", "npu3"], "unknown device 'npu3'; known: npu1"),
        (["check", "flow_kv", "--device", "npu1"], "is written for aie2p, but npu1 is aie2"),
        (["build", "dequant", "--out", "x", "--sequence", "nope"], "has no sequence 'nope'"),
        (
            ["build", "dequant", "--out", "x", "--sequence", "dequant", "--shape", "blocks"],
            "--shape blocks: expected NAME=VALUE",
        ),
    ],
)
def test_mistakes_are_one_line_and_exit_code_1(words: list[str], says: str) -> None:
    result = kernels(*words)
    assert result.exit_code == 1
    assert says in " ".join(result.output.split())


def test_build_without_mlir_aie_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr("ort_aie_ep.aie_kernels.mlir.toolchain.metadata.distribution", missing)
    result = ort_aie(
        "kernels", "build", "dequant", "--device", "npu2_1col", "--out", tmp_path / "overlays"
    )
    assert result.exit_code == 1
    assert "mlir_aie==1.4.4" in result.output
    assert not (tmp_path / "overlays").exists()


def test_print_gives_the_module_on_stdout() -> None:
    text = ort_aie(
        "kernels", "print", "fused_dqp", "--device", "npu2_2col", "--columns", "1"
    ).stdout
    assert "// fused_dqp on npu2_2col" in text
    assert text.count('"aie.core"') == 4
    assert kernels("print", "fused_dqp", "--device", "npu2_2col").stdout.count('"aie.core"') == 8
