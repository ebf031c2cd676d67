"""The real XRT of Debian sid on a machine without an NPU: its answers, and how ort_aie_ep handles
them."""

from __future__ import annotations

import ctypes.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from private_root import SKIP, NoPrivateRoot, PrivateRoot, private_root

import ort_aie_ep

HERE = Path(__file__).parent
MODULE = Path(ort_aie_ep.library_path()).with_name("libort_aie_xrt.so")

pytestmark = [
    pytest.mark.in_turn,
    pytest.mark.skipif(bool(os.environ.get(SKIP)), reason=f"{SKIP} is set"),
    pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler"),
    pytest.mark.skipif(
        any(Path("/dev/accel").glob("accel*")), reason="this machine may have an NPU"
    ),
]
needs_module = pytest.mark.skipif(
    not MODULE.is_file(), reason="this build of the package has no xrt target"
)


@pytest.fixture(scope="module")
def root() -> PrivateRoot:
    try:
        return private_root()
    except NoPrivateRoot as error:
        reason = str(error)
    pytest.fail(reason, pytrace=False)


def run_operator(root: PrivateRoot | None, target: str, **environment: str) -> tuple[Any, str]:
    """The report of run_operator.py, in the root if there is one, and its stderr."""
    arguments = (str(HERE / "run_operator.py"), target)
    if root is None:
        done = subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
    else:
        done = root.run_python(*arguments, environment=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout), done.stderr


def machine_with_a_driver(folder: Path) -> dict[str, str]:
    """Makes the core library believe that this machine has an NPU, so that it calls XRT."""
    device = folder / "class/accel/accel0/device"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x1022\n")
    return {"ORT_AIE_SYSFS": str(folder)}


def loads_xrt(report: Any) -> bool:
    return any("libxrt_coreutil" in library for library in report["libraries"])


def needed(library: Path) -> list[str]:
    """The libraries that `library` needs, by soname."""
    dynamic = subprocess.run(
        ["readelf", "-d", str(library)], check=True, capture_output=True, text=True
    ).stdout
    return re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)


# XRT alone


def test_xrt_loads_finds_no_device_and_says_so(root: PrivateRoot, tmp_path: Path) -> None:
    probe = root.build(HERE / "probe.cc", tmp_path / "probe")
    done = root.run(probe)
    assert done.returncode == 0, done.stderr
    found, threw = done.stdout.splitlines()
    assert found == "devices: 0"
    assert " ".join(threw.split()) == "threw: No such device with index '0'"


def test_the_npu_plugin_is_loaded(root: PrivateRoot, tmp_path: Path) -> None:
    probe = root.build(HERE / "probe.cc", tmp_path / "probe")
    done = root.run(probe, environment={"LD_DEBUG": "libs"})
    loaded = [line.split()[-1] for line in done.stderr.splitlines() if "calling init" in line]
    plugins = [Path(name) for name in loaded if "libxrt_driver_xdna" in name]
    assert [plugin.parent for plugin in plugins] == [root.libraries]


# with ort_aie_ep's library


@needs_module
def test_the_xrt_target_names_what_is_missing(root: PrivateRoot, tmp_path: Path) -> None:
    program = root.build(HERE / "open_target.cc", tmp_path / "open_target", [MODULE])
    options = {"on_device_error": "host", "log": "warning", "overlays": ""}
    done = root.run(program, json.dumps(options), libraries=[MODULE.parent])
    assert done.returncode == 0, done.stderr
    outcome, error = done.stdout.split("\n", 1)
    assert outcome == "refused"
    assert "ort-aie doctor" in error


def test_only_the_xrt_target_needs_xrt() -> None:
    assert "libxrt_coreutil.so.2" not in needed(Path(ort_aie_ep.library_path()))
    if MODULE.is_file():
        assert "libxrt_coreutil.so.2" in needed(MODULE)


def test_a_session_in_the_root_computes_what_one_outside_does(root: PrivateRoot) -> None:
    inside, _ = run_operator(root, "host")
    outside, _ = run_operator(None, "host")
    assert str(root.libraries / "libc.so.6") in inside["libraries"]
    assert inside["y"] == outside["y"]


@needs_module
@pytest.mark.parametrize("target", ["host", "auto"])
def test_xrt_is_not_loaded_where_no_npu_is_asked_for_or_there(
    root: PrivateRoot, tmp_path: Path, target: str
) -> None:
    report, says = run_operator(root, target, ORT_AIE_SYSFS=str(tmp_path))
    assert "y" in report
    assert not loads_xrt(report)
    assert "NPU" not in says


@needs_module
def test_auto_says_once_that_xrt_finds_no_npu_and_continues_on_the_host(
    root: PrivateRoot, tmp_path: Path
) -> None:
    host, _ = run_operator(root, "host")
    report, says = run_operator(root, "auto", **machine_with_a_driver(tmp_path))
    assert loads_xrt(report)
    assert report["y"] == host["y"]
    assert says.count("no NPU") == 1


@needs_module
def test_a_session_that_insists_on_xrt_is_refused_with_the_reason(root: PrivateRoot) -> None:
    report, _ = run_operator(root, "xrt", ORT_AIE_ON_DEVICE_ERROR="raise")
    assert loads_xrt(report)
    assert "ort_aie.target=xrt" in report["error"]
    assert "ort-aie doctor" in report["error"]


@needs_module
@pytest.mark.skipif(
    ctypes.util.find_library("xrt_coreutil") is not None, reason="XRT is installed here"
)
def test_auto_says_that_xrt_is_not_installed_and_continues_on_the_host(tmp_path: Path) -> None:
    host, _ = run_operator(None, "host")
    report, says = run_operator(None, "auto", **machine_with_a_driver(tmp_path))
    assert report["y"] == host["y"]
    assert says.count("libxrt_coreutil.so.2") == 1
