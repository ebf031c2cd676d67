"""GEMM on weights in bfp16."""
