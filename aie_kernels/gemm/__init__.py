"""GEMM, and the row operators of prompts on its cores."""
