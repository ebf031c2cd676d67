"""cmake/OnnxRuntimeHeaders.cmake, driven by a throwaway project, one way at a time."""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from apt_site import AptSite, apt_site, missing_tools, write_headers
from cmake_program import find_cmake

MODULES = Path(__file__).resolve().parents[2] / "cmake"

# EMPTY_MACHINE is a root folder that replaces the machine's and has none of its headers and
# programs.
PROJECT = """\
cmake_minimum_required(VERSION 3.20)
project(consumer LANGUAGES NONE)
if(EMPTY_MACHINE)
  set(CMAKE_FIND_ROOT_PATH "${{EMPTY_MACHINE}}")
  set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
  set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM ONLY)
endif()
list(PREPEND CMAKE_MODULE_PATH "{modules}")
include(OnnxRuntimeHeaders)
ort_aie_find_headers(target)
get_target_property(directory ${{target}} INTERFACE_INCLUDE_DIRECTORIES)
file(WRITE "${{CMAKE_BINARY_DIR}}/found"
     "${{target}}\\n${{directory}}\\n${{ORT_AIE_HEADERS_API_VERSION}}\\n${{ORT_AIE_HEADERS_SOURCE}}")
"""


needs_apt = pytest.mark.skipif(
    shutil.which("apt-get") is None, reason="there is no apt-get on this machine"
)
needs_apt_site = pytest.mark.skipif(
    bool(missing_tools()), reason=f"not on this machine: {', '.join(missing_tools())}"
)


@dataclass(frozen=True)
class Configuration:
    """The result of one run of cmake; the fields after `output` describe the target."""

    output: str
    target: str = ""
    directory: Path = Path()
    api: int = 0
    source: str = ""

    @property
    def ok(self) -> bool:
        return self.target == "OnnxRuntime::Headers"

    @property
    def text(self) -> str:
        """The output on one line, because CMake wraps its messages."""
        return " ".join(self.output.split())


class Consumer:
    """A CMake project that needs the headers."""

    def __init__(self, directory: Path) -> None:
        self.source = directory / "consumer"
        self.cache = directory / "cache"
        self.builds = 0
        self.source.mkdir()
        (self.source / "CMakeLists.txt").write_text(PROJECT.format(modules=MODULES.as_posix()))

    def configure(self, *definitions: str, env: Mapping[str, str] | None = None) -> Configuration:
        """Configures in a new build tree; the cache is the test's own, unless `env` names
        another."""
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
            return Configuration(done.stdout)
        target, directory, api, source = (build / "found").read_text().splitlines()
        return Configuration(done.stdout, target, Path(directory), int(api), source)


@pytest.fixture
def consumer(tmp_path: Path) -> Consumer:
    if find_cmake() is None:
        pytest.skip("there is no cmake")
    return Consumer(tmp_path)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A release archive with upstream's layout."""
    name = "onnxruntime-linux-x64-1.23.2"
    write_headers(tmp_path / name / "include", 23)
    (tmp_path / name / "include/core/providers").mkdir(parents=True)
    (tmp_path / name / "include/core/providers/resource.h").touch()
    (tmp_path / name / "LICENSE").write_text("MIT\n")
    (tmp_path / name / "lib").mkdir()
    (tmp_path / name / "lib/libonnxruntime.so").write_bytes(bytes(4096))
    file = tmp_path / f"{name}.tgz"
    with tarfile.open(file, "w:gz") as tar:
        tar.add(tmp_path / name, name)
    return file


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def archive_settings(file: Path, digest: str) -> dict[str, str]:
    return {
        "ORT_AIE_HEADERS_FROM": "archive",
        "ORT_AIE_ONNXRUNTIME_ARCHIVE_URL": file.as_uri(),
        "ORT_AIE_ONNXRUNTIME_ARCHIVE_SHA256": digest,
    }


def leftovers(cache: Path) -> list[str]:
    """Names in the cache that should have been renamed or removed."""
    return [entry.name for entry in cache.iterdir() if entry.name.startswith(".")]


# path


