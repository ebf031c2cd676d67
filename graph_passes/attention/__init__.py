"""Attention, in any operator, -> aie.FlowAttention: a file per operator, and the code they share.

Here: the code that reads an attention, its mask, rotation, norms and cache, and that makes the
node. Not here: products with weights (`projection/`).
"""
