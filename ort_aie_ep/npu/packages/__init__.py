"""Design packages: an overlay and its manifest, written, read and checked.

C++ (`src/npu`) reads the manifest of a design, and says what is wrong with it.
"""
