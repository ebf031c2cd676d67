"""Kernels for AMD's AI Engines, the designs that call them, and the MLIR built from them."""
