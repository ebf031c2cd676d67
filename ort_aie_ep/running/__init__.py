"""Generating with a model: prompts and text, the decoding loop, `ort-aie run`, what to do next.

Sessions come from `runtime`, names of inputs from `models.interface`. Nothing here measures.
"""
