"""The words of a dataflow design: devices, tiles, fifos, workers, kernels, sequences, costs.

`configure` computes what a design becomes on its device. This package contains facts and their
errors; `checks` judges them.
"""
