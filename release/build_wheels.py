"""The sdist, and from it a wheel for each CPython: `make wheels`.

    python build_wheels.py [--out dist] [PYTHON ...]

Without PYTHON: each CPython that the project supports and this machine has, as python3.N on PATH or
below ~/.pyenv. auditwheel repairs the wheels, and proves that they run on the systems that
manylinux.PLATFORM names: one that misses it is an error. Runs in an environment that has the extra
`wheels`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tarfile
import time
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path

from manylinux import PLATFORM, CannotBuild, make_toolchain, run

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build/wheels"
SUPPORTED = ((3, 11), (3, 12), (3, 13), (3, 14))

SDIST, WHEEL = "ort_aie_ep-*.tar.gz", "ort_aie_ep-*.whl"

# XRT is AMD's driver package: it comes with the NPU's system, never with a wheel.
XRT = "libxrt_coreutil.so.2"

# What a wheel lacks when the build did not find certain headers: a file or a text in it, and why.
LIBRARY = "ort_aie_ep/libort_aie_ep.so"
COMPLETE = (
    ("ort_aie_ep/libort_aie_xrt.so", b"", "XRT's headers were not found (cmake/XrtHeaders.cmake)"),
    ("ort_aie_ep/libort_aie_sim.so", b"", "XRT's headers were not found (cmake/XrtHeaders.cmake)"),
    (
        LIBRARY,
        b"AieExecutionProvider",
        "the headers of ONNX Runtime are older than 1.24 (cmake/OnnxRuntimeHeaders.cmake)",
    ),
)

ABOUT_PYTHON = (
    "import sys, sysconfig; print(sys.implementation.name, *sys.version_info[:2], "
    "sysconfig.get_path('include'))"
)


def pythons(given: Iterable[str]) -> list[tuple[str, str]]:
    """(tag, path of the interpreter) of each CPython to build for, the oldest first.

    Raises:
        CannotBuild: a given one will not do, or there is none.
    """
    found = {}
    for command in given:
        tag, path, problem = _try(command)
        if problem:
            raise CannotBuild(f"{command} cannot build a wheel: {problem}")
        found[tag] = path
    for major, minor in () if found else SUPPORTED:
        name = f"python{major}.{minor}"
        below = Path.home().glob(f".pyenv/versions/{major}.{minor}.*/bin/{name}")
        for command in (name, *map(str, sorted(below, reverse=True))):
            tag, path, problem = _try(command)
            if not problem:
                found[tag] = path
                break
    if not found:
        names = ", ".join(f"{major}.{minor}" for major, minor in SUPPORTED)
        raise CannotBuild(f"there is no CPython {names} with headers and pip: PYTHONS= names some")
    return sorted(found.items())


def _try(command: str) -> tuple[str, str, str]:
    """The wheel tag of an interpreter and its path, or "" and "" and what is wrong with it."""
    path = shutil.which(command)
    if path is None:
        return "", "", "there is no such command"
    try:
        name, major, minor, include = run(path, "-c", ABOUT_PYTHON).split(maxsplit=3)
        run(path, "-m", "pip", "--version")
    except CannotBuild as error:
        return "", "", str(error).strip()
    if name != "cpython" or (int(major), int(minor)) not in SUPPORTED:
        return "", "", f"it is {name} {major}.{minor}"
    if not (Path(include.strip()) / "Python.h").is_file():
        return "", "", f"there is no Python.h in {include.strip()}"
    return f"cp{major}{minor}", path, ""


def remove_earlier(out: Path) -> None:
    """Makes the folder, or removes what an earlier build left there, and nothing else."""
    out.mkdir(parents=True, exist_ok=True)
    for file in (*out.glob(SDIST), *out.glob(WHEEL)):
        file.unlink()


def make_sdist(out: Path) -> Path:
    """Writes the sdist into `out`; returns the folder of its unpacked content."""
    run(
        *(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", out, ROOT),
        environment={"PYTHONPATH": str(WORK / "backend")},
    )
    (sdist,) = out.glob(SDIST)
    with tarfile.open(sdist) as archive:
        archive.extractall(WORK / "source", filter="data")
    (source,) = (WORK / "source").iterdir()
    return source


def make_wheel(python: str, source: Path, toolchain: Path) -> Path:
    """A wheel of `source` for an interpreter, not yet repaired."""
    native = WORK / "native"
    raw = WORK / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    # What the last interpreter left in CMake's cache goes; the objects stay, and most serve any.
    (native / "CMakeCache.txt").unlink(missing_ok=True)
    backend = WORK / "backend"
    settings = {
        "build-dir": native,
        "cmake.define.CMAKE_TOOLCHAIN_FILE": toolchain,
        "cmake.define.ORT_AIE_NLOHMANN_INCLUDE_DIR": backend / "nlohmann_json/include",
    }
    run(
        *(python, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-cache-dir"),
        *(
            word
            for name, value in settings.items()
            for word in ("--config-settings", f"{name}={value}")
        ),
        *("--wheel-dir", raw, source),
        environment={"PYTHONPATH": str(backend)},
    )
    (wheel,) = raw.glob("*.whl")
    return wheel


def check_complete(wheel: Path) -> None:
    """Raises CannotBuild where the build has left something out."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        for name, text, reason in COMPLETE:
            if name not in names or text not in archive.read(name):
                lacks = f"{name} has no {text.decode()}" if name in names else f"there is no {name}"
                raise CannotBuild(f"{wheel.name} is not complete: {lacks}, because {reason}")


