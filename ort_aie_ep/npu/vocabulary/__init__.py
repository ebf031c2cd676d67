"""The words of a dataflow design: devices, tiles, fifos, workers, kernels, sequences, costs.

`configure` says what a design becomes on its device. Facts and their errors; nothing is judged.
"""
