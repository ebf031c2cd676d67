"""ONNX Runtime with the library in it: sessions, what the provider does with nodes, counters.

Whether a written model opens is asked here too. Nothing here decodes text or changes a graph.
"""
