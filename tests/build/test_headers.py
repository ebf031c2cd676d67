"""cmake/Headers.cmake, driven by a small project: where it finds headers, and what it says else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from cmake_program import find_tool

MODULES = Path(__file__).resolve().parents[2] / "cmake"
ORT_HEADERS = (
    "onnxruntime_c_api.h",
    "onnxruntime_ep_c_api.h",
    "onnxruntime_session_options_config_keys.h",
)
XRT_HEADERS = ("xrt_device.h", "xrt_kernel.h", "xrt_bo.h", "experimental/xrt_xclbin.h")
PROJECT = f"""\
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES NONE)
set_property(GLOBAL PROPERTY TARGET_SUPPORTS_SHARED_LIBS TRUE)
if(EXISTS "${{ROOT}}")
  set(CMAKE_FIND_ROOT_PATH "${{ROOT}}")
  set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
  set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM ONLY)
endif()
list(PREPEND CMAKE_MODULE_PATH "{MODULES.as_posix()}")
include(OnnxRuntimeHeaders)
include(XrtHeaders)
cmake_language(CALL ort_aie_find_${{WHAT}} target found)
if(target)
  get_target_property(directory ${{target}} INTERFACE_INCLUDE_DIRECTORIES)
  message(STATUS "found ${{directory}} ${{ORT_AIE_XRT_LIBRARY}}")
