"""Design packages: an overlay and its manifest, written, read and checked.

The manifest is what C++ (`src/npu`) reads of a design; what it must hold is said here once more.
"""
