"""The words that mlir-aie's tools make of a printed design, if $MLIR_AIE_BIN has the tools.

aie-opt assigns, routes and turns the whole configuration except the cores' programs into writes,
and aie-translate writes those as words (aie-rt encodes them). They must agree with `configure()` on
each lock, descriptor, ring and channel. mlir-aie routes the switches differently, but each stream
must reach its ends and nothing else.
"""

from __future__ import annotations

import numpy as np
import pytest
from combinations import DESIGNS
from configuration_words.compare import differences
from configuration_words.decode import decode
from real_tools import BIN, MISSING, aie_opt, binary

from ort_aie_ep.aie_kernels.mlir.module import print_module
from ort_aie_ep.npu.terms.configuration import configure
from ort_aie_ep.npu.terms.design import Design

# aiecc's passes before it translates, as far as they affect the configuration.
PASSES = (
    "builtin.module("
    "aie.device(aie-assign-lock-ids,aie-assign-bd-ids,aie-assign-tile-controller-ids),"
    "aie-generate-column-control-overlay{route-shim-to-tile-ctrl=false},"
    "aie.device(aie-assign-buffer-addresses{alloc-scheme=basic-sequential},"
    "aie-create-pathfinder-flows,convert-aie-to-transaction))"
)


@pytest.mark.skipif(BIN is None, reason=MISSING)
@pytest.mark.parametrize("design", DESIGNS)
def test_real_words_say_what_the_configuration_says(design: Design) -> None:
    words = binary(aie_opt(PASSES, print_module(design)), sequence="configure")
    view = decode(np.frombuffer(words, dtype=np.uint32))
    assert differences(configure(design), view) == []
