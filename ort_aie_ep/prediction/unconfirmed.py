"""Designs whose predictions nobody should believe before a chip has shown them."""

from __future__ import annotations

#: Designs with a kernel whose modelled cycles are less than 70 % of the nearest ones that anyone
#: has measured. `python lab/npu_papers fit` derives them from what is published, and compares.
UNCONFIRMED = frozenset({"flow_kv", "flow_qkv", "gemm, NPU1", "row_operators"})
