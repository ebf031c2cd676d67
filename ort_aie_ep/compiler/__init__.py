"""A model folder in, a compiled folder out: `compile`, its cache, and import from `.q4nx` files.

Which nodes become which is `graph_passes`; here are files: what is read, checked, written
whole or not at all, carried over and named. Nothing here generates text: a model is opened to see
that it opens, and reads one to give a quantised KV cache its scales (`calibration`).
"""
