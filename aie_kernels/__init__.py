"""Kernels for AMD's AI Engines, the designs that call them, and their lowering to IRON."""
