"""Models of any size without a download: random int4 weights in the model builder's graphs.

`synth("llama-3.2-1b", folder)` writes what onnxruntime-genai's model builder 0.18 writes for the
CPU at int4 (symmetric, block 32, accuracy level 4): the same nodes, names, attributes, types and
file layout, compared node for node in tests/test_synth.py. Only the numbers are random, scaled so
that activations stay near one. There is no tokenizer: such a folder is for measuring speed and
memory, and for tests.

Weights go to the disk a few megabytes at a time, so memory does not grow with the model.
"""

from __future__ import annotations

from ort_aie_ep.model_shapes import SHAPES, Shape
from ort_aie_ep.synth.folder import Progress, SynthError, synth

__all__ = ["SHAPES", "Progress", "Shape", "SynthError", "synth"]