@pytest.mark.parametrize("by", ["variable", "environment"])
def test_explicit_path_is_taken_first(consumer: Consumer, tmp_path: Path, by: str) -> None:
    include = write_headers(tmp_path / "include", 24)
    setting = {"ORT_AIE_ONNXRUNTIME_INCLUDE_DIR": str(include)}
    if by == "variable":
        found = consumer.configure(*(f"{k}={v}" for k, v in setting.items()))
    else:
        found = consumer.configure(env=setting)
    assert found.ok, found.output
    assert (found.directory, found.api, found.source) == (include, 24, "path")
    assert "ONNX Runtime headers: from path" in found.output
    assert "ORT_API_VERSION 24" in found.output


def test_cmake_variable_wins_over_environment(consumer: Consumer, tmp_path: Path) -> None:
    ours, other = write_headers(tmp_path / "a", 24), write_headers(tmp_path / "b", 25)
    found = consumer.configure(
        f"ORT_AIE_ONNXRUNTIME_INCLUDE_DIR={ours}",
        env={"ORT_AIE_ONNXRUNTIME_INCLUDE_DIR": str(other)},
    )
    assert found.directory == ours


def test_explicit_path_may_be_the_directory_above(consumer: Consumer, tmp_path: Path) -> None:
    include = write_headers(tmp_path / "prefix/include/onnxruntime", 23)
    found = consumer.configure(f"ORT_AIE_ONNXRUNTIME_INCLUDE_DIR={tmp_path / 'prefix/include'}")
    assert found.directory == include


@pytest.mark.parametrize("headers_from", ["auto", "path"])
def test_wrong_explicit_path_is_an_error_that_names_it(
    consumer: Consumer, tmp_path: Path, headers_from: str
) -> None:
    wrong = tmp_path / "nothing-here"
    found = consumer.configure(
        f"ORT_AIE_ONNXRUNTIME_INCLUDE_DIR={wrong}", f"ORT_AIE_HEADERS_FROM={headers_from}"
    )
    assert not found.ok
    assert f'ORT_AIE_ONNXRUNTIME_INCLUDE_DIR is "{wrong}"' in found.text
    assert "has no onnxruntime_c_api.h" in found.text


def test_explicit_path_with_old_headers_is_an_error(consumer: Consumer, tmp_path: Path) -> None:
    old = write_headers(tmp_path / "old", 22)
    found = consumer.configure(f"ORT_AIE_ONNXRUNTIME_INCLUDE_DIR={old}")
    assert not found.ok
    assert "ORT_API_VERSION 22, and 23 is the oldest that will do" in found.text
    assert str(old) in found.text


# system


@pytest.mark.parametrize("layout", ["onnxruntime", "onnxruntime/core/session"])
def test_installed_headers_are_found(consumer: Consumer, tmp_path: Path, layout: str) -> None:
    include = write_headers(tmp_path / "prefix/include" / layout, 23)
    found = consumer.configure(f"CMAKE_PREFIX_PATH={tmp_path / 'prefix'}")
    assert (found.directory, found.api, found.source) == (include, 23, "system"), found.output


def test_installed_headers_that_are_too_old_are_passed_over(
    consumer: Consumer, tmp_path: Path, archive: Path
) -> None:
    write_headers(tmp_path / "root/include/onnxruntime", 21)
    settings = archive_settings(archive, sha256(archive))
    settings["ORT_AIE_HEADERS_FROM"] = "auto"
    found = consumer.configure(f"EMPTY_MACHINE={tmp_path / 'root'}", env=settings)
    assert (found.api, found.source) == (23, "archive"), found.output


# archive


def test_archive_with_the_right_hash_is_unpacked_into_the_cache(
    consumer: Consumer, archive: Path
) -> None:
    found = consumer.configure(env=archive_settings(archive, sha256(archive).upper()))
    assert found.ok, found.output
    assert (found.api, found.source) == (23, "archive")
    assert found.directory.is_relative_to(consumer.cache)
    assert (found.directory / "core/providers/resource.h").is_file()
    assert (found.directory.parent / "LICENSE").is_file()
    assert not list(consumer.cache.rglob("libonnxruntime.so"))
    assert leftovers(consumer.cache) == []


