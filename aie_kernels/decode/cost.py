"""Closed forms of what the overlay for decoding has: those of its parts."""

from __future__ import annotations

from ort_aie_ep.aie_kernels.flow_kv import cost as flow_kv
from ort_aie_ep.aie_kernels.fused_dqp import cost as fused_dqp
from ort_aie_ep.aie_kernels.invocation import Costs
from ort_aie_ep.aie_kernels.vector_ops import cost as vector_ops

SEQUENCES: Costs = {**fused_dqp.SEQUENCES, **flow_kv.SEQUENCES, **vector_ops.SEQUENCES}
