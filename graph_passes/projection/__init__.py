"""Products with weights, and what joins them: norms, residuals, biases, gates, tied embeddings.

Here: passes that make or fuse aie.Q4NXMatMul, GEMM, their gated forms and Q4NXGather. Not here: the
bytes of their weights (`weights/`).
"""
