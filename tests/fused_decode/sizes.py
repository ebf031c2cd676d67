"""Sizes of buffers and phases, from mlir-air's own table of its fused decode (e972f294)."""

from __future__ import annotations

BLOCK = 5120
MODELS = ("llama-3.2-1b", "llama-3.2-3b", "gemma3-4b", "qwen3-8b", "phi4-mini")

# Elements of w (parts if it is split), rms and kvc for 2,048 positions; y as the part before the
# logits, and the logits.
SIZES = {
    "llama-3.2-1b": ([386_662_400], 67_648, 33_554_432, 5_120, 129_024),
    "llama-3.2-3b": ([1_004_666_880], 175_232, 117_440_512, 8_192, 129_024),
    "gemma3-4b": ([1_213_644_800], 376_832, 142_606_336, 6_656, 263_680),
    "qwen3-8b": ([542_638_080] * 4 + [199_229_440], 312_832, 150_994_944, 10_240, 155_648),
    "phi4-mini": ([1_201_274_880], 199_776, 134_217_728, 8_192, 202_752),
}

# Row blocks and column blocks of a layer's four phases, and elements of its slab.
PHASES = {
    "llama-3.2-1b": ((96, 64, 512, 64), (8, 8, 8, 32), 19_005_440),
    "llama-3.2-3b": ((160, 96, 512, 96), (12, 12, 12, 32), 31_457_280),
    "gemma3-4b": ((128, 80, 640, 80), (10, 8, 10, 40), 29_491_200),
    "qwen3-8b": ((192, 128, 768, 128), (16, 16, 16, 48), 60_293_120),
    "phi4-mini": ((160, 96, 512, 96), (12, 12, 12, 32), 31_457_280),
}

ROTARY = {  # elements of a slab, and the number of slabs
    "llama-3.2-1b": (64, 1),
    "llama-3.2-3b": (128, 1),
    "gemma3-4b": (768, 34),
    "qwen3-8b": (384, 36),
    "phi4-mini": (96, 1),
}
