"""Attributes of mlir-aie's dialects, as the generic form has them: enumerations are numbers.

(include/aie/Dialect/AIE/IR/AIEAttrs.td: AIEDevice, WireBundle, DMAChannelDir, LockAction,
PacketInfo.)
"""

from __future__ import annotations

from ort_aie_ep.npu.terms.configuration import Direction

DEVICES = {
    "npu1": 4, "npu1_1col": 5, "npu1_2col": 6, "npu1_3col": 7,
    "npu2": 8, "npu2_1col": 9, "npu2_2col": 10, "npu2_3col": 11, "npu2_4col": 12,
    "npu2_5col": 13, "npu2_6col": 14, "npu2_7col": 15,
}  # fmt: skip
DMA = 1
DIRECTIONS: dict[Direction, int] = {"S2MM": 0, "MM2S": 1}
RELEASE = 1
ACQUIRE_GREATER_EQUAL = 2


def packet_info(number: int) -> str:
    """The header of packets of id `number`."""
    return f"#aie.packet_info<pkt_type = 0, pkt_id = {number}>"
