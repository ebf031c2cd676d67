"""Tokens of a prompt that one call of the model reads. Operators may divide them further
(`ort_aie.prompt_chunk`)."""

# The activations of a long prompt would need more memory than the cache, and in chunks of this size
# reading the weights again costs little.
CHUNK_ALONE = 1024
# The same if texts that are being written wait for it: a step must not take too long.
CHUNK_BESIDE_TEXTS = 256
