"""Logits of a model on Linux: python linux_logits.py custom-ops|provider MODEL INPUTS.npz OUTPUT.

OUTPUT gets raw float32. A program, because a process chooses its instruction set once.
"""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime

import ort_aie_ep


def main() -> None:
    """The command."""
    door, model, inputs, output = sys.argv[1:]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    name, library = ort_aie_ep.get_ep_name(), ort_aie_ep.get_library_path()
    if door == "provider":
        onnxruntime.register_execution_provider_library(name, library)
        devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]
        options.add_provider_for_devices(devices[:1], {})
    else:
        options.register_custom_ops_library(library)
    session = onnxruntime.InferenceSession(model, options)
    (logits,) = session.run(["logits"], dict(np.load(inputs)))
    logits.astype(np.float32).tofile(output)


if __name__ == "__main__":
    main()
