"""The graphs that onnxruntime-genai's model builder 0.18 writes for a decoder at int4 or float32.

The nodes, names, attributes and types are the same; tests/test_synth.py compares them node by node.
The caller supplies the weights, row by row: random ones (`ort-aie synth`), or those of a `.q4nx` or
GGUF file. For the latter, a matrix may have 8 bits or zero points, queries, keys and values may be
three matrices, and a matrix in a form of GGUF files is that of an aie operator.
"""
