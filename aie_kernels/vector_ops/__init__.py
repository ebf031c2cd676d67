"""Norms, rotation and activations of one row."""
