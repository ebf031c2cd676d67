"""C++ programs that tests run, built with CMake."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ort_aie_ep import platforms

SOURCE = Path(__file__).resolve().parents[1]

# The project looks for pybind11 and ONNX Runtime's headers; the programs use neither.
PYBIND11 = """\
function(pybind11_add_module name no_extras)
  add_library(${name} MODULE EXCLUDE_FROM_ALL ${ARGN})
endfunction()
"""
HEADERS = (
    "onnxruntime_c_api.h",
    "onnxruntime_ep_c_api.h",
    "onnxruntime_session_options_config_keys.h",
)


@functools.cache
def find_cmake() -> str | None:
    """The machine's own where it is new enough, as scikit-build-core chooses for the wheel: another
    writes options in another order, and ccache would not have the wheel's objects."""
    for path in (shutil.which("cmake"), find_tool("cmake")):
        if path is not None:
            said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
            if tuple(map(int, re.findall(r"\d+", said.stdout)[:2])) >= (3, 25):
                return path
    return None


def find_tool(name: str) -> str | None:
    beside_python = shutil.which(name, path=str(Path(sys.executable).parent))
    return beside_python or shutil.which(name)


def find_compiler() -> str | None:
    """The compiler that scikit-build-core takes for the wheel, whose objects ccache then has."""
    words = (os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "").split()
    return shutil.which(words[0]) if words else None


def run_cmake(*arguments: str | Path) -> None:
    """Skips the test if cmake is missing, or nlohmann_json, which the wheel's build provides."""
    cmake = find_cmake()
    if cmake is None:
        pytest.skip("there is no cmake")
    done = subprocess.run(
        [cmake, *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if "nlohmann/json.hpp was not found" in done.stdout:
        pytest.skip("there is no nlohmann_json, which a build of the package has")
    assert done.returncode == 0, done.stdout


class Project:
    """The project in a build folder. Programs are built when tests ask for them.

    The folder stays, so that a later run builds only what has changed. pytest's workers and other
    runs share it: one at a time configures or builds.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        stubs = folder / "stubs"
        stubs.mkdir(parents=True, exist_ok=True)
        with self._alone():
            _write(stubs / "pybind11Config.cmake", PYBIND11)
            for name in HEADERS:
                _write(stubs / name, "#pragma once\n#define ORT_API_VERSION 23\n")
            # Tools that an earlier run found, and its generator, may be gone.
            xrt_library = self.xrt_tests / "xrt_library"
            for found in (folder / "CMakeCache.txt", xrt_library):
                found.unlink(missing_ok=True)
            ninja, ccache, compiler = find_tool("ninja"), find_tool("ccache"), find_compiler()
            run_cmake(
                "-S", SOURCE, "-B", folder, "-DORT_AIE_WARNINGS_AS_ERRORS=ON",
                f"-Dpybind11_DIR={stubs}", f"-DORT_AIE_ONNXRUNTIME_INCLUDE_DIR={stubs}",
                f"-DPython_EXECUTABLE={sys.executable}",
                *(("-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}") if ninja else ()),
                *((f"-DCMAKE_CXX_COMPILER_LAUNCHER={ccache}",) if ccache else ()),
                *((f"-DCMAKE_CXX_COMPILER={compiler}",) if compiler else ()),
            )  # fmt: skip
            # Read here: another process that configures removes the file for a moment.
            self.xrt_library = xrt_library.read_text() if xrt_library.is_file() else None
            """Path of the XRT library that the build found, or None."""

    def build(self, program: str) -> Path:
        """Builds `program`, a path in the folder that ends with the target's name.

        Skips the test if the program needs XRT's headers and they are missing.
        """
        path = self.folder / program
        if path.parent == self.xrt_tests and self.xrt_library is None:
            pytest.skip("there are no XRT headers")
        with self._alone():
            run_cmake("--build", self.folder, "--target", path.name, "-j", str(os.cpu_count() or 1))
        return path

    @property
    def xrt_tests(self) -> Path:
        """The programs that tests/xrt/CMakeLists.txt builds."""
        return self.folder / "tests" / "xrt"

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with (self.folder / "lock").open("w") as lock:
            platforms.lock(lock.fileno(), wait=True)
            yield


def _write(path: Path, text: str) -> None:
    """A file that already has this text keeps its time, so what was built from it stays valid."""
    if not path.is_file() or path.read_text() != text:
        path.write_text(text)
