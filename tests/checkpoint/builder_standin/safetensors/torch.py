"""Stands for safetensors.torch: the writer."""

import json
from pathlib import Path

import numpy as np

NAMES = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16"}


def save_file(
    tensors: dict[str, np.ndarray], path: str | Path, metadata: dict[str, str] | None = None
) -> None:
    header: dict[str, object] = {} if metadata is None else {"__metadata__": metadata}
    at = 0
    for name, values in tensors.items():
        offsets = [at, at := at + values.nbytes]
        header[name] = {
            "dtype": NAMES[values.dtype], "shape": values.shape, "data_offsets": offsets,
        }  # fmt: skip
    text = json.dumps(header).encode()
    content = b"".join(np.ascontiguousarray(values).tobytes() for values in tensors.values())
    Path(path).write_bytes(len(text).to_bytes(8, "little") + text + content)
