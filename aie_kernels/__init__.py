"""Kernels for AMD's AI Engines, the designs that call them, and the MLIR that is built of them."""
