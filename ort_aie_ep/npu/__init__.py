"""The NPU as data: devices, designs, their checks, a simulator.

This package is a leaf: nothing here knows ONNX, ONNX Runtime, XRT, or which designs there are. The
designs, and the kernels that they call, are in `aie_kernels/`, a folder an operator.
"""
