"""The printed text is MLIR: mlir-opt reads and verifies it, for every design on every device."""

from __future__ import annotations

import pytest
from combinations import DESIGNS
from mlir_opt import MISSING, MLIR_OPT, refusal

from ort_aie_ep.aie_kernels.build import find_designs
from ort_aie_ep.aie_kernels.mlir.module import print_module
from ort_aie_ep.npu.terms.design import Design

pytestmark = [pytest.mark.in_turn, pytest.mark.skipif(MLIR_OPT is None, reason=MISSING)]


def test_the_combinations_have_every_design() -> None:
    assert {param.id.split("-")[0] for param in DESIGNS} == set(find_designs())
    assert len({param.id for param in DESIGNS}) == len(DESIGNS) >= 53


@pytest.mark.parametrize("design", DESIGNS)
def test_every_design_is_accepted(design: Design) -> None:
    assert refusal(print_module(design)) == ""


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (("col = 0", "cal = 0"), '"col" is expected but not provided'),
        (("action = 2", "action = 3"), "does not satisfy the constraint"),
        (("mem_bank = 0 : i32", 'mem_bank = "0"'), "expected base attribute 'builtin.integer'"),
        (('"func.call"(%w, ', '"func.call"(%b, '), "different type than prior uses"),
        (("@q4nx_dequant}", "@q4nx}"), "does not reference a valid function"),
        (("[^s2mm_0_1]", "[^s2mm_0_9]"), "reference to an undefined block"),
        (('"scf.yield"(%turn, ', '"scf.yield"(%b, '), "type"),
        (('sym_name = "w0_0_0_2_buffer_1"', 'sym_name = "w0"'), "redefinition of symbol"),
    ],
)
def test_a_mistake_is_refused(change: tuple[str, str], match: str) -> None:
    (design,) = (p.values[0] for p in DESIGNS if p.id == "dequant-npu2_1col")
    text = print_module(design)
    assert change[0] in text
    assert match in refusal(text.replace(*change, 1))
