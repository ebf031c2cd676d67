"""FastFlowLM models: `.q4nx` weights and their config.json as a compiled folder, and back.

The names of tensors, their order and the pitfalls come from FastFlowLM's public converter
(FLM_Q4NX_Converter). It writes safetensors: packed matrices as I8, everything else as BF16, and no
metadata. `ort_aie_ep.formats.q4nx` defines the blocks, docs/status.md says what is tested.
"""

from __future__ import annotations

from ort_aie_ep.compiler.fastflowlm.exporter import Exported, export_q4nx
from ort_aie_ep.compiler.fastflowlm.importer import import_q4nx

__all__ = ["Exported", "export_q4nx", "import_q4nx"]
