"""Overlays that mlir-air's fused decode made: read, checked against known models, packaged.

A folder made by `make compile-decode` has an overlay and words for one model, but does not name the
model (docs/fused-decode.md). `folder` finds its files, `xclbin` and `traffic` read them,
`recognition` finds the model, `words` finds the words that depend on the context's length, and
`package` writes the files that `src/targets/npu/fused_decode` reads. C++ provides sizes and orders.
"""
