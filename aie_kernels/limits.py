"""The limits of common/design_limits.h, which kernels and the scheduler in C++ include."""

from __future__ import annotations

import re
from pathlib import Path


def _limits() -> dict[str, int]:
    text = (Path(__file__).parent / "common" / "design_limits.h").read_text()
    return {name: int(value) for name, value in re.findall(r"int32_t (\w+) = (\d+);", text)}


_LIMITS = _limits()
MATVEC_K = _LIMITS["kMatvecK"]
BIAS_ROUNDS = _LIMITS["kBiasRounds"]
GEMM_K = _LIMITS["kGemmK"]
SHORT_GEMM_K = _LIMITS["kShortGemmK"]
VECTOR_ROW = _LIMITS["kVectorRow"]
SLABS = _LIMITS["kSlabs"]
