"""What doctor finds out about an NPU, on machines simulated with files."""

from __future__ import annotations

import json
import os
import resource
import shutil
import struct
import subprocess
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

import ort_aie_ep
from ort_aie_ep import machine
from ort_aie_ep.explain import doctor
from ort_aie_ep.explain.overlays import DESIGNS, find_overlays, overlay_folders, packages
from ort_aie_ep.formats.q4nx import BlockForm
from ort_aie_ep.machine import Finding, why_no_npu
from ort_aie_ep.npu.packages.package import LIMITS
from ort_aie_ep.npu.terms.device import DEVICES
from ort_aie_ep.prediction.composition import schedule
from ort_aie_ep.prediction.recipes import Input, alone

UUID = uuid.UUID("0f51d8bc-0b4c-4b0e-9a6f-6b0c0a1d2e3f")


@pytest.fixture
def strix(tmp_path: Path) -> Path:
    """The sys and dev folders of a machine with a Strix Halo, its driver and its device node."""
    device = tmp_path / "sys/bus/pci/devices/0000:c4:00.1"
    device.mkdir(parents=True)
    attributes = {
        "vendor": "0x1022", "device": "0x17f0", "revision": "0x11", "fw_version": "1.0.0.196",
    }  # fmt: skip
    for name, value in attributes.items():
        (device / name).write_text(value + "\n")
    (tmp_path / "sys/module/amdxdna").mkdir(parents=True)
    (tmp_path / "dev/accel").mkdir(parents=True)
    (tmp_path / "dev/accel/accel0").touch()
    return tmp_path


def findings(root: Path) -> dict[str, Finding]:
    return {f.name: f for f in machine.find_npu(root / "sys", root / "dev")}


def limit(monkeypatch: pytest.MonkeyPatch, soft: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, resource.RLIM_INFINITY))


# --- the CPU ---


def test_siblings_are_one_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 4})
    assert machine.physical_cores(tmp_path) == 4  # nothing says which cores are siblings
    for cpu, siblings in ((0, "0,4"), (1, "1,5"), (2, "2,6"), (4, "0,4")):
        topology = tmp_path / f"devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{siblings}\n")
    assert machine.physical_cores(tmp_path) == 3


# --- the chip and its driver ---


def test_device_columns_and_firmware_are_named(strix: Path) -> None:
    found = findings(strix)
    assert found["NPU"].found == "NPU2 (Strix Halo), 8 columns at 0000:c4:00.1"
    assert found["firmware"].found == "1.0.0.196"
    assert found["access to the device node"].found == "yes"
    assert machine.npu_device(strix / "sys") == "npu2"


def test_columns_are_those_of_the_designs(strix: Path) -> None:
    device = strix / "sys/bus/pci/devices/0000:c4:00.1/device"
    for product, name in (("0x1502", "npu1"), ("0x17f0", "npu2")):
        device.write_text(product)
        assert machine.npu_device(strix / "sys") == name
        assert f", {DEVICES[name].columns} columns" in findings(strix)["NPU"].found


def test_a_driver_that_tells_no_firmware_version_breaks_no_chain(strix: Path) -> None:
    (strix / "sys/bus/pci/devices/0000:c4:00.1/fw_version").unlink()
    found = findings(strix)["firmware"]
    assert found.found


def test_a_driver_without_a_node_points_to_its_log_and_its_firmware(strix: Path) -> None:
    (strix / "dev/accel/accel0").unlink()
    node = findings(strix)["device node"]
    assert node.found == ""
    assert "journalctl -k -g amdxdna" in node.remedy
    assert "linux-firmware" in node.remedy


def test_a_node_that_may_not_be_opened_names_the_group(
    strix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    access = findings(strix)["access to the device node"]
    group = (strix / "dev/accel/accel0").group()
    assert access.found == ""
    assert f"usermod -aG {group} $USER" in access.remedy
    assert why_no_npu(machine.find_npu(strix / "sys", strix / "dev")) == (
        "no access to the device node found"
    )


def test_a_memlock_limit_is_named_with_its_value(
    strix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, 8388608)
    memlock = findings(strix)["unlimited locked memory"]
    assert memlock.found == ""
    assert "8388608" in memlock.remedy
    limit(monkeypatch, resource.RLIM_INFINITY)
    assert findings(strix)["unlimited locked memory"].found == "yes"


# --- the xrt target ---


def install(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Makes `folder` the core library's folder; returns the path that the xrt target would have."""
    core = Path(shutil.copy(ort_aie_ep.library_path(), folder))
    monkeypatch.setattr(ort_aie_ep, "library_path", lambda: str(core))
    return folder / "libort_aie_xrt.so"


def test_a_build_without_the_xrt_target_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, tmp_path)
    target = doctor.find_xrt_target()
    assert target.found == ""
    assert "libxrt-dev" in target.remedy


def test_an_xrt_target_whose_xrt_is_missing_says_which_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = install(monkeypatch, tmp_path)
    dependency = tmp_path / "elsewhere.so"
    compile_library = ["c++", "-shared", "-fPIC", "-x", "c++", "/dev/null", "-Wl,--no-as-needed"]
    try:
        subprocess.run(
            [*compile_library, "-Wl,-soname,libxrt_absent.so.2", "-o", dependency], check=True
        )
        words = [*compile_library, "-x", "none", dependency, "-o", library]
        subprocess.run(list(map(str, words)), check=True)
    except FileNotFoundError:
        pytest.skip("there is no c++")
    target = doctor.find_xrt_target()
    assert target.found == ""
    assert "libxrt_absent.so.2" in target.remedy
    assert doctor.find_xrt_target(xrt=False) == Finding("xrt target", "built; XRT is not installed")
    subprocess.run([*compile_library, "-o", library], check=True)
    assert doctor.find_xrt_target(xrt=False).found == str(library)


# --- overlays ---


def package(folder: Path, name: str, device: str = "npu2", built: bool = True) -> Path:
    """A design package whose xclbin is only a header."""
    made = DEVICES[device]
    folder.mkdir(parents=True)
    manifest = {
        "format": 1, "name": name, "device": device, "generation": made.generation,
        "rows": made.rows, "columns": made.columns, "kernel": "MLIR_AIE", "clock_hz": 1,
        "ddr_bytes_per_second": 1, "ddr_write_bytes_per_second": 1,
        "costs": dict.fromkeys(LIMITS, 1), "fifos": {}, "workers": {}, "bds": {}, "sequences": {},
        "toolchain": None, "uuid": str(UUID) if built else None,
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest))
    # The magic number, and the uuid at its place in struct axlf.
    (folder / "overlay.xclbin").write_bytes(struct.pack("<8s408x16s", b"xclbin2", UUID.bytes))
    return folder


