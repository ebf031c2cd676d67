"""AMX, Intel's tiles: the stand-in of its instructions."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from cmake_program import Project


@pytest.fixture(scope="module")
def standin_test(project: Project) -> Path:
    return project.build("amx_standin_test")


def test_the_stand_in_multiplies_as_the_manual_says(standin_test: Path) -> None:
    done = subprocess.run([standin_test], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        ("no configuration", "_tile_zero: no configuration is loaded on this thread (tile 0)"),
        ("released", "_tile_loadd: no configuration is loaded on this thread (tile 0)"),
        ("palette 0", "_tile_stored: no configuration is loaded on this thread (tile 0)"),
        ("tile without rows", "_tile_zero: tile 3 has no rows in the configuration"),
        ("palette", "_tile_loadconfig: palette 2 is neither 0 nor 1"),
        ("start row", "_tile_loadconfig: the start row is 1, expected 0"),
        ("reserved", "_tile_loadconfig: byte 15 is 1, expected 0"),
        ("rows", "_tile_loadconfig: tile 0 has 17 rows, expected at most 16"),
        ("columns", "_tile_loadconfig: tile 0 has 65 bytes in a row, expected at most 64"),
        ("rows without columns", "_tile_loadconfig: tile 1 has 16 rows of 0 bytes"),
        ("ninth tile", "_tile_loadconfig: there is no tile 8; they are 0 to 7"),
        ("tile 8", "_tile_zero: there is no tile 8; they are 0 to 7"),
        ("same tile", "_tile_dpbf16ps: tiles 0, 1 and 1 are not three tiles"),
        ("half a pair", "_tile_dpbf16ps: tile 1 has rows of 62 bytes, expected a multiple of 4"),
        (
            "rows of the first",
            "_tile_dpbf16ps: tile 0 has 16 rows, expected 15 as in the first factor",
        ),
        (
            "pairs",
            "_tile_dpbf16ps: tile 2 has 15 rows, expected one for each of the 16 pairs of tile 1",
        ),
        (
            "columns of the second",
            "_tile_dpbf16ps: tile 0 has rows of 64 bytes, expected 60 as in the second factor",
        ),
    ],
)
def test_misuse_of_tiles_ends_the_process(standin_test: Path, misuse: str, message: str) -> None:
    done = subprocess.run([standin_test, misuse], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGABRT
    assert done.stderr == f"ort_aie_ep: stand-in of AMX: {message}\n"
