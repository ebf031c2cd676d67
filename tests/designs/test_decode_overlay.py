"""The decode overlay is its parts. tests/bringup judges its sequences, tests/xrt whole layers."""

from __future__ import annotations

from typing import Any

from ort_aie_ep.aie_kernels.decode import design as decode
from ort_aie_ep.aie_kernels.flow_kv import design as flow_kv
from ort_aie_ep.aie_kernels.fused_dqp import design as fused_dqp
from ort_aie_ep.aie_kernels.vector_ops import design as vector_ops
from ort_aie_ep.npu.terms.device import device


def test_overlay_has_the_sequences_of_its_parts() -> None:
    design = decode.build(device("npu2"))
    alone: dict[str, Any] = {}
    for part in (fused_dqp.build(device("npu2"), 4), flow_kv.build(device("npu2")),
                 vector_ops.build(device("npu2"))):  # fmt: skip
        alone |= part.sequences
    assert design.sequences.keys() == alone.keys()
    for name, sequence in alone.items():
        assert design.sequences[name].to_json() == sequence.to_json()
