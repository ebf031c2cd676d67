"""Design packages: an overlay and its manifest, written, read and checked.

C++ (`src/npu`) reads the manifest of a design; `manifest_check` repeats its rules in Python.
"""
