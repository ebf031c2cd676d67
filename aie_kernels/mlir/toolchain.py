"""The compilers: mlir-aie's aiecc, Peano's clang++, XRT's xclbinutil.

They are files of the installed packages, or in the folders that mlir-aie's own variables name. They
run as programs; no Python of mlir-aie is imported.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ort_aie_ep.npu.terms.errors import DesignError

# Versions whose dialect `module` prints: the first has counts of locks as values and descriptors by
# keyword (7e00b579), the last is the newest that was checked. A development version comes before
# the version whose number it has.
FIRST, LAST = (1, 4, 2, 16), (1, 4, 4)

# mlir-aie's published instructions. A release's tag pins the llvm-aie that belongs to it in
# utils/peano-requirements.txt.
INSTALL = """\
Building overlays needs mlir_aie 1.4.4, Peano (llvm-aie) and XRT's xclbinutil:

  python3 -m venv aie && . aie/bin/activate
  pip install mlir_aie==1.4.4 -f https://github.com/Xilinx/mlir-aie/releases/expanded_assets/v1.4.4
  pip install -r https://raw.githubusercontent.com/Xilinx/mlir-aie/v1.4.4/utils/peano-requirements.txt
  source /opt/xilinx/xrt/setup.sh
  pip install '.[tools]'    # in the sources of ort_aie_ep

(none of these is on PyPI; docs/npu-toolchain.md says more)"""


class ToolchainError(DesignError):
    """The toolchain is missing, of the wrong version, or one of its tools has failed."""


@dataclass(frozen=True)
class Toolchain:
    """Where the tools are. `include` has `aie_api/aie.hpp`; `peano` is Peano's folder.

    `version` is that of mlir_aie, or aiecc's own answer if that package is missing;
    `peano_package` that of llvm-aie, '' if Peano is not from that package.
    """

    peano: Path
    aiecc: Path
    include: Path
    version: str
    peano_package: str = ""

    @property
    def clang(self) -> Path:
        """Peano's C++ compiler."""
        return self.peano / "bin" / "clang++"

    def peano_version(self) -> str:
        """The first line of what the compiler says of itself."""
        lines = run([self.clang, "--version"], "Peano", Path.cwd()).splitlines()
        return lines[0].strip() if lines else "unknown"


def find_toolchain() -> Toolchain:
    """The tools, all of them present and of a version whose dialect `module` prints.

    Folders are those of the packages mlir_aie and llvm-aie, unless MLIR_AIE_INSTALL_DIR,
    PEANO_INSTALL_DIR or AIECC_PATH, which mlir-aie itself uses, say otherwise. Raises
    ToolchainError, which names what is missing and says how to install it.
    """
    root = _folder("mlir_aie", "MLIR_AIE_INSTALL_DIR")
    aiecc = Path(os.environ.get("AIECC_PATH") or root / "bin" / "aiecc")
    peano = _folder("llvm-aie", "PEANO_INSTALL_DIR")
    for tool, path in (
        ("aiecc", aiecc),
        ("Peano's clang++", peano / "bin" / "clang++"),
        ("the AIE API", root / "include" / "aie_api" / "aie.hpp"),
    ):
        if not path.is_file():
            raise ToolchainError(f"{tool} is not at {path}.\n{INSTALL}")
    # Some versions of aiecc pass over the xclbin without a word when it is missing.
    if shutil.which("xclbinutil") is None:
        raise ToolchainError(
            f"xclbinutil is not on the PATH; it comes with XRT, not with mlir_aie.\n{INSTALL}"
        )
    package = "" if os.environ.get("PEANO_INSTALL_DIR") else metadata.version("llvm-aie")
    return Toolchain(peano, aiecc, root / "include", _version(aiecc), package)


def _folder(package: str, variable: str) -> Path:
    given = os.environ.get(variable)
    if given:
        return Path(given)
    try:
        return Path(str(metadata.distribution(package).locate_file(package)))
    except metadata.PackageNotFoundError:
        raise ToolchainError(
            f"{package} is not installed in this Python, and {variable} is not set.\n{INSTALL}"
        ) from None


def _version(aiecc: Path) -> str:
    """Of the package whose aiecc it is; a build of one's own is taken at its word."""
    if os.environ.get("MLIR_AIE_INSTALL_DIR") or os.environ.get("AIECC_PATH"):
        found = re.search(r"git SHA:\s*(\S+)", run([aiecc, "--aie-version"], "aiecc", Path.cwd()))
        return f"aiecc {found[1]}" if found else "unknown"
    version = metadata.version("mlir_aie")
    check_version(version)
    return version


def check_version(version: str) -> None:
    """Raise ToolchainError if `module` does not print the dialect of this version of mlir_aie."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)(?:\.dev(\d+))?", version)
    if found is not None:
        release = tuple(int(n) for n in found.groups()[:3])
        # A release comes after every development version of its number.
        whole = (*release, int(found[4]) if found[4] else 1 << 30)
        if whole >= FIRST and release <= LAST:
            return
    raise ToolchainError(
        f"mlir_aie {version} is installed; designs are printed in the dialect of 1.4.2.dev16 to "
        f"1.4.4; other versions read another dialect, or have not been checked.\n{INSTALL}"
    )


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