def repair(wheel: Path, out: Path) -> Path:
    """auditwheel's version of a wheel, in `out`."""
    auditwheel = (sys.executable, "-m", "auditwheel")
    before = set(out.glob("*.whl"))
    run(*auditwheel, "repair", "--plat", PLATFORM, "--exclude", XRT, "--wheel-dir", out, wheel)
    (repaired,) = set(out.glob("*.whl")) - before
    with zipfile.ZipFile(repaired) as archive:
        grafted = [name for name in archive.namelist() if ".libs/" in name]
    if grafted:
        raise CannotBuild(f"{wheel.name} needs libraries that no system has: {', '.join(grafted)}")
    return repaired


def newest_versions(wheel: Path) -> list[str]:
    """The newest version of each system library's symbols that a wheel needs: GLIBC_2.27, ..."""
    said = run(sys.executable, "-m", "auditwheel", "show", "--json", wheel)
    report, _ = json.JSONDecoder().raw_decode(said, said.index("{\n"))
    newest: dict[str, tuple[int, ...]] = {}
    for versions in report["versioned_symbols"].values():
        for family, version in (text.split("_") for text in versions):
            numbers = tuple(map(int, version.split(".")))
            newest[family] = max(numbers, newest.get(family, ()))
    return [f"{family}_{'.'.join(map(str, numbers))}" for family, numbers in newest.items()]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pythons", nargs="*", metavar="PYTHON", help="interpreters to build for")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the files go")
    arguments = parser.parse_args()
    out = arguments.out.absolute()
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started:4.0f} s] {text}", flush=True)

    try:
        interpreters = pythons(arguments.pythons)
        shutil.rmtree(WORK, ignore_errors=True)
        WORK.mkdir(parents=True)
        remove_earlier(out)
        requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
        run(
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--target",
            WORK / "backend",
            *requires,
        )
        source = make_sdist(out)
        say(next(out.glob(SDIST)).name)
        toolchain = make_toolchain(WORK / "toolchain", os.environ.get("CXX", "g++"))
        say(f"a toolchain for {PLATFORM} from {os.environ.get('CXX', 'g++')}")
        for _, python in interpreters:
            wheel = make_wheel(python, source, toolchain)
            check_complete(wheel)
            repaired = repair(wheel, out)
            say(f"{repaired.name}: {', '.join(newest_versions(repaired))}")
    except CannotBuild as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
