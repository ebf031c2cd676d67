"""The words that mlir-aie's tools make of a printed design, where $MLIR_AIE_BIN has them.

aie-opt assigns, routes and turns the whole configuration but programs of cores into writes, and
aie-translate writes those as words (aie-rt does the encoding). They must say what `configure()`
says: each lock, descriptor, ring and channel, and, through switches that are routed otherwise than
here, each stream reaches its ends and nothing else.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from combinations import combinations

from ort_aie_ep.aie_kernels.mlir.module import print_module
from ort_aie_ep.npu.configuration_words.compare import differences
from ort_aie_ep.npu.configuration_words.decode import decode
from ort_aie_ep.npu.vocabulary.configuration import configure
from ort_aie_ep.npu.vocabulary.design import Design

BIN = os.environ.get("MLIR_AIE_BIN", "")

# What aiecc does before it translates, as far as it touches the configuration.
PASSES = (
    "builtin.module("
    "aie.device(aie-assign-lock-ids,aie-assign-bd-ids,aie-assign-tile-controller-ids),"
    "aie-generate-column-control-overlay{route-shim-to-tile-ctrl=false},"
    "aie.device(aie-assign-buffer-addresses{alloc-scheme=basic-sequential},"
    "aie-create-pathfinder-flows,convert-aie-to-transaction))"
)


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.skipif(not BIN, reason="MLIR_AIE_BIN names no folder with aie-opt and aie-translate")
@pytest.mark.parametrize("design", list(combinations()))
def test_real_words_say_what_the_configuration_says(design: Design, tmp_path: Path) -> None:
    printed, lowered, binary = (str(tmp_path / n) for n in ("a.mlir", "b.mlir", "words.bin"))
    Path(printed).write_text(print_module(design))
    run(f"{BIN}/aie-opt", f"--pass-pipeline={PASSES}", printed, "-o", lowered)
    run(
        f"{BIN}/aie-translate", "--aie-npu-to-binary", "--aie-sequence-name=configure", lowered,
        "-o", binary,
    )  # fmt: skip
    view = decode(np.fromfile(binary, dtype=np.uint32))
    assert differences(configure(design), view) == []
