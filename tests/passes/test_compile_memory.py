"""Compiling holds little more than one tensor at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ort_aie_ep.tools.synth import synth

# Reports how much compiling a model raises the peak of resident memory. getrusage's peak would not
# do: it starts with the parent process's.
COMPILE = """
import sys
import ort_aie_ep.compiler.compile

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if "VmHWM" in line)

before = peak()
form = sys.argv[3] if sys.argv[3:] else None
ort_aie_ep.compile(*sys.argv[1:3], quantize=form, keep=sys.argv[4:])
print(peak() - before)
"""


@pytest.mark.in_turn
def test_compiling_holds_one_tensor_at_a_time(tmp_path: Path) -> None:
    synth("llama-3.2-1b", tmp_path / "source", layers=4, vocab=4096)
    result = subprocess.run(
        [sys.executable, "-c", COMPILE, str(tmp_path / "source"), str(tmp_path / "compiled")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    weight_bytes = (tmp_path / "compiled" / "model.onnx.data").stat().st_size
    # 190 MB of weights, the largest tensor 10 MB.
    assert int(result.stdout) < weight_bytes / 2


# Forms differ in the search for scales alone, which takes long.
@pytest.mark.parametrize(
    "form", [pytest.param(f, marks=pytest.mark.in_turn) for f in ("q8nx", "q4nx", "bf16")]
)
def test_quantising_holds_pieces_of_a_tensor(tmp_path: Path, form: str) -> None:
    synth("llama-3.2-1b", tmp_path / "source", layers=1, vocab=4096, int4=False)
    # One of the three largest matrices is enough.
    keep = ["*/attn/*", "*/gate_proj/*", "*/up_proj/*", "/lm_head/*"]
    arguments = [str(tmp_path / "source"), str(tmp_path / "compiled"), form, *keep]
    result = subprocess.run(
        [sys.executable, "-c", COMPILE, *arguments], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    source_bytes = (tmp_path / "source" / "model.onnx.data").stat().st_size
    # 310 MB: matrices of up to 67 MB (34 MB as bfloat16, 19 MB as Q8NX), read in pieces of 16 MB.
    assert int(result.stdout) < source_bytes / 2
