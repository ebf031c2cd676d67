"""Measuring: a compiled model against its source, accuracy, the demo; other engines in `peers`."""
