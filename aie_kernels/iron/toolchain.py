"""The compilers: mlir-aie's aiecc, Peano's clang++, XRT's xclbinutil."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ort_aie_ep.npu.vocabulary.errors import DesignError

# mlir-aie's published instructions. The pin of llvm-aie that belongs to a release is in
# utils/peano-requirements.txt of its tag.
INSTALL = """\
Building overlays needs mlir_aie 1.4.4 or later, Peano (llvm-aie) and XRT's xclbinutil:

  python3 -m venv iron && . iron/bin/activate
  pip install mlir_aie==1.4.4 -f https://github.com/Xilinx/mlir-aie/releases/expanded_assets/v1.4.4
  pip install -r https://raw.githubusercontent.com/Xilinx/mlir-aie/v1.4.4/utils/peano-requirements.txt
  source /opt/xilinx/xrt/setup.sh
  pip install .    # in the sources of ort_aie_ep

(none of these is on PyPI; docs/npu-toolchain.md says more)"""


class ToolchainError(DesignError):
    """The toolchain is missing, of the wrong version, or one of its tools has failed."""


@dataclass(frozen=True)
class Toolchain:
    """Where the tools are. `include` has `aie_api/aie.hpp`; `peano` is Peano's folder."""

    peano: Path
    aiecc: Path
    include: Path

    @property
    def clang(self) -> Path:
        """Peano's C++ compiler."""
        return self.peano / "bin" / "clang++"

    def peano_version(self) -> str:
        """The first line of what the compiler says of itself."""
        lines = run([self.clang, "--version"], "Peano", Path.cwd()).splitlines()
        return lines[0].strip() if lines else "unknown"


def find_toolchain() -> Toolchain:
    """The tools that mlir-aie itself uses (its `aie.utils.config`), all of them present.

    Raises ToolchainError that names the missing one and says how to install it.
    """
    config = importlib.import_module("aie.utils.config")
    try:
        found = Toolchain(
            Path(config.peano_install_dir()),
            Path(config.aiecc_path()),
            Path(config.cxx_header_path()),
        )
    except RuntimeError as error:  # what `config` raises
        raise ToolchainError(f"{error}.\n{INSTALL}") from error
    for tool, path in (
        ("Peano's clang++", found.clang),
        ("aiecc", found.aiecc),
        ("the AIE API", found.include / "aie_api" / "aie.hpp"),
    ):
        if not path.is_file():
            raise ToolchainError(f"{tool} is not at {path}.\n{INSTALL}")
    # Some versions of aiecc pass over the xclbin without a word when it is missing.
    if shutil.which("xclbinutil") is None:
        raise ToolchainError(
            f"xclbinutil is not on the PATH; it comes with XRT, not with mlir_aie.\n{INSTALL}"
        )
    return found


def run(command: Sequence[Path | str], what: str, folder: Path) -> str:
    """Run `command` in `folder` and give its output. Raises ToolchainError with what it said."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ToolchainError(f"{what} cannot be run: {error}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise ToolchainError(
            f"{what} failed with exit code {done.returncode}.\ncommand: {' '.join(words)}\n{said}"
        )
    return done.stdout
