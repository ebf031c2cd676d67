"""A model folder in, a compiled folder out: `compile`, its cache, and import from `.q4nx` files.

Which nodes become which is `graph_passes`; here are files: what is read, checked, written
whole or not at all, carried over and named. Nothing here runs a model, but to see that it opens.
"""
