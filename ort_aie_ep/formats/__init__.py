"""Layouts of weights (Q4NX, Q2NX, Q8NX, those of GGUF files, bfloat16), in numpy and by the packers
of `_native`, and codes of a quantised KV cache.

Arrays in, arrays out: nothing here knows about ONNX, folders or ONNX Runtime.
"""
