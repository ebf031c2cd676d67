"""Measures a compiled model against its source, accuracy, the demo."""
