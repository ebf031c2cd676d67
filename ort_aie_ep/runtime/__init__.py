"""ONNX Runtime with the library loaded: sessions, what the provider does with nodes, counters.

This package also checks that a written model opens. Nothing here decodes text or changes a graph.
"""