def test_archive_is_not_downloaded_twice(consumer: Consumer, archive: Path) -> None:
    settings = archive_settings(archive, sha256(archive))
    first = consumer.configure(env=settings)
    archive.unlink()
    second = consumer.configure(env=settings)
    assert second.directory == first.directory, second.output
    assert "downloading" not in second.output


def test_archive_with_the_wrong_hash_is_refused(consumer: Consumer, archive: Path) -> None:
    wrong = "0" * 64
    found = consumer.configure(env=archive_settings(archive, wrong))
    assert not found.ok
    assert f"has SHA256 {sha256(archive)}, not the expected {wrong}" in found.text
    assert list(consumer.cache.iterdir()) == []


def test_archive_of_ones_own_needs_a_hash(consumer: Consumer, archive: Path) -> None:
    found = consumer.configure(env=archive_settings(archive, ""))
    assert not found.ok
    assert "is not downloaded without ORT_AIE_ONNXRUNTIME_ARCHIVE_SHA256" in found.text


def test_archive_without_headers_is_refused(consumer: Consumer, tmp_path: Path) -> None:
    file = tmp_path / "other.tgz"
    file.write_bytes(b"no archive at all")
    found = consumer.configure(env=archive_settings(file, sha256(file)))
    assert not found.ok
    assert "is no archive with ONNX Runtime headers" in found.text
    assert list(consumer.cache.iterdir()) == []


# nothing, and the option


def test_when_nothing_works_one_message_says_what_was_tried_and_what_to_do(
    consumer: Consumer, tmp_path: Path
) -> None:
    missing = tmp_path / "missing.tgz"
    settings = archive_settings(missing, "0" * 64)
    settings["ORT_AIE_HEADERS_FROM"] = "auto"
    (tmp_path / "root").mkdir()
    found = consumer.configure(f"EMPTY_MACHINE={tmp_path / 'root'}", env=settings)
    assert not found.ok
    assert found.output.count("CMake Error") == 1
    for line in (
        "path: ORT_AIE_ONNXRUNTIME_INCLUDE_DIR is not set",
        "system: libonnxruntime-dev is not installed",
        "apt: there is no apt-get on this machine",
        f"archive: cannot download {missing.as_uri()}",
        "1. set ORT_AIE_ONNXRUNTIME_INCLUDE_DIR",
        "2. install the package libonnxruntime-dev, 1.23 or newer",
        "3. give a release archive",
    ):
        assert line in found.text


def test_forced_way_tries_no_other(consumer: Consumer, tmp_path: Path) -> None:
    found = consumer.configure("ORT_AIE_HEADERS_FROM=path")
    assert not found.ok
    assert "path: ORT_AIE_ONNXRUNTIME_INCLUDE_DIR is not set" in found.text
    assert not re.search(r"^ +(system|apt|archive): ", found.output, re.MULTILINE)


def test_unknown_way_is_an_error(consumer: Consumer) -> None:
    found = consumer.configure("ORT_AIE_HEADERS_FROM=magic")
    assert not found.ok
    assert 'ORT_AIE_HEADERS_FROM is "magic"' in found.text


def test_cache_moves_into_the_build_tree_when_there_is_no_home_to_write_to(
    consumer: Consumer, archive: Path
) -> None:
    settings = {**archive_settings(archive, sha256(archive)), "ORT_AIE_CACHE_DIR": ""}
    settings |= {"XDG_CACHE_HOME": "", "HOME": "/proc/nowhere"}
    found = consumer.configure(env=settings)
    assert found.ok, found.output
    assert found.directory.is_relative_to(consumer.source / "build-1/ort_aie_cache")


def test_cache_follows_xdg(consumer: Consumer, archive: Path, tmp_path: Path) -> None:
    settings = {**archive_settings(archive, sha256(archive)), "ORT_AIE_CACHE_DIR": ""}
    found = consumer.configure(env={**settings, "XDG_CACHE_HOME": str(tmp_path / "xdg")})
    assert found.directory.is_relative_to(tmp_path / "xdg/ort_aie_ep"), found.output


# apt, with the test's own archive


@pytest.fixture(scope="module")
def debian() -> Iterator[AptSite]:
    """sid has 1.23.2 and experimental has 1.27.1; the machine runs neither."""
    if missing_tools():
        pytest.skip(f"not on this machine: {', '.join(missing_tools())}")
    with apt_site() as site:
        site.suite("sid", {"1.23.2-6": 23})
        site.suite("experimental", {"1.27.1-1": 27})
        yield site


