"""The time of any invocation that the scheduler of an NPU plan makes, as closed forms.

Each operator's are in its folder (`cost.py`); this is the one table of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from ort_aie_ep.aie_kernels.decode import cost as decode
from ort_aie_ep.aie_kernels.dequant import cost as dequant
from ort_aie_ep.aie_kernels.flow_kv import cost as flow_kv
from ort_aie_ep.aie_kernels.flow_qkv import cost as flow_qkv
from ort_aie_ep.aie_kernels.fused_dqp import cost as fused_dqp
from ort_aie_ep.aie_kernels.fused_layer import cost as fused_layer
from ort_aie_ep.aie_kernels.gemm import cost as gemm
from ort_aie_ep.aie_kernels.invocation import Costs, Part
from ort_aie_ep.aie_kernels.machine import Step
from ort_aie_ep.aie_kernels.short_gemm import cost as short_gemm
from ort_aie_ep.aie_kernels.vector_ops import cost as vector_ops
from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.npu.terms.errors import DesignError

#: By design and sequence.
COSTS: Mapping[str, Costs] = {
    "decode": decode.SEQUENCES,
    "dequant": dequant.SEQUENCES,
    "dequant_bfp16": dequant.SEQUENCES_BFP16,
    "flow_kv": flow_kv.SEQUENCES,
    "flow_qkv": flow_qkv.SEQUENCES,
    "fused_dqp": fused_dqp.SEQUENCES,
    "fused_layer": fused_layer.SEQUENCES,
    "gemm": gemm.SEQUENCES,
    "gemm_bfp16": gemm.SEQUENCES_BFP16,
    "short_gemm": short_gemm.SEQUENCES,
    "vector_ops": vector_ops.SEQUENCES,
}


def cost_of(
    design: str, sequence: str, parameters: Mapping[str, int], *, form: BlockForm = SHIPPING
) -> tuple[Part, tuple[Step, ...]]:
    """The part of a token or prompt to which an invocation belongs, and its steps.

    `form` is that of the weights, if the design reads any.

    Raises:
        DesignError: there is no closed form for the sequence.
    """
    found = COSTS.get(design, {}).get(sequence)
    if found is None:
        raise DesignError(f"{design}: there is no closed form for the sequence {sequence}")
    part, steps = found
    return part, steps(parameters, form)
