"""Norms, rotation, activations and soft caps of one row."""
