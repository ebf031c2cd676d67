"""Design packages: they are read back as written, and errors name what does not fit."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ort_aie_ep.aie_kernels.build import find_designs, make_design
from ort_aie_ep.aie_kernels.fused_dqp import design as fused_dqp
from ort_aie_ep.npu.packages.package import (
    PackageError,
    manifest,
    read_package,
    validate,
    write_package,
    xclbin_uuid,
)
from ort_aie_ep.npu.terms.configuration import configure
from ort_aie_ep.npu.terms.device import device

UUID = "00010203-0405-0607-0809-0a0b0c0d0e0f"


@pytest.fixture
def overlay(tmp_path: Path) -> Path:
    path = tmp_path / "aie.xclbin"
    path.write_bytes(b"xclbin2\0" + bytes(408) + bytes(range(16)) + bytes(64))
    return path


@pytest.fixture
def content() -> dict[str, Any]:
    return json.loads(json.dumps(manifest(fused_dqp.build(device("npu2_1col")))))


def test_a_manifest_has_what_the_configuration_assigned() -> None:
    design = fused_dqp.build(device("npu2"), columns=8)
    plan, made = configure(design), manifest(design)
    assert set(made["fifos"]) == set(plan.shim_ports)
    packet = design.fifos["x"].packet
    assert packet is not None  # it shares its channel
    assert made["fifos"]["x"] == {"column": 0, "channel": 0, "direction": "MM2S", "packet": packet}
    worker = made["workers"]["dqp7_3"]
    assert (worker["column"], worker["row"]) == (7, 5)
    assert worker["address"] == plan.workers["dqp7_3"].parameters
    assert worker["lock"] == plan.workers["dqp7_3"].go.id
    assert made["bds"] == {str(c): list(range(16)) for c in range(8)}
    assert (made["toolchain"], made["uuid"]) == (None, None)


@pytest.mark.parametrize("name", find_designs())
def test_every_design_has_a_valid_manifest(name: str) -> None:
    validate(json.loads(json.dumps(manifest(make_design(name, device("npu2"))))), name)


def test_a_package_is_read_as_it_was_written(
    tmp_path: Path, content: dict[str, Any], overlay: Path
) -> None:
    content["uuid"] = xclbin_uuid(overlay)
    assert content["uuid"] == UUID
    write_package(tmp_path / "p" / "d", content, overlay)
    package = read_package(tmp_path / "p" / "d", device="npu2_1col")
    assert package.manifest == content
    assert package.overlay.read_bytes() == overlay.read_bytes()
    assert [p.name for p in (tmp_path / "p").iterdir()] == ["d"]


def test_a_package_replaces_an_older_one_and_nothing_else(
    tmp_path: Path, content: dict[str, Any], overlay: Path
) -> None:
    write_package(tmp_path / "d", content, overlay)
    content["clock_hz"] = 1_000_000_000
    write_package(tmp_path / "d", content, overlay)
    assert read_package(tmp_path / "d").manifest["clock_hz"] == 1_000_000_000
    (tmp_path / "mine").mkdir()
    with pytest.raises(PackageError, match="mine"):
        write_package(tmp_path / "mine", content, overlay)


def test_two_writers_at_once_leave_one_whole_package(
    tmp_path: Path, content: dict[str, Any], overlay: Path
) -> None:
    def write(clock: int) -> None:
        for _ in range(30):
            write_package(tmp_path / "p" / "d", content | {"clock_hz": clock}, overlay)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(write, clock) for clock in range(1, 5)]:
            done.result()
    assert read_package(tmp_path / "p" / "d").manifest["clock_hz"] in range(1, 5)
    assert [p.name for p in (tmp_path / "p").iterdir()] == ["d"]


def test_a_bad_manifest_is_not_written(
    tmp_path: Path, content: dict[str, Any], overlay: Path
) -> None:
    del content["bds"]
    with pytest.raises(PackageError, match=r"manifest\.json: .*\"bds\""):
        write_package(tmp_path / "d", content, overlay)
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("format", 2, "manifest.json: manifest has format 2, but this library reads format 1"),
        ("workers", None, "manifest.json: manifest.workers must be an object"),
        ("device", "npu9", "device must be one of npu1, .*, got 'npu9'"),
        ("generation", 3, "generation must be 4 for npu2_1col, got 3"),
        ("columns", 8, "columns must be 1 for npu2_1col, got 8"),
    ],
)  # fmt: skip
def test_a_manifest_that_does_not_fit_is_refused(
    key: str, value: Any, match: str, content: dict[str, Any]
) -> None:
    """What the runtime refuses (tests/npu/test_manifests.py has each mistake), and other
    devices."""
    validate(content, "manifest.json")
    with pytest.raises(PackageError, match=match):
        validate(content | {key: value}, "manifest.json")


def test_a_folder_that_is_not_a_package_is_refused(
    tmp_path: Path, content: dict[str, Any], overlay: Path
) -> None:
    with pytest.raises(PackageError, match=r"manifest\.json"):
        read_package(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(PackageError, match=r"manifest\.json .*JSON"):
        read_package(tmp_path)
    package = write_package(tmp_path / "d", content, overlay)
    package.overlay.unlink()
    with pytest.raises(PackageError, match=r"overlay\.xclbin"):
        read_package(package.folder)


def test_a_package_for_another_device_is_refused(
    tmp_path: Path, content: dict[str, Any], overlay: Path
) -> None:
    write_package(tmp_path / "d", content, overlay)
    with pytest.raises(PackageError, match=r"npu2_1col, .*npu1"):
        read_package(tmp_path / "d", device="npu1")


def test_an_overlay_that_is_another_is_refused(
    tmp_path: Path, content: dict[str, Any], overlay: Path
) -> None:
    content["uuid"] = UUID
    package = write_package(tmp_path / "d", content, overlay)
    package.overlay.write_bytes(b"xclbin2\0" + bytes(500))
    with pytest.raises(PackageError, match=f"{UUID}"):
        read_package(package.folder)
    package.overlay.write_bytes(b"ELF")
    with pytest.raises(PackageError, match=r"overlay\.xclbin .*axlf"):
        read_package(package.folder)