def one_line(site: AptSite, suite: str = "bookworm", component: str = "main") -> str:
    return (
        "# deb http://off.example.invalid/debian bookworm main\n"
        "deb-src http://src.example.invalid/debian bookworm main\n"
        "deb [arch=all] http://tools.example.invalid/ stable-tools main\n"
        f"deb [ arch=all signed-by={site.key} ] {site.uri} {suite} {component} contrib # ours\n"
    )


def deb822(site: AptSite, signed_by: str) -> str:
    return (
        "Enabled: no\nTypes: deb\nURIs: http://off.example.invalid/\nSuites: bookworm\n"
        "Components: main\n\n"
        f"Types: deb deb-src\n# a comment\nURIs: {site.uri}\nSuites: bookworm bookworm-updates\n"
        f"Components: main\nSigned-By: {signed_by}\n"
    )


def run_script(
    cache: Path,
    environment: Mapping[str, str],
    script: Path = MODULES / "apt_headers.sh",
    **options: object,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        ["bash", str(script), str(cache), "1.23"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def test_apt_takes_the_newest_version_and_downloads_once(
    debian: AptSite, consumer: Consumer
) -> None:
    debian.configure(one_line(debian), "list")
    environment = debian.environment(debian.machine("debian", "bookworm"))
    environment["ORT_AIE_HEADERS_FROM"] = "apt"
    first = consumer.configure(env=environment)
    assert (first.api, first.source) == (27, "apt"), first.output
    assert first.directory.is_relative_to(consumer.cache / "libonnxruntime-dev-1.27.1-1")
    assert leftovers(consumer.cache) == []
    assert not debian.hook_witness.exists()

    debian.configure("", "list")
    second = consumer.configure(env=environment)
    assert second.directory == first.directory, second.output
    assert "apt downloads" not in second.output


def test_apt_reads_deb822_sources(debian: AptSite, tmp_path: Path) -> None:
    debian.configure(deb822(debian, str(debian.key)), "sources")
    done = run_script(tmp_path, debian.environment(debian.machine("debian", "bookworm")))
    assert done.stdout.strip() == str(tmp_path / "libonnxruntime-dev-1.27.1-1"), done.stderr


def test_apt_reads_a_key_inside_the_sources(debian: AptSite, tmp_path: Path) -> None:
    armoured = subprocess.run(
        ["gpg", "--homedir", debian.root / "gnupg", "--batch", "--armor", "--export"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    block = "".join(f"\n {line or '.'}" for line in armoured.strip().splitlines())
    debian.configure(deb822(debian, block), "sources")
    done = run_script(tmp_path, debian.environment(debian.machine("debian", "bookworm")))
    assert done.returncode == 0, done.stderr


@needs_apt_site
def test_apt_refuses_what_is_not_signed_by_the_configured_key(tmp_path: Path) -> None:
    with apt_site() as site, apt_site() as other:
        site.suite("sid", {"1.23.2-6": 23})
        site.suite("experimental", {"1.27.1-1": 27}, sign=False)
        # trusted=yes turns the check off; the script checks all the same.
        site.configure(
            f"deb [trusted=yes signed-by={other.key}] {site.uri} bookworm main\n", "list"
        )
        done = run_script(tmp_path, site.environment(site.machine("debian", "bookworm")))
    assert done.returncode == 1
    assert "apt_headers: apt finds no libonnxruntime-dev" in done.stderr
    assert re.search("NO_PUBKEY|not signed|Missing key", done.stderr), done.stderr
    assert list(tmp_path.iterdir()) == []


@needs_apt_site
def test_apt_refuses_a_package_that_is_not_the_signed_one(tmp_path: Path) -> None:
    with apt_site() as site:
        site.suite("sid", {"1.23.2-6": 23})
        for deb in (site.root / "www/pool").iterdir():
            deb.write_bytes(bytes(deb.stat().st_size))
        site.configure(one_line(site), "list")
        done = run_script(tmp_path, site.environment(site.machine("debian", "bookworm")))
    assert done.returncode == 1
    assert "apt_headers: apt cannot download libonnxruntime-dev" in done.stderr
    assert "Hash Sum mismatch" in done.stderr
    assert list(tmp_path.iterdir()) == []


@needs_apt_site
def test_apt_says_which_versions_are_too_old(tmp_path: Path) -> None:
    with apt_site() as site:
        site.suite("sid", {"1.21.0-1": 21})
        site.configure(one_line(site), "list")
        done = run_script(tmp_path, site.environment(site.machine("debian", "bookworm")))
    assert done.returncode == 1
    assert "finds only libonnxruntime-dev 1.21.0-1, and 1.23 is the oldest" in done.stderr


@needs_apt_site
def test_apt_on_ubuntu_adds_the_series_under_development(tmp_path: Path) -> None:
    with apt_site() as site:
        site.suite("noble", {"1.21.0-1": 21}, component="universe")
        site.suite("devel", {"1.23.2-1": 23}, component="universe")
        site.configure(one_line(site, suite="noble"), "list")
        done = run_script(tmp_path, site.environment(site.machine("ubuntu", "noble")))
    assert done.stdout.strip() == str(tmp_path / "libonnxruntime-dev-1.23.2-1"), done.stderr


def test_apt_without_a_configured_archive_says_so(debian: AptSite, tmp_path: Path) -> None:
    debian.configure("deb http://tools.example.invalid/ stable-tools main\n", "list")
    done = run_script(tmp_path, debian.environment(debian.machine("debian", "bookworm")))
    assert done.returncode == 1
    assert "name no debian archive for 'bookworm'" in done.stderr


def test_apt_on_another_distribution_says_so(debian: AptSite, tmp_path: Path) -> None:
    done = run_script(tmp_path, debian.environment(debian.machine("fedora", "")))
    assert done.returncode == 1
    assert "neither Debian nor Ubuntu" in done.stderr


def test_builds_at_the_same_time_share_the_cache(debian: AptSite, tmp_path: Path) -> None:
    debian.configure(one_line(debian), "list")
    environment = debian.environment(debian.machine("debian", "bookworm"))
    script = str(MODULES / "apt_headers.sh")
    running = [
        subprocess.Popen(
            ["bash", script, str(tmp_path), "1.23"],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    outputs = {process.communicate()[0].strip() for process in running}
    assert outputs == {str(tmp_path / "libonnxruntime-dev-1.27.1-1")}
    assert [entry.name for entry in tmp_path.iterdir()] == ["libonnxruntime-dev-1.27.1-1"]


@pytest.mark.skipif(os.geteuid() != 0, reason="every other test runs without root already")
def test_apt_works_without_root(debian: AptSite) -> None:
    debian.configure(one_line(debian), "list")
    environment = debian.environment(debian.machine("debian", "bookworm"))
    nobody = pwd.getpwnam("nobody")
    script = shutil.copy(MODULES / "apt_headers.sh", debian.root)
    cache = debian.root / "cache-of-nobody"
    cache.mkdir()
    os.chown(cache, nobody.pw_uid, nobody.pw_gid)
    done = run_script(
        cache,
        {**environment, "HOME": "/nonexistent", "TMPDIR": "/tmp"},
        Path(script),
        cwd="/",
        user=nobody.pw_uid,
        group=nobody.pw_gid,
        extra_groups=[],
    )
    assert done.stdout.strip() == str(cache / "libonnxruntime-dev-1.27.1-1"), done.stderr
    assert (cache / "libonnxruntime-dev-1.27.1-1").stat().st_uid == nobody.pw_uid


# apt, with the machine's own mirror


@needs_apt
def test_apt_finds_headers_on_the_machine_s_own_mirror(consumer: Consumer) -> None:
    found = consumer.configure("ORT_AIE_HEADERS_FROM=apt")
    if not found.ok and re.search(
        "Could not resolve|Could not connect|Unable to connect|Cannot initiate the connection|"
        "Temporary failure|timed out|neither Debian nor Ubuntu",
        found.text,
    ):
        pytest.skip("no mirror of this machine's distribution within reach")
    assert found.ok, found.output
    assert found.source == "apt"
    assert found.api >= 23
    assert leftovers(consumer.cache) == []
