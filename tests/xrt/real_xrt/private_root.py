"""Debian sid's XRT in a private folder, with the libc that it needs, and a way to start programs
there.

`python private_root.py` creates the folder and prints its path.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

APT_PACKAGES = Path(__file__).with_name("apt_packages.sh")
APT_HEADERS = Path(__file__).resolve().parents[3] / "cmake" / "apt_headers.sh"
SKIP = "ORT_AIE_SKIP_REAL_XRT"

# Variables that would give a program in the root other libraries, or another XRT.
STRANGERS = ("LD_LIBRARY_PATH", "LD_PRELOAD", "XILINX_XRT", "XRT_INI_PATH")


class NoPackages(Exception):
    """apt cannot get packages: the reason."""


class NoPrivateRoot(Exception):
    """XRT cannot be downloaded here."""


@dataclass(frozen=True)
class PrivateRoot:
    """`folder` has usr/lib as in Debian: XRT finds its plugin relative to itself.

    `include` has XRT's headers.
    """

    folder: Path
    include: Path

    @property
    def libraries(self) -> Path:
        """The folder of all libraries: libc, libstdc++, XRT, its NPU plugin."""
        return self._only("usr/lib/*/libxrt_coreutil.so.2").parent

    @property
    def loader(self) -> Path:
        """The ELF interpreter that belongs to the root's libc."""
        return self._only("usr/lib/*/ld-linux-*.so.*")

    def build(self, source: Path, program: Path, libraries: Iterable[Path] = ()) -> Path:
        """Compiles a C++ `source` with XRT's headers; returns `program`."""
        wanted = [*libraries, self.libraries / "libxrt_coreutil.so.2"]
        command: list[str | Path] = ["c++", "-std=c++20", "-Wall", "-Wextra", "-Werror"]
        command += ["-isystem", self.include, source, *wanted, "-o", program]
        # The compiler's own libc is older than the one that these libraries need.
        subprocess.run([*command, "-Wl,--allow-shlib-undefined"], check=True)
        return program

    def run(
        self,
        program: Path,
        *arguments: str | Path,
        libraries: Iterable[Path] = (),
        environment: Mapping[str, str] | None = None,
        name: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Runs `program` with this root's libc and XRT, and with further folders of `libraries`.

        `name` is the path that the program sees as its own. The loader looks up every function that
        a library needs from another one at the start: a missing one ends the program.
        """
        path = ":".join(map(str, [self.libraries, *libraries]))
        command = [self.loader, "--argv0", name or program, "--library-path", path, program]
        inherited = {k: v for k, v in os.environ.items() if k not in STRANGERS}
        return subprocess.run(
            list(map(str, [*command, *arguments])),
            env={**inherited, "LD_BIND_NOW": "1", **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def run_python(
        self, *arguments: str | Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs this Python, with the packages of its environment, in the root."""
        # The machine's own loader finds the other libraries that Python's modules need.
        binary = Path(sys.executable).resolve()
        return self.run(binary, *arguments, environment=environment, name=sys.executable)

    def _only(self, pattern: str) -> Path:
        found = sorted(self.folder.glob(pattern))
        if not found:
            raise NoPrivateRoot(f"{self.folder} has no {pattern}; remove the folder and try again")
        return found[0]


def cache_folder() -> Path:
    """The folder that also holds a build's downloads (cmake/Headers.cmake)."""
    if given := os.environ.get("ORT_AIE_CACHE_DIR"):
        return Path(given).absolute()
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "ort_aie_ep"


@functools.cache
def private_root() -> PrivateRoot:
    """The root, which is created the first time and kept: later calls need no network.

    Raises:
        NoPrivateRoot: apt cannot get the packages. The message says why, and how to do without.
    """
    cache = cache_folder()
    try:
        headers = sorted(cache.glob("libxrt-dev-*")) or apt(APT_HEADERS, cache, "libxrt-dev")
        roots = sorted(cache.glob("xrt-root-*"))
        if not roots:
            packages = apt(APT_PACKAGES, cache, "libxrt2", "libxrt-npu2")
            name = next(each.name for each in packages if each.name.startswith("libxrt2-"))
            roots = [_merge(packages, cache / name.replace("libxrt2", "xrt-root", 1))]
    except NoPackages as error:
        raise NoPrivateRoot(
            f"cannot get XRT: {error}\nThese tests need Debian sid's (or Ubuntu's newest) XRT, "
            f"which apt downloads the first time. {SKIP}=1 leaves them out."
        ) from None
    return PrivateRoot(roots[-1], headers[-1] / "usr/include")


def apt(script: Path, *arguments: str | Path) -> list[Path]:
    """The folders into which `script` unpacks packages.

    Raises:
        NoPackages: it fails.
    """
    command = ["bash", str(script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoPackages((done.stderr.strip().splitlines() or [f"{script.name} failed"])[-1])
    return [Path(line) for line in done.stdout.splitlines()]


def _merge(packages: Iterable[Path], root: Path) -> Path:
    """Copies the libraries of all `packages` into `root`, which is either complete or absent."""
    with tempfile.TemporaryDirectory(dir=root.parent, prefix=".merging-") as beside:
        new = Path(beside) / "root"
        for package in packages:
            for folder in sorted(package.glob("usr/lib*")):
                to = new / folder.relative_to(package)
                shutil.copytree(folder, to, symlinks=True, dirs_exist_ok=True)
        try:
            new.rename(root)
        except OSError:
            # If two processes get here, the second finds the first one's folder, which has the same
            # content.
            if not root.is_dir():
                raise
    return root


if __name__ == "__main__":
    try:
        print(private_root().folder)
    except NoPrivateRoot as error:
        sys.exit(f"error: {error}")
