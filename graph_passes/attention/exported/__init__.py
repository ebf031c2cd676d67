"""Attention that an exporter spelled out: found, run, proved to be a formula, and replaced.

Here: the code that examines it by running it, from `region.py` to `rewrite.py`. Not here: attention
that is one operator of ONNX or of ONNX Runtime.
"""
