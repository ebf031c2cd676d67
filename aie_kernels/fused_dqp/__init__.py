"""FusedDQP: the product of one row with quantised weights, for decoding."""
