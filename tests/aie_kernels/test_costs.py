"""The table of closed forms: what the scheduler can invoke has one, by the design's own names."""

from __future__ import annotations

import pytest

from ort_aie_ep.aie_kernels.build import find_designs
from ort_aie_ep.aie_kernels.costs import COSTS, cost_of
from ort_aie_ep.aie_kernels.flow_kv.cost import flow_kv
from ort_aie_ep.aie_kernels.fused_dqp.cost import fused_dqp
from ort_aie_ep.aie_kernels.machine import Machine
from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.npu.checks.progress import small_shapes
from ort_aie_ep.npu.terms.device import device
from ort_aie_ep.npu.terms.errors import DesignError


@pytest.mark.parametrize("name", COSTS)
def test_every_sequence_has_a_closed_form_of_its_parameters(name: str) -> None:
    design = find_designs()[name](device("npu2"))
    assert set(COSTS[name]) == set(design.sequences)
    for sequence in COSTS[name]:
        for shape in small_shapes(design.sequences[sequence]):
            _, steps = cost_of(name, sequence, shape)
            assert Machine().seconds(steps) > 0


def test_the_form_reaches_the_closed_form() -> None:
    form = BlockForm(minima=False)
    shape = {"N": 2048, "K": 2048, "bias": 0}
    found = cost_of("decode", "matvec", shape, form=form)
    assert found == ("projections", fused_dqp(2048, 2048, form))
    assert found[1] != fused_dqp(2048, 2048, SHIPPING)


def test_a_head_too_wide_for_the_designs_is_refused() -> None:
    with pytest.raises(DesignError, match=r"head dimension 320.*256"):
        flow_kv(16, 8, 8, 320, None)


def test_an_unknown_sequence_is_named() -> None:
    with pytest.raises(DesignError, match="gemm: there is no closed form for the sequence nothing"):
        cost_of("gemm", "nothing", {})
