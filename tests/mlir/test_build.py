"""The build driver, with executables that only record how they were called."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from printed_form import printed
from typer.testing import CliRunner

from ort_aie_ep.aie_kernels import build as driver
from ort_aie_ep.aie_kernels.dequant import design as dequant
from ort_aie_ep.aie_kernels.fused_dqp import design as fused_dqp
from ort_aie_ep.aie_kernels.mlir.module import print_module
from ort_aie_ep.aie_kernels.mlir.sequences import Run
from ort_aie_ep.aie_kernels.mlir.toolchain import ToolchainError, check_version, find_toolchain
from ort_aie_ep.cli import app
from ort_aie_ep.explain.doctor import find_overlay_tools
from ort_aie_ep.npu.packages.package import read_package
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.device import device
from ort_aie_ep.npu.terms.errors import DesignError

UUID = "00010203-0405-0607-0809-0a0b0c0d0e0f"

# A tool that appends its command line to a file and then runs `does`.
TOOL = """#!{python}
import json, pathlib, sys
with open({log!r}, "a") as log:
    log.write(json.dumps(sys.argv) + "\\n")
options = dict(a.lstrip("-").split("=", 1) for a in sys.argv if "=" in a)
{does}
"""

CLANG = """
if "--version" in sys.argv:
    print("clang version 22.0.0 (llvm-aie)")
else:
    pathlib.Path(sys.argv[sys.argv.index("-o") + 1]).write_text("object")
"""

# Its report is the file that the test has put beside it.
AIECC = """
if "--aie-version" in sys.argv:
    print("aiecc (mlir-aie declarative driver)\\n  git SHA:  7e00b57")
    sys.exit()
here = pathlib.Path(options["output-dir"])
pathlib.Path(options["xclbin-name"]).write_bytes(
    b"xclbin2\\0" + bytes(408) + bytes(range(16)) + bytes(64)
)
report = pathlib.Path({report!r}).read_text()
(here / "input_with_addresses.mlir").write_text(report)
if "npu-insts-name" in options:
    pathlib.Path(options["npu-insts-name"]).write_bytes(b"insts")
"""

TOOLCHAIN = "ort_aie_ep.aie_kernels.mlir.toolchain.metadata"
VARIABLES = ("MLIR_AIE_INSTALL_DIR", "PEANO_INSTALL_DIR", "AIECC_PATH")
FAILS = """
if "--version" in sys.argv:
    sys.exit()
print('error: section .text will not fit', file=sys.stderr)
sys.exit(3)
"""


class Tools:
    """A toolchain of such executables, laid out like its Python packages; `log` has the
    commands."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._log = folder, folder / "log"
        self.report = folder / "report.mlir"
        self.version = "1.4.4"
        self.make("llvm-aie/bin/clang++", CLANG)
        self.make("mlir_aie/bin/aiecc", AIECC.format(report=str(self.report)))
        self.make("bin/xclbinutil", "")
        (folder / "mlir_aie/include/aie_api").mkdir(parents=True)
        (folder / "mlir_aie/include/aie_api/aie.hpp").touch()
        monkeypatch.setenv("PATH", str(folder / "bin"))
        for variable in VARIABLES:
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setattr(TOOLCHAIN + ".distribution", self._distribution)
        monkeypatch.setattr(TOOLCHAIN + ".version", lambda package: self.version)

    def _distribution(self, package: str) -> Any:
        if not (self.folder / package).is_dir():
            raise metadata.PackageNotFoundError(package)
        return SimpleNamespace(locate_file=lambda path: self.folder / path)

    def make(self, name: str, does: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TOOL.format(python=sys.executable, log=str(self._log), does=does))
        path.chmod(0o755)

    @property
    def log(self) -> list[list[str]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]


@pytest.fixture
def design() -> Design:
    return fused_dqp.build(device("npu2_1col"))


