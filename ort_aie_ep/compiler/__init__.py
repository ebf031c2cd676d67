"""A model folder in, a compiled folder out: `compile`, its cache, and import from `.q4nx` files.

`graph_passes` decides which nodes become which. This package handles the files: it reads, checks
and names them, carries them over, and writes each folder whole or not at all. Nothing here
generates text: a model is opened to see that it opens, and it reads a text to find the scales of a
quantised KV cache (`calibration`).
"""
