"""Where each node runs and why, and what this machine has: `ort-aie explain` and `ort-aie doctor`.

Reasons come from the passes and from C++ (`_native`, `_npu`); this package collects them.
"""