def test_an_overlay_of_bfp16_without_a_form_of_weights_leaves_the_form_to_the_others(
    tmp_path: Path,
) -> None:
    for name in ("decode", "decode_128", "gemm_bfp16", "dequant_bfp16"):
        package(tmp_path / name, name)
    blocks = Input(2, BlockForm(group=128).blocks_shape(256, 256), constant=True)
    inputs = Input(1, (1, "tokens", 256)), blocks
    attributes = {"K": 256, "N": 256, "format": 2, "group": 128}
    product = replace(alone("Q4NXMatMul", "p", attributes, [0, 1], 1, inputs), planned=True)
    found = find_overlays("npu2", (tmp_path,), packages()).found
    assert schedule(product, 1, 1, found)["form"] == (32, True)
    package(tmp_path / "dequant_bfp16_128", "dequant_bfp16_128")
    found = find_overlays("npu2", (tmp_path,), packages()).found
    assert schedule(product, 1, 1, found)["form"] == (128, True)


def test_overlays_are_found_below_the_device_s_folder_and_beside_it(tmp_path: Path) -> None:
    decode = package(tmp_path / "a/decode", "decode")
    gemm = package(tmp_path / "b/npu2/gemm", "gemm")
    package(tmp_path / "b/decode", "decode")
    overlays = find_overlays("npu2", (tmp_path / "none", tmp_path / "a", tmp_path / "b"))
    assert overlays.found == {"decode": decode, "gemm": gemm}
    assert overlays.missing == ("dequant", "flow_qkv")
    assert overlays.refused == ()


def test_overlays_that_do_not_fit_are_refused_with_the_reason(tmp_path: Path) -> None:
    package(tmp_path / "decode", "decode", device="npu1")
    package(tmp_path / "dequant", "dequant", built=False)
    broken = package(tmp_path / "gemm", "gemm")
    (broken / "overlay.xclbin").write_bytes(b"")
    package(tmp_path / "flow_qkv", "flow_kv")
    overlays = find_overlays("npu2", (tmp_path,))
    assert overlays.found == {}
    device, never_built, no_xclbin, other = overlays.refused
    assert "npu1, but the device is npu2" in device
    assert "built" in never_built
    assert "xclbin" in no_xclbin
    assert "flow_kv, not flow_qkv" in other


def test_folders_of_the_environment_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORT_AIE_OVERLAYS", f"{tmp_path / 'a'}:{tmp_path / 'b'}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folders = overlay_folders()
    assert folders[:2] == (tmp_path / "a", tmp_path / "b")
    assert folders[2] == Path(ort_aie_ep.__file__).parent / "overlays"
    assert folders[3] == tmp_path / "cache/ort_aie_ep/overlays"


def test_doctor_names_the_commands_that_build_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ORT_AIE_OVERLAYS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "ort_aie_ep/overlays/npu2"
    command = "ort-aie kernels build {} --device npu2 --out " + str(folder)
    assert command.format("all") in doctor.find_designs("npu2").remedy
    for design in DESIGNS["npu2"][:-1]:
        package(folder / design, design)
    last = DESIGNS["npu2"][-1]
    finding = doctor.find_designs("npu2")
    assert finding.remedy == f"no package of {last}; build with: {command.format(last)}"
    package(folder / last, last)
    finding = doctor.find_designs("npu2")
    assert finding.remedy == ""
    assert all(f"{design} in {folder}" in finding.found for design in DESIGNS["npu2"])


def test_every_design_that_is_asked_for_can_be_built() -> None:
    from ort_aie_ep.aie_kernels.build import make_design
    from ort_aie_ep.npu.terms.device import device

    for name, designs in DESIGNS.items():
        for design in designs:
            assert make_design(design, device(name)).device.name == name
