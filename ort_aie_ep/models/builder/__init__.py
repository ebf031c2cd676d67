"""The graphs that onnxruntime-genai's model builder 0.18 writes for a decoder at int4 or float32.

The same nodes, names, attributes and types, compared node for node in tests/test_synth.py; weights
come from whoever asks, row by row: random ones (`ort-aie synth`), or those of a `.q4nx` file.
"""
