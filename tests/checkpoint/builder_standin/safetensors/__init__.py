"""Stands for safetensors, with tensors of the stand-in for torch."""

import json
from pathlib import Path
from types import TracebackType

import numpy as np
from torch import Tensor

DTYPES = {"F32": np.float32, "F16": np.float16}


class safe_open:
    def __init__(self, path: str, _: str) -> None:
        data = Path(path).read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        self._header, self._data = json.loads(data[8:end]), data[end:]
        self._metadata = self._header.pop("__metadata__", None)

    def __enter__(self) -> "safe_open":
        return self

    def __exit__(self, *_: type | BaseException | TracebackType | None) -> None: ...

    def metadata(self) -> dict[str, str] | None:
        return self._metadata

    def keys(self) -> list[str]:
        return list(self._header)

    def get_tensor(self, name: str) -> Tensor:
        entry = self._header[name]
        first, last = entry["data_offsets"]
        values = np.frombuffer(self._data[first:last], DTYPES[entry["dtype"]])
        return values.reshape(entry["shape"]).view(Tensor)