@pytest.fixture
def tools(design: Design, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    made = Tools(tmp_path / "tools", monkeypatch)
    made.report.write_text(printed(print_module(design)))
    return made


def test_a_package_is_built(tools: Tools, design: Design, tmp_path: Path) -> None:
    driver.build(design, tmp_path / "out" / "fused_dqp")
    package = read_package(tmp_path / "out" / "fused_dqp", device="npu2_1col")
    assert package.manifest["uuid"] == UUID
    assert package.manifest["toolchain"] == {
        "mlir_aie": "1.4.4",
        "peano": "clang version 22.0.0 (llvm-aie)",
    }
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["fused_dqp"]
    assert sorted(p.name for p in package.folder.iterdir()) == ["manifest.json", "overlay.xclbin"]


def test_a_peano_that_compiles_wrongly_is_refused_before_it_compiles(
    tools: Tools, design: Design, tmp_path: Path
) -> None:
    tools.make("llvm-aie/bin/clang++", "print('clang version 22.0.0 (llvm-aie f3081197ab12)')")
    with pytest.raises(ToolchainError, match=r"f3081197.*llvm-aie #1262"):
        driver.build(design, tmp_path / "out" / "fused_dqp")
    assert all("-c" not in command for command in tools.log)


def test_a_source_that_peano_gets_wrong_is_refused(
    tools: Tools, design: Design, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver.peano, "mistakes_of", lambda source: ("line 1: chess_storage",))
    with pytest.raises(ToolchainError, match="line 1: chess_storage"):
        driver.build(design, tmp_path / "out" / "fused_dqp")


def test_the_command_counts_the_runs_of_compilers(
    tools: Tools, tmp_path: Path, ends: Callable[[str], dict[str, str]]
) -> None:
    out = tmp_path / "out"
    words = ("kernels", "build", "fused_dqp", "--device", "npu2_1col", "--out", str(out))
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{out / 'fused_dqp'}\n"
    runs = sum("-c" in command or "--get-xclbin" in command for command in tools.log)
    assert ends(result.stderr)["kernels build"] == f"{runs} compilations"


def test_designs_are_built_into_one_xclbin(
    tools: Tools, design: Design, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chain of calls to aiecc: each adds its PDI and its kernel to the previous xclbin."""
    other = dequant.build(design.device)
    monkeypatch.setattr(driver.report, "compare", lambda configuration, text: None)
    packages = driver.build_together([design, other], tmp_path / "out")
    assert [p.folder.name for p in packages] == ["fused_dqp", "dequant"]
    for package in packages:
        read = read_package(package.folder, device="npu2_1col")
        assert (read.manifest["kernel"], read.manifest["uuid"]) == (package.folder.name, UUID)
    first, second = (c for c in tools.log if "--get-xclbin" in c)
    assert {"--xclbin-kernel-name=fused_dqp", "--xclbin-kernel-id=0x901"} <= set(first)
    assert {"--xclbin-kernel-name=dequant", "--xclbin-kernel-id=0x902"} <= set(second)
    assert not any(option.startswith("--xclbin-input") for option in first)
    (made,) = (o.split("=")[1] for o in first if o.startswith("--xclbin-name"))
    assert f"--xclbin-input={made}" in second


def test_designs_that_do_not_go_into_one_xclbin(design: Design, tmp_path: Path) -> None:
    with pytest.raises(DesignError, match=r"\['npu2_1col', 'npu2_2col"):
        driver.build_together([design, dequant.build(device("npu2_2col"))], tmp_path)
    with pytest.raises(DesignError, match="31 characters"):
        driver.build_together([design, design], tmp_path)


def test_kernels_are_compiled_with_the_flags_of_mlir_aie(
    tools: Tools, design: Design, tmp_path: Path
) -> None:
    driver.build(design, tmp_path / "out")
    compiles = [c for c in tools.log if "-c" in c]
    assert [Path(c[1]).name for c in compiles] == ["fused_dqp.cc"]
    (command,) = compiles
    assert Path(command[1]).is_file()
    for flag in (
        "--target=aie2p-none-unknown-elf", "-std=c++20", "-O2", "-DNDEBUG",
        "-D__AIE_API_AIE_ADF_HPP__", f"-I{tools.folder}/mlir_aie/include", "-fstack-size-section",
    ):  # fmt: skip
        assert flag in command
    aiecc = next(c for c in tools.log if c[0].endswith("aiecc"))
    assert Path(command[command.index("-o") + 1]).parent == Path(aiecc[-1]).parent
    assert {f"--peano={tools.folder}/llvm-aie", "--alloc-scheme=basic-sequential"} <= set(aiecc)
    assert "--get-npu-insts" not in aiecc


def test_the_compilers_own_instructions_are_kept_when_asked_for(
    tools: Tools, design: Design, tmp_path: Path
) -> None:
    run = Run(design.sequences["matvec"], {"N": 128, "K": 256, "bias": 0})
    driver.build(design, tmp_path / "out" / "d", sequence=run)
    assert (tmp_path / "out" / "d.insts.bin").read_bytes() == b"insts"
    assert "--get-npu-insts" in next(c for c in tools.log if c[0].endswith("aiecc"))


# --- what is missing ------------------------------------------------------------------------------
@pytest.mark.parametrize("missing", ["mlir_aie", "llvm-aie"])
def test_without_a_package_the_message_says_what_to_install(
    missing: str, tools: Tools, design: Design, tmp_path: Path
) -> None:
    (tools.folder / missing).rename(tools.folder / "elsewhere")
    with pytest.raises(ToolchainError) as error:
        driver.build(design, tmp_path / "out")
    text = str(error.value)
    assert missing in text
    for line in (
        "pip install mlir_aie==1.4.4 -f "
        "https://github.com/Xilinx/mlir-aie/releases/expanded_assets/v1.4.4",
        "mlir-aie/v1.4.4/utils/peano-requirements.txt",
        "source /opt/xilinx/xrt/setup.sh",
        "pip install '.[tools]'",
    ):
        assert line in text
    assert not (tmp_path / "out").exists()


def test_doctor_finds_the_tools_or_names_what_is_missing(tools: Tools) -> None:
    found = find_overlay_tools()
    assert found.found.startswith(f"{tools.folder}/mlir_aie/bin/aiecc (1.4.4), ")
    tools.version = "1.3.0"
    assert "1.3.0" in find_overlay_tools().remedy
    (tools.folder / "mlir_aie").rename(tools.folder / "elsewhere")
    missing = find_overlay_tools().remedy
    assert missing.startswith("mlir_aie is not installed in this Python")
    assert missing.endswith("docs/npu-toolchain.md has the commands")


@pytest.mark.parametrize("version", ["1.4.2.dev16", "1.4.2", "1.4.3.dev1", "1.4.4.dev18", "1.4.4"])
def test_versions_whose_dialect_is_spoken_are_accepted(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize(
    "version", ["1.3.4", "1.4.1", "1.4.2.dev15", "1.4.5.dev1", "1.5.0", "0.0.1.2026033104", "new"]
)
def test_other_versions_are_refused(version: str, tools: Tools) -> None:
    tools.version = version
    with pytest.raises(ToolchainError, match=rf"mlir_aie {version} .* 1\.4\.2\.dev16 to 1\.4\.4"):
        find_toolchain()


@pytest.mark.parametrize(
    ("missing", "match"),
    [
        ("llvm-aie/bin/clang++", r"Peano's clang\+\+ is not at"),
        ("mlir_aie/bin/aiecc", "aiecc is not at"),
        ("mlir_aie/include/aie_api/aie.hpp", "the AIE API is not at"),
        ("bin/xclbinutil", "xclbinutil is not on the PATH; it comes with XRT"),
    ],
)
def test_a_missing_tool_is_named(
    missing: str, match: str, tools: Tools, design: Design, tmp_path: Path
) -> None:
    (tools.folder / missing).unlink()
    with pytest.raises(ToolchainError, match=match):
        driver.build(design, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- what fails -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("tool", "match"),
    [
        ("mlir_aie/bin/aiecc", r"aiecc failed with exit code 3"),
        ("llvm-aie/bin/clang++", r"Peano on fused_dqp/fused_dqp.cc failed with exit code 3"),
    ],
)
def test_a_tool_that_fails_is_quoted_and_leaves_nothing(
    tool: str, match: str, tools: Tools, design: Design, tmp_path: Path
) -> None:
    tools.make(tool, FAILS)
    with pytest.raises(ToolchainError, match=match) as error:
        driver.build(design, tmp_path / "out" / "d")
    assert "section .text will not fit" in str(error.value)
    assert tool in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_failed_build_leaves_the_package_that_was_there(
    tools: Tools, design: Design, tmp_path: Path
) -> None:
    driver.build(design, tmp_path / "d")
    before = (tmp_path / "d" / "manifest.json").read_bytes()
    tools.make("mlir_aie/bin/aiecc", FAILS)
    with pytest.raises(ToolchainError, match="aiecc"):
        driver.build(design, tmp_path / "d")
    assert (tmp_path / "d" / "manifest.json").read_bytes() == before


def test_an_overlay_that_is_not_what_was_printed_is_refused(
    tools: Tools, design: Design, tmp_path: Path
) -> None:
    tools.report.write_text(tools.report.read_text().replace("address = 53504", "address = 40960"))
    with pytest.raises(ToolchainError, match=r"buffer dqp0_0_parameters: .* 53504 .* 40960"):
        driver.build(design, tmp_path / "out")
    assert not (tmp_path / "out").exists()
