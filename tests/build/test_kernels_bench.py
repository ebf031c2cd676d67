"""kernels_bench builds and measures every table. Nothing here depends on a speed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cmake_program import Project

from ort_aie_ep import _native

pytestmark = pytest.mark.in_turn  # for who changes kernels


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def kernels_bench(project: Project) -> Path:
    return project.build("kernels_bench")


def test_every_table_is_measured(kernels_bench: Path) -> None:
    done = run(kernels_bench, "--kernel", "group_sums", "--seconds", "0.001")
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    isas = [isa for isa in _native.available_isas() if not isa.endswith("_standin")]
    assert [line for line in lines if line and not line.startswith(" ")] == isas
    kernels = [line.split()[0] for line in lines if line.startswith("  ") and "%" in line]
    assert kernels == ["group_sums"] * len(isas)


def test_one_table_alone_is_measured(kernels_bench: Path) -> None:
    done = run(*(kernels_bench, "--isa", "portable", "--kernel", "fused_dqp", "--seconds", "0.001"))
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("portable\n")
    for kernel in ("fused_dqp_bf16", "fused_dqp_bf16 symmetric", "fused_dqp_int8"):
        assert f"\n  {kernel} " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("--isa", "sse9"), "--isa sse9 is not available"), (("--isa",), "usage:")],
)
def test_wrong_arguments_are_refused(
    kernels_bench: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = run(kernels_bench, *arguments)
    assert done.returncode == 2
    assert message in done.stdout
