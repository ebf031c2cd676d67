"""mlir-air's prompts of 2026, composed from its program and its published parts."""
