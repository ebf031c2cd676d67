"""FusedDQP for codes of two bits."""
