"""C++ programs that tests run, built with CMake."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from ort_aie_ep import platforms

SOURCE = Path(__file__).resolve().parents[1]


def find_tool(name: str) -> str | None:
    beside_python = shutil.which(name, path=str(Path(sys.executable).parent))
    return beside_python or shutil.which(name)


def run_cmake(*arguments: str | Path) -> None:
    """Skips the test if cmake is missing, or what the package's build needs."""
    cmake = find_tool("cmake")
    if cmake is None:
        pytest.skip("there is no cmake")
    done = subprocess.run(
        [cmake, *map(str, arguments)],
        cwd=SOURCE if (SOURCE / "CMakeLists.txt").is_file() else None,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if "nlohmann/json.hpp was not found" in done.stdout:
        pytest.skip("there is no nlohmann_json, which a build of the package has")
    assert done.returncode == 0, done.stdout


@cache
def example_program(build: Path) -> Path:
    """examples/cpp, built with the same headers that CMake finds for the library."""
    import onnxruntime

    build.mkdir(parents=True)
    # ONNX Runtime's C library from the Python wheel, under the names that linking and loading need.
    (library,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
        (build / name).symlink_to(library)
    library_option = f"-DONNXRUNTIME_LIBRARY={build / 'libonnxruntime.so'}"
    run_cmake("-S", SOURCE / "examples" / "cpp", "-B", build, library_option)
    run_cmake("--build", build)
    return build / "generate"


class Project:
    """The build that the package came from. Programs are built when tests ask for them.

    pytest's workers and other runs share it: one at a time configures or builds.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        with self._alone():
            if not (folder / "CMakeCache.txt").is_file():
                pybind11 = pytest.importorskip("pybind11", exc_type=ImportError)
                run_cmake(
                    "--preset", "dev", "-B", folder, f"-DPython_EXECUTABLE={sys.executable}",
                    f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
                )  # fmt: skip
        found = self.xrt_tests / "xrt_library"
        self.xrt_library = found.read_text() if found.is_file() else None
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
