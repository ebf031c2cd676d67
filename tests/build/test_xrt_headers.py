"""cmake/XrtHeaders.cmake, driven by a throwaway project, and apt_headers.sh with its packages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from apt_site import AptSite, apt_site, missing_tools
from cmake_program import find_cmake
from test_onnxruntime_headers import MODULES, leftovers, needs_apt, one_line

# EMPTY_MACHINE is a root folder that replaces the machine's and has none of its headers and
# programs.
PROJECT = """\
cmake_minimum_required(VERSION 3.20)
project(consumer LANGUAGES CXX)
if(EMPTY_MACHINE)
  set(CMAKE_FIND_ROOT_PATH "${{EMPTY_MACHINE}}")
  set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
  set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
  set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM ONLY)
endif()
list(PREPEND CMAKE_MODULE_PATH "{modules}")
include(XrtHeaders)
ort_aie_find_xrt(target found)
file(WRITE "${{CMAKE_BINARY_DIR}}/found" "${{target}}\\n${{ORT_AIE_XRT_INCLUDE_DIR}}\\n"
     "${{ORT_AIE_XRT_LIBRARY}}\\n${{ORT_AIE_XRT_VERSION}}\\n${{ORT_AIE_XRT_SOURCE}}")
if(found)
  add_library(module SHARED module.cc)
  target_link_libraries(module PRIVATE ${{target}})
endif()
"""

MODULE = """\
#include <xrt/xrt_device.h>

int Devices() { return 0; }
"""

HEADERS = ("xrt_device.h", "xrt_kernel.h", "xrt_bo.h", "experimental/xrt_xclbin.h")
SONAME = "libxrt_coreutil.so.2"

pytestmark = pytest.mark.skipif(
    find_cmake() is None or shutil.which("c++") is None, reason="there is no cmake or no c++"
)


def write_headers(include: Path, version: str) -> Path:
    """Writes XRT headers that declare only `version`, and returns `include`."""
    for header in HEADERS:
        (include / "xrt" / header).parent.mkdir(parents=True, exist_ok=True)
        (include / "xrt" / header).write_text("#pragma once\n")
    major, minor = version.split(".")
    (include / "xrt/detail").mkdir()
    (include / "xrt/detail/version-slim.h").write_text(
        "#define XRT_VERSION(major, minor) ((major << 16) + (minor))\n"
        f"#define XRT_VERSION_CODE XRT_VERSION({major}, {minor})\n"
    )
    return include


def write_library(folder: Path) -> Path:
    """Makes an empty libxrt_coreutil with the real soname in `folder`, and returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / SONAME
    command = ["c++", "-shared", "-x", "c++", "/dev/null", f"-Wl,-soname,{SONAME}", "-o"]
    subprocess.run([*command, str(library)], check=True)
    return library


def write_xrt(prefix: Path, version: str = "2.25") -> Path:
    """An installed XRT below `prefix`: headers, library and the link that development needs."""
    write_headers(prefix / "include", version)
    library = write_library(prefix / "lib")
    (library.parent / "libxrt_coreutil.so").symlink_to(SONAME)
    return prefix


@dataclass(frozen=True)
class Configuration:
    """The result of one run of cmake; the fields after `build` describe the target."""

    output: str
    build: Path
    target: str = ""
    include: Path = Path()
    library: Path = Path()
    version: str = ""
    source: str = ""

    @property
    def text(self) -> str:
        """The output on one line, because CMake wraps its messages."""
        return " ".join(self.output.split())

    @property
    def failed(self) -> bool:
        return self.source == ""


