"""All of a decoder layer's decode on one overlay, as paper 1 places it (section IV-A).

| columns | cores | shim channels in | out |
|---|---|---|---|
| 0-3 | FusedDQP, 16 | weights, 8 | y, one a column |
| 4-5 | FlowKV, 4 pairs | K and V, 8 with those of columns 6-7 | o, 4 |
| 6-7 | rms, rope, glu, softcap | | one each, 4 |

The sixteen channels in are taken by weights, K and V, which are what a token waits for. So x of the
projections, the queries and what the vector operators take share channels of K and V under packet
ids. They never meet there: the sequences of a layer run one after the other, and the queries
come before the keys that they are for. The overlay has the sequences of its parts, under the same
names: `matvec`, `matvec_part`, `attention`, `rms_norm`, `rope`, `append`, `move_heads`, `glu`,
`softcap`; a layer is a list of them in one stream, without another configuration.
"""

from __future__ import annotations

from ort_aie_ep.aie_kernels.designs import flow_kv, fused_dqp, vector_ops, vector_sequences
from ort_aie_ep.npu.vocabulary.design import Design
from ort_aie_ep.npu.vocabulary.device import Device
from ort_aie_ep.npu.vocabulary.errors import DesignError
from ort_aie_ep.npu.vocabulary.packet_ids import give_packet_ids

PROJECTION_COLUMNS = 4
ATTENTION_COLUMN = 4
VECTOR_COLUMN = 6


def build(device: Device) -> Design:
    """The overlay of decoding. Raises DesignError for a device of fewer than eight columns."""
    if device.columns < 8:
        raise DesignError(
            f"decode on {device.name}: {device.columns} columns; projections, attention and vector "
            "operators stand side by side in eight: build fused_dqp, flow_kv and vector_ops alone"
        )
    design = Design("decode", device)
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
