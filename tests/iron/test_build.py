"""The build driver, with executables that only record how they were called."""

from __future__ import annotations

import json
import sys
import types
from importlib import metadata
from pathlib import Path
from typing import Any

import iron_recorder
import pytest

from ort_aie_ep.aie_kernels import build as driver
from ort_aie_ep.aie_kernels.designs import fused_dqp
from ort_aie_ep.aie_kernels.iron.interface import load
from ort_aie_ep.aie_kernels.iron.sequences import Run
from ort_aie_ep.aie_kernels.iron.toolchain import ToolchainError
from ort_aie_ep.npu.packages.package import read_package
from ort_aie_ep.npu.vocabulary.design import Design
from ort_aie_ep.npu.vocabulary.device import device
from ort_aie_ep.npu.vocabulary.errors import DesignError

UUID = "00010203-0405-0607-0809-0a0b0c0d0e0f"

# A tool that appends its command line to a file and then does what `does` says.
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

# It keeps all that was pinned: the recorder prints its program in the form of aiecc's report.
AIECC = """
here = pathlib.Path(options["output-dir"])
pathlib.Path(options["xclbin-name"]).write_bytes(
    b"xclbin2\\0" + bytes(408) + bytes(range(16)) + bytes(64)
)
text = pathlib.Path(sys.argv[-1]).read_text()
(here / "input_with_addresses.mlir").write_text(text)
if "npu-insts-name" in options:
    pathlib.Path(options["npu-insts-name"]).write_bytes(b"insts")
"""

FAILS = "print('error: section .text will not fit', file=sys.stderr); sys.exit(3)"