endif()
"""
NO_NETWORK = re.compile(
    "[Cc]ould not (resolve|connect)|[Uu]nable to connect|Cannot initiate the connection|"
    "Temporary failure|timed out|neither Debian nor Ubuntu"
)

needs_apt = pytest.mark.skipif(shutil.which("apt-get") is None, reason="there is no apt-get")


def onnxruntime(folder: Path, api: int = 23) -> Path:
    """Writes headers that declare only a version."""
    folder.mkdir(parents=True)
    for name in ORT_HEADERS:
        (folder / name).write_text(f"#pragma once\n\n#define ORT_API_VERSION {api}\n")
    return folder


def xrt(prefix: Path, version: str = "2.25") -> Path:
    """Writes headers that declare only a version, and a library that is empty."""
    include = prefix / "include/xrt"
    for name in (*XRT_HEADERS, "detail/version-slim.h"):
        (include / name).parent.mkdir(parents=True, exist_ok=True)
        (include / name).touch()
    (include / "detail/version-slim.h").write_text(
        "#define XRT_VERSION(major, minor) ((major << 16) + (minor))\n"
        f"#define XRT_VERSION_CODE XRT_VERSION({version.replace('.', ', ')})\n"
    )
    (prefix / "lib").mkdir()
    (prefix / "lib/libxrt_coreutil.so").touch()
    return prefix


class Consumer:
    """A project that needs headers, on a machine with an empty root folder in place of its own."""

    def __init__(self, folder: Path) -> None:
        self.root, self.cache, self.source = folder / "root", folder / "cache", folder / "source"
        self.root.mkdir()
        self.source.mkdir()
        (self.source / "CMakeLists.txt").write_text(PROJECT)

    def __call__(self, what: str, *definitions: str, **environment: str) -> str:
        """What cmake says, in one line. It looks for `what`: headers or xrt."""
        settings = (f"WHAT={what}", f"ROOT={self.root}", *definitions)
        clean = {k: v for k, v in os.environ.items() if not k.startswith("ORT_AIE_")}
        done = subprocess.run(
            [str(find_tool("cmake")), "-S", self.source, "-B", self.source / "build", "--fresh"]
            + [f"-D{setting}" for setting in settings],
            env={**clean, "ORT_AIE_CACHE_DIR": str(self.cache), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0 or done.stdout.count("CMake Error") == 1, done.stdout
        return " ".join(done.stdout.split())


@pytest.fixture
def cmake(tmp_path: Path) -> Consumer:
    if find_tool("cmake") is None:
        pytest.skip("there is no cmake")
    return Consumer(tmp_path)


def test_a_given_folder_is_taken(cmake: Consumer, tmp_path: Path) -> None:
    first, second = onnxruntime(tmp_path / "a/include", 24), onnxruntime(tmp_path / "b/onnxruntime")
    said = cmake("headers", ORT_AIE_ONNXRUNTIME_INCLUDE_DIR=str(first.parent))
    assert f"ORT_API_VERSION 24: {first} " in said
    variable = f"ORT_AIE_ONNXRUNTIME_INCLUDE_DIR={second}"
    said = cmake("headers", variable, ORT_AIE_ONNXRUNTIME_INCLUDE_DIR=str(first))
    assert f"found {second} " in said
    prefix = xrt(tmp_path / "xrt")
    said = cmake("xrt", f"ORT_AIE_XRT_DIR={prefix}")
    assert "XRT_VERSION_CODE 2.25" in said
    assert f"found {prefix}/include {prefix}/lib/libxrt_coreutil.so" in said


@pytest.mark.parametrize("wrong", ["nothing", "old", "no library"])
@pytest.mark.parametrize("what", ["headers", "xrt"])
def test_a_given_folder_that_will_not_do_is_an_error(
    cmake: Consumer, tmp_path: Path, what: str, wrong: str
) -> None:
    folder = tmp_path / "given"
    setting = {"headers": "ORT_AIE_ONNXRUNTIME_INCLUDE_DIR", "xrt": "ORT_AIE_XRT_DIR"}[what]
    problem = {"headers": "has no onnxruntime_c_api.h", "xrt": "has no xrt/xrt_device.h"}[what]
    if what == "headers" and wrong == "old":
        onnxruntime(folder, 22)
        problem = "has ORT_API_VERSION 22, and 23 is the oldest that will do"
    elif what == "xrt" and wrong != "nothing":
        xrt(folder, "2.25" if wrong == "no library" else "2.19")
        problem = "has XRT_VERSION_CODE 2.19, and 2.25 is the oldest that will do"
    if what == "xrt" and wrong == "no library":
        (folder / "lib/libxrt_coreutil.so").unlink()
        problem = "there is no libxrt_coreutil.so beside"
    said = cmake(what, f"{setting}={folder}")
    assert f'{setting} is "{folder}", but ' in said
    assert problem in said


def test_installed_headers_are_found_if_they_are_new_enough(cmake: Consumer) -> None:
    include = onnxruntime(cmake.root / "usr/include/onnxruntime")
    xrt(cmake.root / "opt/xilinx/xrt")
    assert f"ORT_API_VERSION 23: {include} " in cmake("headers")
    assert "XRT_VERSION_CODE 2.25" in cmake("xrt")
    shutil.rmtree(include)
    onnxruntime(include, 21)
    said = cmake("headers")
    assert f"{include} has ORT_API_VERSION 21" in said


def test_what_is_in_the_cache_is_not_downloaded(cmake: Consumer) -> None:
    onnxruntime(cmake.cache / "libonnxruntime-dev-1.9-1/usr/include/onnxruntime", 9)
    include = cmake.cache / "libonnxruntime-dev-1.27.1+dfsg-1/usr/include/onnxruntime"
    onnxruntime(include, 27)
    said = cmake("headers", "ORT_AIE_HEADERS_FROM=apt")
    assert f"ORT_API_VERSION 27: {include} " in said
    assert "apt downloads" not in said
    headers = xrt(cmake.cache / "libxrt-dev-1%2.25.0-4/usr")
    libraries = cmake.cache / "libxrt2-1%2.25.0-4/usr/lib/x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    (headers / "lib/libxrt_coreutil.so").rename(libraries / "libxrt_coreutil.so.2")
    assert f"found {headers}/include {libraries}/libxrt_coreutil.so.2" in cmake("xrt")


def test_when_there_is_nothing_the_error_says_what_to_set(cmake: Consumer, tmp_path: Path) -> None:
    said = cmake("headers")
    for line in (
        "none with ORT_API_VERSION 23 or newer. Tried: path: ORT_AIE_ONNXRUNTIME_INCLUDE_DIR is",
        "system: there is no onnxruntime_c_api.h on CMake's search path",
        f"cache: there is no libonnxruntime-dev in {cmake.cache} apt: there is no apt-get on",
        "Install libonnxruntime-dev, or set ORT_AIE_ONNXRUNTIME_INCLUDE_DIR (a CMake variable or",
    ):
        assert line in said
    other = {"ORT_AIE_CACHE_DIR": "", "XDG_CACHE_HOME": str(tmp_path / "xdg")}
    assert f"no libonnxruntime-dev in {tmp_path}/xdg/ort_aie_ep" in cmake("headers", **other)
    other |= {"XDG_CACHE_HOME": "", "HOME": "/proc/nowhere"}
    assert f"in {cmake.source}/build/ort_aie_cache" in cmake("headers", **other)


def test_a_build_without_xrt_says_so_once(cmake: Consumer) -> None:
    none = "XRT: none, so this build has no xrt target (no libort_aie_xrt.so):"
    said = cmake("xrt")
    assert said.count("xrt target") == 1
    assert f"{none} path: ORT_AIE_XRT_DIR is not set system: there is no xrt/xrt_device.h" in said
    assert f"{none} ORT_AIE_XRT_FROM is none" in cmake("xrt", ORT_AIE_XRT_FROM="none")
    assert "libxrt-dev" in cmake("xrt", "ORT_AIE_XRT_FROM=path")
    assert 'FROM is "magic"; it can be auto' in cmake("xrt", "ORT_AIE_XRT_FROM=magic")


MACHINES = {
    "bookworm sid": "ID=debian\nVERSION_CODENAME=bookworm\n",
    "noble devel": "ID=linuxmint\nID_LIKE='ubuntu debian'\nUBUNTU_CODENAME=noble\n",
}


@needs_apt
@pytest.mark.parametrize("releases", MACHINES)
def test_apt_takes_and_verifies_the_machine_s_sources(tmp_path: Path, releases: str) -> None:
    """What apt_headers.sh makes of them, and what apt would then download."""
    old, new = releases.split()
    (tmp_path / "os-release").write_text(MACHINES[releases])
    (tmp_path / "apt.conf").write_text(
        f'Dir::Etc::sourcelist "/dev/null"; Dir::Etc::sourceparts "{tmp_path}/sources";\n'
        f'APT::Update::Post-Invoke {{ "touch {tmp_path}/hook"; }}; APT::Sandbox::User "root";\n'
    )
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources/one.list").write_text(
        f"deb [arch=amd64 trusted=yes signed-by=/a/{old}.gpg] file:/nowhere/{old} {old} main # x\n"
        f"deb [trusted=yes] file:{tmp_path}/unsigned {old} main\n"
    )
    (tmp_path / f"unsigned/dists/{new}").mkdir(parents=True)
    (tmp_path / f"unsigned/dists/{new}/Release").write_text(f"Suite: {new}\n")
    key = "Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQINBF\n"
    (tmp_path / "sources/two.sources").write_text(
        f"Enabled: no\nTypes: deb\nURIs: file:/nowhere/off\nSuites: {old}\nComponents: main\n\n"
        f"Types: deb deb-src\n# deb\nURIs: file:/nowhere/on\nSuites: {old} {old}-updates\n"
        f"Components: main\nTrusted: yes\n{key}"
    )
    done = subprocess.run(
        ["bash", "-c", f""". {MODULES}/apt_headers.sh; release=$(newest_release)
            private_apt "$release" /dev/null; cat "$work"/sources/* "$work/log"
            apt-get -c "$work/apt.conf" update --print-uris"""],
        env={**os.environ, "APT_CONFIG": str(tmp_path / "apt.conf"),
             "ORT_AIE_OS_RELEASE": str(tmp_path / "os-release")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    said = done.stdout
    for suite in (f"nowhere/{old}/dists/{new}", f"on/dists/{new}", f"on/dists/{new}-updates"):
        assert f"{suite}/InRelease" in said
    indexes = set(re.findall(r"/main/([^/']+/[^/']+)'", said))
    assert {re.sub("-.*/", "/", name) for name in indexes} == {"binary/Packages.xz"}
    assert f"signed-by=/a/{old}.gpg]" in said
    assert key in said
    assert re.search(f"unsigned {new} Release' is not signed", said)
    assert "rusted" not in said
    assert "/off/" not in said
    assert not (tmp_path / "hook").exists()


@pytest.mark.in_turn
@needs_apt
@pytest.mark.parametrize("what", ["headers", "xrt"])
def test_apt_downloads_from_the_machine_s_own_mirror(cmake: Consumer, what: str) -> None:
    shutil.rmtree(cmake.root)
    said = cmake(what, "ORT_AIE_HEADERS_FROM=apt", "ORT_AIE_XRT_FROM=apt")
    if "found" not in said and (problem := NO_NETWORK.search(said)):
        pytest.skip(f"no mirror is within reach: {problem[0]}")
    assert f"found {cmake.cache}/lib" in said
    assert not [folder for folder in cmake.cache.iterdir() if folder.name.startswith(".")]
    assert "apt downloads" not in cmake(what, "ORT_AIE_HEADERS_FROM=apt", "ORT_AIE_XRT_FROM=apt")
