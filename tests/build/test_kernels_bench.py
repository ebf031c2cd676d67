"""kernels_bench builds and measures every table. Nothing here depends on a speed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from apt_site import write_headers
from test_onnxruntime_headers import find_cmake

from ort_aie_ep import _native

SOURCE = Path(__file__).resolve().parents[2]

# The project looks for pybind11, nlohmann_json and ONNX Runtime's headers; kernels_bench uses none.
PYBIND11 = """\
function(pybind11_add_module name no_extras)
  add_library(${name} MODULE EXCLUDE_FROM_ALL ${ARGN})
endfunction()
"""


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def kernels_bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cmake = find_cmake()
    if cmake is None:
        pytest.skip("there is no cmake")
    build = tmp_path_factory.mktemp("kernels_bench")
    headers = write_headers(build / "headers", 23)
    (build / "pybind11Config.cmake").write_text(PYBIND11)
    (build / "nlohmann").mkdir()
    (build / "nlohmann" / "json.hpp").touch()
    configured = run(
        *(cmake, "-S", SOURCE, "-B", build),
        *(f"-DORT_AIE_ONNXRUNTIME_INCLUDE_DIR={headers}", f"-Dpybind11_DIR={build}"),
        *(f"-DORT_AIE_NLOHMANN_INCLUDE_DIR={build}", "-DORT_AIE_XRT_FROM=none"),
    )
    assert configured.returncode == 0, configured.stdout
    built = run(cmake, "--build", build, "--target", "kernels_bench", "--parallel")
    assert built.returncode == 0, built.stdout
    return build / "kernels_bench"


def test_every_table_is_measured(kernels_bench: Path) -> None:
    done = run(kernels_bench, "--kernel", "group_sums", "--seconds", "0.001")
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert [line for line in lines if line and not line.startswith(" ")] == _native.available_isas()
    kernels = [line.split()[0] for line in lines if line.startswith("  ") and "%" in line]
    assert kernels == ["group_sums"] * len(_native.available_isas())


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