class Consumer:
    """A CMake project that needs XRT."""

    def __init__(self, directory: Path) -> None:
        self.source = directory / "consumer"
        self.cache = directory / "cache"
        self.builds = 0
        self.source.mkdir()
        (self.source / "CMakeLists.txt").write_text(PROJECT.format(modules=MODULES.as_posix()))
        (self.source / "module.cc").write_text(MODULE)

    def configure(self, *definitions: str, env: Mapping[str, str] | None = None) -> Configuration:
        """Configures in a new build tree, with the test's own cache."""
        self.builds += 1
        build = self.source / f"build-{self.builds}"
        clean = {k: v for k, v in os.environ.items() if not k.startswith("ORT_AIE_")}
        done = subprocess.run(
            [str(find_cmake()), "-S", str(self.source), "-B", str(build)]
            + [f"-D{definition}" for definition in definitions],
            env={**clean, "ORT_AIE_CACHE_DIR": str(self.cache), **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            return Configuration(done.stdout, build)
        target, include, library, version, source = (build / "found").read_text().splitlines()
        return Configuration(
            done.stdout, build, target, Path(include), Path(library), version, source
        )


@pytest.fixture
def consumer(tmp_path: Path) -> Consumer:
    return Consumer(tmp_path)


def needed(found: Configuration) -> list[str]:
    """Builds the consumer's library and returns the libraries that it needs, by soname."""
    subprocess.run([str(find_cmake()), "--build", str(found.build)], check=True)
    dynamic = subprocess.run(
        ["readelf", "-d", str(found.build / "libmodule.so")],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)


# path


@pytest.mark.parametrize("by", ["variable", "environment"])
def test_explicit_prefix_is_taken_first_and_linked_by_soname(
    consumer: Consumer, tmp_path: Path, by: str
) -> None:
    prefix = write_xrt(tmp_path / "prefix")
    # The consumer calls nothing in the library, and Ubuntu's linker leaves out uncalled libraries.
    flags = "CMAKE_SHARED_LINKER_FLAGS=-Wl,--no-as-needed"
    if by == "variable":
        found = consumer.configure(f"ORT_AIE_XRT_DIR={prefix}", flags)
    else:
        found = consumer.configure(flags, env={"ORT_AIE_XRT_DIR": str(prefix)})
    assert (found.target, found.source) == ("XRT::coreutil", "path"), found.output
    assert found.include == prefix / "include"
    assert found.version == "2.25"
    assert "XRT: from path (ORT_AIE_XRT_DIR), version 2.25" in found.text
    assert SONAME in needed(found)


@pytest.mark.parametrize("ways", ["auto", "path"])
def test_wrong_explicit_prefix_is_an_error_that_names_it(
    consumer: Consumer, tmp_path: Path, ways: str
) -> None:
    wrong = tmp_path / "nothing-here"
    found = consumer.configure(f"ORT_AIE_XRT_DIR={wrong}", f"ORT_AIE_XRT_FROM={ways}")
    assert found.failed
    assert f'ORT_AIE_XRT_DIR is "{wrong}"' in found.text
    assert "has no xrt/xrt_device.h" in found.text


def test_what_the_library_does_not_have_fails_the_link_and_not_the_load(
    consumer: Consumer, tmp_path: Path
) -> None:
    prefix = write_xrt(tmp_path / "prefix")
    (consumer.source / "module.cc").write_text(
        "namespace xrt { int Declared(); }\nint Devices() { return xrt::Declared(); }\n"
    )
    found = consumer.configure(f"ORT_AIE_XRT_DIR={prefix}")
    built = subprocess.run(
        [str(find_cmake()), "--build", str(found.build)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode != 0
    assert "undefined reference to `xrt::Declared()'" in built.stdout + built.stderr


def test_explicit_prefix_with_an_old_xrt_is_an_error(consumer: Consumer, tmp_path: Path) -> None:
    found = consumer.configure(f"ORT_AIE_XRT_DIR={write_xrt(tmp_path / 'old', '2.19')}")
    assert found.failed
    assert "has XRT 2.19, and 2.25 is the oldest that will do" in found.text


def test_explicit_prefix_without_the_library_is_an_error(
    consumer: Consumer, tmp_path: Path
) -> None:
    prefix = write_xrt(tmp_path / "prefix")
    (prefix / "lib" / SONAME).unlink()
    found = consumer.configure(f"ORT_AIE_XRT_DIR={prefix}")
    assert found.failed
    assert "there is no libxrt_coreutil.so beside" in found.text


# system


def test_installed_xrt_is_found(consumer: Consumer, tmp_path: Path) -> None:
    prefix = write_xrt(tmp_path / "prefix")
    found = consumer.configure(f"CMAKE_PREFIX_PATH={prefix}")
    assert (found.include, found.source) == (prefix / "include", "system"), found.output
    assert found.library == prefix / "lib/libxrt_coreutil.so"


def test_build_without_xrt_says_so_and_goes_on(consumer: Consumer, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    found = consumer.configure(f"EMPTY_MACHINE={tmp_path / 'root'}")
    assert (found.target, found.source) == ("", "none"), found.output
    assert "XRT: none, so this build has no xrt target (no libort_aie_xrt.so):" in found.text
    for line in (
        "path: ORT_AIE_XRT_DIR is not set",
        "system: libxrt-dev is not installed",
        "apt: there is no apt-get on this machine",
    ):
        assert line in found.text


def test_installed_xrt_that_is_too_old_is_passed_over(consumer: Consumer, tmp_path: Path) -> None:
    write_xrt(tmp_path / "root", "2.21")
    found = consumer.configure(f"EMPTY_MACHINE={tmp_path / 'root'}")
    assert found.source == "none", found.output
    assert "has XRT 2.21, and 2.25 is the oldest that will do" in found.text


def test_xrt_can_be_left_out(consumer: Consumer) -> None:
    found = consumer.configure("ORT_AIE_XRT_FROM=none")
    assert found.source == "none"
    assert "ORT_AIE_XRT_FROM is none" in found.text


def test_forced_way_that_fails_is_an_error(consumer: Consumer) -> None:
    found = consumer.configure("ORT_AIE_XRT_FROM=path")
    assert found.failed
    assert "There is no XRT 2.25 or newer. Tried: path: ORT_AIE_XRT_DIR is not set" in found.text


def test_unknown_way_is_an_error(consumer: Consumer) -> None:
    found = consumer.configure("ORT_AIE_XRT_FROM=magic")
    assert found.failed
    assert 'ORT_AIE_XRT_FROM is "magic"' in found.text


# apt, with the test's own archive


def publish_xrt(site: AptSite, suite: str, version: str, upstream: str) -> None:
    """libxrt-dev, libxrt2, and version 3 of a library that libxrt2 depends on."""
    development, runtime, uuid = (site.root / f"{suite}-{part}" for part in ("dev", "lib", "uuid"))
    write_headers(development / "usr/include", upstream)
    write_library(runtime / "usr/lib/x86_64-linux-gnu")
    (uuid / "usr/lib").mkdir(parents=True)
    (uuid / "usr/lib/libuuid.so.1").touch()
    site.publish(
        suite,
        [
            site.build("libxrt-dev", version, development, f"libxrt2 (= {version})"),
            site.build("libxrt2", version, runtime, "libuuid1 (>= 2)"),
            site.build("libuuid1", "3", uuid),
        ],
    )


@pytest.fixture(scope="module")
def debian() -> Iterator[AptSite]:
    """sid has XRT 2.25; experimental does not exist."""
    if missing_tools():
        pytest.skip(f"not on this machine: {', '.join(missing_tools())}")
    with apt_site() as site:
        publish_xrt(site, "sid", "1:2.25.0-4+b1", "2.25")
        yield site


def machine(site: AptSite) -> dict[str, str]:
    site.configure(one_line(site), "list")
    return site.environment(site.machine("debian", "bookworm"))


def packages(cache: Path, environment: Mapping[str, str], *arguments: str) -> tuple[str, list[str]]:
    """The stderr of apt_headers.sh, and the names of the directories that it prints."""
    options, rest = arguments[:-2], arguments[-2:]
    done = subprocess.run(
        ["bash", str(MODULES / "apt_headers.sh"), *options, str(cache), *rest],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr, [Path(line).name for line in done.stdout.splitlines()]


def test_apt_takes_headers_and_library_and_downloads_once(
    debian: AptSite, consumer: Consumer
) -> None:
    environment = {**machine(debian), "ORT_AIE_XRT_FROM": "apt"}
    first = consumer.configure(env=environment)
    assert (first.version, first.source) == ("2.25", "apt"), first.output
    assert first.include == consumer.cache / "libxrt-dev-1%2.25.0-4+b1/usr/include"
    assert first.library.is_relative_to(consumer.cache / "libxrt2-1%2.25.0-4+b1")
    assert leftovers(consumer.cache) == []

    debian.configure("", "list")
    second = consumer.configure(env=environment)
    assert second.include == first.include, second.output
    assert "apt downloads" not in second.output


def test_apt_compares_versions_with_their_epoch(consumer: Consumer) -> None:
    if missing_tools():
        pytest.skip(f"not on this machine: {', '.join(missing_tools())}")
    with apt_site() as site:
        publish_xrt(site, "sid", "1:2.19.0-1", "2.19")
        found = consumer.configure(env={**machine(site), "ORT_AIE_XRT_FROM": "apt"})
    assert found.failed
    assert "finds only libxrt-dev 1:2.19.0-1, and 1:2.25 is the oldest" in found.text


def test_apt_gets_what_a_package_depends_on_when_asked(debian: AptSite, tmp_path: Path) -> None:
    environment = machine(debian)
    says, alone = packages(tmp_path, environment, "1:2.25", "libxrt2")
    assert alone == ["libxrt2-1%2.25.0-4+b1"], says
    says, all_of_them = packages(tmp_path, environment, "--with-dependencies", "1:2.25", "libxrt2")
    assert all_of_them == ["libxrt2-1%2.25.0-4+b1", "libuuid1-3"], says
    assert (tmp_path / "libuuid1-3/usr/lib/libuuid.so.1").is_file()
    assert leftovers(tmp_path) == []


def test_apt_takes_the_machine_s_own_release_and_what_it_lacks(tmp_path: Path) -> None:
    if missing_tools():
        pytest.skip(f"not on this machine: {', '.join(missing_tools())}")
    with apt_site() as site:

        def build(package: str, version: str, depends: str = "") -> Path:
            return site.build(package, version, site.root / f"{package}-{version}", depends)

        own = [build("clang-19", "19.1", "libllvm19, libuuid1"), build("libllvm19", "19.1")]
        site.publish("bookworm", [*own, build("libuuid1", "2")])
        site.publish("sid", [build("clang-19", "19.7")])
        environment = machine(site)
        (site.root / "status").write_text(
            "Package: libuuid1\nStatus: install ok installed\nVersion: 2\nArchitecture: all\n"
            "Multi-Arch: foreign\nMaintainer: nobody\nDescription: for a test\n"
        )
        site.config.write_text(
            site.config.read_text() + f'Dir::State::status "{site.root}/status";\n'
        )
        options = ("--own-release", "--with-dependencies")
        says, found = packages(tmp_path, environment, *options, "0", "clang-20|clang-19")
    assert found == ["clang-19-19.1", "libllvm19-19.1"], says


def test_apt_names_the_package_that_there_is_not(debian: AptSite, tmp_path: Path) -> None:
    says, found = packages(tmp_path, machine(debian), "1", "libxrt-npu2")
    assert found == []
    assert "apt_headers: apt finds no libxrt-npu2" in says


def test_apt_names_what_cannot_be_satisfied(tmp_path: Path) -> None:
    if missing_tools():
        pytest.skip(f"not on this machine: {', '.join(missing_tools())}")
    with apt_site() as site:
        tree = site.root / "tree"
        site.publish("sid", [site.build("libxrt2", "1:2.25", tree, "libuuid1 (>= 2)")])
        says, found = packages(tmp_path, machine(site), "--with-dependencies", "1", "libxrt2")
    assert found == []
    assert "apt_headers: apt cannot satisfy what libxrt2=1:2.25 depend on" in says


# apt, with the machine's own mirror


@needs_apt
def test_apt_finds_xrt_on_the_machine_s_own_mirror(consumer: Consumer) -> None:
    found = consumer.configure("ORT_AIE_XRT_FROM=apt")
    if found.failed and re.search(
        "Could not resolve|Could not connect|Unable to connect|Cannot initiate the connection|"
        "Temporary failure|timed out|neither Debian nor Ubuntu",
        found.text,
    ):
        pytest.skip("no mirror of this machine's distribution within reach")
    assert (found.source, found.target) == ("apt", "XRT::coreutil"), found.output
    subprocess.run([str(find_cmake()), "--build", str(found.build)], check=True)
