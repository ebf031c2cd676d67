"""GEMM from quantised weights, for prompts of a few rows."""
