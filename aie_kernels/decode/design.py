"""All of a decoder layer's decode on one overlay, as paper 1 places it (section IV-A).

README.md has where its parts are.
"""

from __future__ import annotations

from ort_aie_ep.aie_kernels.flow_kv import design as flow_kv
from ort_aie_ep.aie_kernels.fused_dqp import design as fused_dqp
from ort_aie_ep.aie_kernels.vector_ops import design as vector_ops
from ort_aie_ep.aie_kernels.vector_ops import sequences as vector_sequences
from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.device import Device
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.npu.terms.packet_ids import give_packet_ids

PROJECTION_COLUMNS = 4
ATTENTION_COLUMN = 4
VECTOR_COLUMN = 6


def build(device: Device, form: BlockForm = SHIPPING) -> Design:
    """The overlay for decoding, with weights of a form of Q4NX.

    Raises DesignError for a device with fewer than eight columns.
    """
    if device.columns < 8:
        raise DesignError(
            f"decode on {device.name}: {device.columns} columns; projections, attention and vector "
            "operators stand side by side in eight: build fused_dqp, flow_kv and vector_ops alone"
        )
    design = Design("decode", device, form)
    fused_dqp.place(design, PROJECTION_COLUMNS, x=design.shim(ATTENTION_COLUMN, 0))
    pairs = flow_kv.place(design, ATTENTION_COLUMN)
    vector_ops.place(
        design, VECTOR_COLUMN, a=design.shim(VECTOR_COLUMN, 0), b=design.shim(VECTOR_COLUMN, 1)
    )  # fmt: skip
    give_packet_ids(design)
    fused_dqp.add_sequences(design, PROJECTION_COLUMNS)
    flow_kv.add_sequence(design, pairs)
    vector_sequences.add_sequences(design)
    return design
