"""Attention of any operator -> aie.FlowAttention: one file for each operator, and what they share.

Here: what reads an attention, its mask, rotation, norms and cache, and what makes the node. Not
here: products with weights (`projection/`).
"""
