"""The NPU as data: devices, designs, their checks, a simulator.

This package is a leaf: nothing here knows ONNX, ONNX Runtime or XRT. The designs themselves are in
`aie_kernels/designs/`, the kernels they call in `aie_kernels/kernels/`.
"""