class Tools:
    """A toolchain of such executables; `log` has their command lines."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._log = folder, folder / "log"
        self.make("peano/bin/clang++", CLANG)
        self.make("mlir_aie/bin/aiecc", AIECC)
        self.make("bin/xclbinutil", "")
        (folder / "mlir_aie/include/aie_api").mkdir(parents=True)
        (folder / "mlir_aie/include/aie_api/aie.hpp").touch()
        monkeypatch.setenv("PATH", str(folder / "bin"))
        iron_recorder.install(monkeypatch)
        config = types.ModuleType("aie.utils.config")
        vars(config).update(
            peano_install_dir=lambda: str(folder / "peano"),
            aiecc_path=lambda: str(folder / "mlir_aie/bin/aiecc"),
            cxx_header_path=lambda: str(folder / "mlir_aie/include"),
        )
        self.config = config
        monkeypatch.setitem(sys.modules, "aie.utils.config", config)

    def make(self, name: str, does: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TOOL.format(python=sys.executable, log=str(self._log), does=does))
        path.chmod(0o755)

    @property
    def log(self) -> list[list[str]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    return Tools(tmp_path / "tools", monkeypatch)


@pytest.fixture
def design() -> Design:
    return fused_dqp.build(device("npu2_1col"))


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
    assert "-DAIE_API_EMULATE_BFLOAT16_MMUL_WITH_BFP16" not in command


@pytest.mark.parametrize(("architecture", "emulated"), [("aie2", False), ("aie2p", True)])
def test_only_the_matrix_kernels_of_aie2p_round_to_bfp16(
    architecture: Any, emulated: bool, tmp_path: Path
) -> None:
    tools = driver.Toolchain(Path("peano"), Path("aiecc"), Path("include"))
    command = driver.compile_command(tools, architecture, Path("gemm.cc"), Path("gemm.o"))
    assert ("-DAIE_API_EMULATE_BFLOAT16_MMUL_WITH_BFP16" in command) == emulated
    assert f"--target={architecture}-none-unknown-elf" in command


def test_objects_lie_where_the_mlir_is(tools: Tools, design: Design, tmp_path: Path) -> None:
    driver.build(design, tmp_path / "out")
    clang = next(c for c in tools.log if "-c" in c)
    aiecc = next(c for c in tools.log if c[0].endswith("aiecc"))
    assert Path(clang[clang.index("-o") + 1]).parent == Path(aiecc[-1]).parent
    assert f"--peano={tools.folder}/peano" in aiecc
    assert "--get-xclbin" in aiecc
    assert "--get-input-with-addresses" in aiecc
    assert "--get-npu-insts" not in aiecc


def test_the_compilers_own_instructions_are_kept_when_asked_for(
    tools: Tools, design: Design, tmp_path: Path
) -> None:
    run = Run(design.sequences["matvec"], {"N": 128, "K": 256, "bias": 0, "activation": 0})
    driver.build(design, tmp_path / "out" / "d", sequence=run)
    assert (tmp_path / "out" / "d.insts.bin").read_bytes() == b"insts"
    assert "--get-npu-insts" in next(c for c in tools.log if c[0].endswith("aiecc"))


# --- what is missing ------------------------------------------------------------------------------
def test_without_mlir_aie_the_message_says_what_to_install(
    design: Design, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr("ort_aie_ep.aie_kernels.iron.interface.metadata.version", missing)
    with pytest.raises(ToolchainError) as error:
        driver.build(design, tmp_path / "out")
    text = str(error.value)
    assert "mlir_aie is not installed" in text
    for line in (
        "pip install mlir_aie==1.4.4 -f "
        "https://github.com/Xilinx/mlir-aie/releases/expanded_assets/v1.4.4",
        "mlir-aie/v1.4.4/utils/peano-requirements.txt",
        "source /opt/xilinx/xrt/setup.sh",
    ):
        assert line in text
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("version", ["1.3.4", "1.4.3", "1.4.3.dev12", "0.0.1.2026033104", "new"])
def test_an_older_version_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    iron_recorder.install(monkeypatch, version)
    with pytest.raises(ToolchainError, match=rf"mlir_aie {version} is installed; 1\.4\.4 or later"):
        load()


@pytest.mark.parametrize("version", ["1.4.4", "1.4.4.dev18", "1.5.0", "2.0.0"])
def test_newer_versions_are_accepted(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    iron_recorder.install(monkeypatch, version)
    assert load().version == version


def test_a_development_version_with_the_older_interface_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    iron_recorder.install(monkeypatch, "1.4.4.dev3")

    def old_fifo(
        obj_type: Any, depth: int = 2, name: Any = None, dims_to_stream: Any = None
    ) -> None:
        """The interface before the renaming."""

    old_fifo.prod = old_fifo.cons = old_fifo
    monkeypatch.setattr(sys.modules["aie.iron"], "ObjectFifo", old_fifo)
    with pytest.raises(ToolchainError, match=r"ObjectFifo has no parameter .*to_stream"):
        load()


def test_a_package_without_a_needed_class_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    iron_recorder.install(monkeypatch)
    monkeypatch.delattr(sys.modules["aie.iron"], "Lock")
    with pytest.raises(ToolchainError, match=r"does not have what is needed of it: .*Lock"):
        load()


@pytest.mark.parametrize(
    ("missing", "match"),
    [
        ("peano/bin/clang++", r"Peano's clang\+\+ is not at"),
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


def test_what_mlir_aie_says_of_a_missing_peano_is_passed_on(
    tools: Tools, design: Design, tmp_path: Path
) -> None:
    def raises() -> str:
        raise RuntimeError("Invalid Peano install directory: /nowhere")

    tools.config.peano_install_dir = raises
    with pytest.raises(ToolchainError, match="Invalid Peano install directory: /nowhere"):
        driver.build(design, tmp_path / "out")


# --- what fails -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("tool", "match"),
    [
        ("mlir_aie/bin/aiecc", r"aiecc failed with exit code 3"),
        ("peano/bin/clang++", r"Peano on fused_dqp.cc failed with exit code 3"),
    ],
)
def test_a_tool_that_fails_is_quoted_and_leaves_nothing(
    tool: str, match: str, tools: Tools, design: Design, tmp_path: Path
) -> None:
    tools.make(tool, FAILS)
    with pytest.raises(ToolchainError, match=match) as error:
        driver.build(design, tmp_path / "out" / "d")
    assert "error: section .text will not fit" in str(error.value)
    assert tool in str(error.value)
    assert not (tmp_path / "out").exists()


def test_an_aiecc_without_shared_channels_is_explained(
    tools: Tools, design: Design, tmp_path: Path
) -> None:
    says = "error: pinned MM2S DMA channel 0 is out of range or already in use on this tile"
    tools.make("mlir_aie/bin/aiecc", f"print({says!r}, file=sys.stderr); sys.exit(1)")
    with pytest.raises(ToolchainError, match="share a shim channel under packet ids"):
        driver.build(design, tmp_path / "out")


def test_a_failed_build_leaves_the_package_that_was_there(
    tools: Tools, design: Design, tmp_path: Path
) -> None:
    driver.build(design, tmp_path / "d")
    before = (tmp_path / "d" / "manifest.json").read_bytes()
    tools.make("mlir_aie/bin/aiecc", FAILS)
    iron_recorder.forget()
    with pytest.raises(ToolchainError, match="aiecc failed"):
        driver.build(design, tmp_path / "d")
    assert (tmp_path / "d" / "manifest.json").read_bytes() == before


def test_an_aiecc_that_writes_no_xclbin_is_an_error(
    tools: Tools, design: Design, tmp_path: Path
) -> None:
    tools.make("mlir_aie/bin/aiecc", "")
    with pytest.raises(ToolchainError, match=r"did not write overlay.xclbin"):
        driver.build(design, tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (("address = 52480", "address = 40960"), "address of the parameters of worker dqp0_0"),
        (("address = 52480 : i32, ", ""), "address of the parameters .* not named"),
        (("%tile_0_3, 6)", "%tile_0_3, 7)"), "go lock of worker dqp0_1"),
        (("MM2S, 1)", "MM2S, 0)"), "shim channel of fifo w0_1"),
        (("aie.packet_flow(1)", "aie.packet_flow(5)"), "packet id of fifo x"),
        (("aie.tile(0, 4)", "aie.tile(0, 5)"), "worker dqp0_2"),
        (("%tile_0_0 =", "aie.shim_dma(%tile_0_0) {}\n%tile_0_0 ="), "BDs of the shim of column 0"),
    ],
)
def test_an_overlay_that_is_not_what_the_manifest_says_is_refused(
    change: tuple[str, str], match: str, tools: Tools, design: Design, tmp_path: Path
) -> None:
    read = "text = pathlib.Path(sys.argv[-1]).read_text()"
    tools.make("mlir_aie/bin/aiecc", AIECC.replace(read, f"{read}.replace{change!r}"))
    with pytest.raises(ToolchainError, match=match):
        driver.build(design, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- designs by name ------------------------------------------------------------------------------
def test_an_unknown_design_is_refused_with_the_known_ones() -> None:
    with pytest.raises(DesignError, match=r"unknown design 'nope'; known: .*fused_dqp"):
        driver.make_design("nope", device("npu2"))


def test_a_shape_that_the_sequence_refuses_is_refused(
    tools: Tools, design: Design, tmp_path: Path
) -> None:
    run = Run(design.sequences["matvec"], {"N": 130, "K": 256, "bias": 0, "activation": 0})
    with pytest.raises(DesignError, match="N=130 must be a multiple of 32"):
        driver.build(design, tmp_path / "out", sequence=run)


def test_a_shape_needs_every_parameter(design: Design) -> None:
    with pytest.raises(DesignError, match="takes the parameters N, K, bias, activation; got N"):
        Run(design.sequences["matvec"], {"N": 128})


def test_a_shape_that_overruns_a_queue_is_refused(
    tools: Tools, design: Design, tmp_path: Path
) -> None:
    run = Run(design.sequences["matvec"], {"N": 1024, "K": 256, "bias": 0, "activation": 0})
    with pytest.raises(DesignError, match=r"5 tasks on MM2S 0 of shim tile .* there are 4"):
        driver.build(design, tmp_path / "out", sequence=run)
