"""Overlays that mlir-air's fused decode made: read, held against what is known of it, packaged.

A folder that `make compile-decode` left has an overlay and words for one model, and does not name
it (docs/fused-decode.md). `folder` finds its files, `xclbin` and `traffic` read them, `recognition`
says which model they are for, `words` finds what a length of context changes, `package` writes what
`src/targets/npu/fused_decode` reads. Sizes and orders are asked of C++.
"""
