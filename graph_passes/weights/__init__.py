"""Tensors that passes make: read, packed when they are written, and shared between nodes.

Here: initializers and their bytes. Not here: nodes, and whether one is replaced (`projection/`).
"""
