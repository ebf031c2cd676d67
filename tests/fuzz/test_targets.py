"""Each fuzz target has seeds, is built and says what its inputs are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
BUILT = set(re.findall(r"^fuzz_target\((\w+)", (HERE / "CMakeLists.txt").read_text(), re.MULTILINE))
TARGETS = sorted(path.name for path in (HERE / "seeds").iterdir() if path.is_dir())


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_has_seeds_is_built_and_says_what_its_inputs_are(name: str) -> None:
    native, python = HERE / f"{name}.cc", HERE / f"{name}.py"
    assert native.is_file() != python.is_file()
    assert (name in BUILT) == native.is_file()
    source = native if native.is_file() else python
    assert re.search("^(// )?An input is ", source.read_text(), re.MULTILINE)
    seeds = list((HERE / "seeds" / name).iterdir())
    assert seeds
    assert all(0 < seed.stat().st_size < 1 << 15 for seed in seeds)


def test_no_target_goes_without_seeds() -> None:
    entries = {
        *(p.stem for p in HERE.glob("*.cc") if "LLVMFuzzerTestOneInput" in p.read_text()),
        *(p.stem for p in HERE.glob("*.py") if re.search(r"^    fuzz\(test", p.read_text(), re.M)),
    }
    assert sorted(entries) == TARGETS
