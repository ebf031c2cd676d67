"""Which XRT the xrt target loads: the loader's, or one in a folder that the loader does not
know."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ort_aie_ep

XRT = "libxrt_coreutil.so.2"
# The library looks for the xrt target in the folder of the core library.
DOCTOR = """
import sys
import ort_aie_ep
from ort_aie_ep.explain.doctor import find_xrt_target
ort_aie_ep.library_path = lambda: sys.argv[1]
finding = find_xrt_target()
print(finding.found, finding.remedy, sep="\\n")
"""

pytestmark = [
    pytest.mark.skipif(shutil.which("c++") is None, reason="there is no c++"),
    pytest.mark.skipif(Path("/opt/xilinx/xrt").exists(), reason="XRT is installed here"),
]


def compiled(library: Path, *words: str | Path) -> Path:
    command: list[str | Path] = ["c++", "-shared", "-fPIC", "-x", "c++", "/dev/null", "-x", "none"]
    subprocess.run([*command, "-Wl,--no-as-needed", *words, "-o", library], check=True)
    return library


@pytest.fixture
def core(tmp_path: Path) -> Path:
    """A core library, and beside it a target that needs the XRT in tmp_path/xrt/lib."""
    (tmp_path / "xrt/lib").mkdir(parents=True)
    xrt = compiled(tmp_path / "xrt/lib" / XRT, f"-Wl,-soname,{XRT}")
    compiled(tmp_path / "libort_aie_xrt.so", xrt)
    return Path(shutil.copy(ort_aie_ep.library_path(), tmp_path))


def doctor(core: Path, **environment: str) -> list[str]:
    """The finding and the remedy."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("XILINX_XRT", "LD_LIBRARY_PATH")}
    done = subprocess.run(
        [sys.executable, "-c", DOCTOR, core], env=inherited | environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_xrt_is_found_where_setup_sh_says(core: Path) -> None:
    target, root = core.with_name("libort_aie_xrt.so"), core.with_name("xrt")
    assert doctor(core, XILINX_XRT=str(root)) == [f"{target}, with {root / 'lib' / XRT}", ""]


def test_the_loader_comes_first(core: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.mkdir()
    shutil.copy(tmp_path / "xrt/lib" / XRT, first)
    found, _ = doctor(core, XILINX_XRT=str(tmp_path / "xrt"), LD_LIBRARY_PATH=str(first))
    assert found.endswith(f"with {first / XRT}")


def test_a_missing_xrt_names_the_places_searched(core: Path, tmp_path: Path) -> None:
    for environment, folders in (
        ({}, "/opt/xilinx/xrt/lib"),
        ({"XILINX_XRT": "/opt/xilinx/xrt"}, "/opt/xilinx/xrt/lib"),
        ({"XILINX_XRT": str(tmp_path)}, f"{tmp_path}/lib or /opt/xilinx/xrt/lib"),
    ):
        found, remedy = doctor(core, **environment)
        assert found == ""
        assert remedy.count(XRT) == 1
        assert str(folders) in remedy


def test_an_xrt_that_does_not_load_says_why(core: Path, tmp_path: Path) -> None:
    """Like one whose own libraries are missing."""
    other = compiled(tmp_path / "other.so", "-Wl,-soname,libabsent.so.1")
    compiled(tmp_path / "xrt/lib" / XRT, f"-Wl,-soname,{XRT}", other)
    found, remedy = doctor(core, XILINX_XRT=str(tmp_path / "xrt"))
    assert found == ""
    assert "libabsent.so.1" in remedy
