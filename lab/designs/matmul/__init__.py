"""GEMM from row-major operands."""
