"""Products with weights, and the nodes they absorb: norms, residuals, biases, gates, embeddings.

Here: passes that make or fuse aie.Q4NXMatMul, GEMM, their gated forms and Q4NXGather. Not here: the
bytes of their weights (`weights/`).
"""
