"""Runs a model with count_allocations preloaded, and prints how often ort_aie_ep allocated memory:
in the first call, then in calls after it.

    LD_PRELOAD=COUNT_ALLOCATIONS python repeat.py MODEL INPUTS.npz
"""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime
from decode import allocations

import ort_aie_ep


def main(model: str, inputs: str) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.register_custom_ops_library(ort_aie_ep.library_path())
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feeds = dict(np.load(inputs))
    print(*(allocations(lambda: session.run(None, feeds), times) for times in (1, 8)))


if __name__ == "__main__":
    main(*sys.argv[1:])
