"""The kernels and the stand-in compared with the AIE API's real headers, if AIE_API has a
checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "lab" / "check_aie_api.py"
API = os.environ.get("AIE_API", "")
CLANG = os.environ.get("CLANG", "clang++-19")


@pytest.mark.skipif(
    not API, reason="AIE_API is not set: a checkout of github.com/Xilinx/aie_api to read against"
)
@pytest.mark.timeout(1200)  # a minute or two, four times that on a busy machine
def test_kernels_and_the_stand_in_keep_to_the_real_headers() -> None:
    assert shutil.which(CLANG), f"AIE_API needs clang 19 or later: {CLANG} is not here; set CLANG"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), API, "--clang", CLANG],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
