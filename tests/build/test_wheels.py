"""What `make wheels` builds with and for, and what it refuses (release/)."""

from __future__ import annotations

import importlib
import shutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

RELEASE = Path(__file__).parents[2] / "release"
pytestmark = pytest.mark.skipif(not RELEASE.is_dir(), reason="no release/ beside the tests")


@pytest.fixture(scope="module")
def release() -> Iterator[Path]:
    sys.path.insert(0, str(RELEASE))
    yield RELEASE
    sys.path.remove(str(RELEASE))


@pytest.fixture(scope="module")
def manylinux(release: Path) -> ModuleType:
    return importlib.import_module("manylinux")


@pytest.fixture(scope="module")
def wheels(release: Path) -> ModuleType:
    return importlib.import_module("build_wheels")


@pytest.fixture(scope="module")
def symbols(manylinux: ModuleType) -> dict[str, Any]:
    if shutil.which("g++") is None or shutil.which("readelf") is None:
        pytest.skip("there is no g++ with readelf")
    library = manylinux.run("g++", "-print-file-name=libstdc++.so").strip()
    return manylinux.old_symbols(Path(library))


def test_the_old_libstdcxx_has_no_symbol_of_a_newer_version(
    symbols: dict[str, Any], manylinux: ModuleType
) -> None:
    assert len(symbols) > 3000
    newer = [s for s in symbols.values() if s.version > manylinux.LIBSTDCXX[s.family]]
    assert newer == []
    assert "_ZNSt10filesystem6statusERKNS_7__cxx114pathE" not in symbols  # 3.4.26


def test_a_compiler_that_is_not_there_is_named(manylinux: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(manylinux.CannotBuild, match="there is no no-such-g"):
        manylinux.make_toolchain(tmp_path / "toolchain", "no-such-g++")


def test_an_interpreter_that_is_not_there_is_named(wheels: ModuleType) -> None:
    with pytest.raises(wheels.CannotBuild, match=r"no-such-python.*no such command"):
        wheels.pythons(["no-such-python"])


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"ort_aie_ep/libort_aie_ep.so": b"AieExecutionProvider"}, "no .*libort_aie_xrt.so.*XRT's"),
        (
            {
                "ort_aie_ep/libort_aie_ep.so": b"",
                "ort_aie_ep/libort_aie_sim.so": b"",
                "ort_aie_ep/libort_aie_xrt.so": b"",
            },
            "has no AieExecutionProvider.*older than 1.24",
        ),
    ],
)
def test_a_wheel_without_a_target_or_the_provider_is_refused(
    wheels: ModuleType, tmp_path: Path, files: dict[str, bytes], message: str
) -> None:
    wheel = tmp_path / "ort_aie_ep-0.1.0-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    with pytest.raises(wheels.CannotBuild, match=message):
        wheels.check_complete(wheel)


def test_only_what_an_earlier_build_wrote_is_removed(wheels: ModuleType, tmp_path: Path) -> None:
    for name in ("ort_aie_ep-0.0.1.tar.gz", "ort_aie_ep-0.0.1-cp311-cp311-linux_x86_64.whl"):
        (tmp_path / name).touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    (tmp_path / "other-1.0.tar.gz").touch()
    wheels.remove_earlier(tmp_path)
    assert {path.name for path in tmp_path.rglob("*")} == {"other", "file", "other-1.0.tar.gz"}
    wheels.remove_earlier(tmp_path / "new")
    assert (tmp_path / "new").is_dir()
