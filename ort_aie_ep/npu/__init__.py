"""The NPU as data: devices, designs, their checks, a simulator.

This package is a leaf: nothing here knows ONNX, ONNX Runtime or XRT. The designs and the
kernels that they call are in `aie_kernels/`, a folder for each operator.
"""
