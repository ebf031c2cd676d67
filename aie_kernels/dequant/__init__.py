"""The dequantisation engine: weights to bfloat16 in memory, for prompts."""
