"""int4 LLMs in ONNX Runtime on AMD Ryzen AI NPUs, and on any CPU.

    import onnxruntime, ort_aie_ep
    ort_aie_ep.compile("model_folder", "compiled_folder")
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(ort_aie_ep.library_path())
    session = onnxruntime.InferenceSession("compiled_folder/model.onnx", options)

On the command line: `ort-aie --help`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ort_aie_ep.errors import AieError

if TYPE_CHECKING:
    import os

    from ort_aie_ep.compiler import CompileResult, Progress

__version__ = "0.1.0"
__all__ = ["AieError", "__version__", "compile", "library_path"]


def library_path() -> str:
    """Path of `libort_aie_ep.so`, for `SessionOptions.register_custom_ops_library`.

    Raises:
        AieError: the package was installed without its library.
    """
    return str(_installed("libort_aie_ep.so"))


def stub_path() -> str:
    """Path of the small library that compiled onnxruntime-genai folders carry a copy of."""
    return str(_installed("libort_aie_ep_stub.so"))


def _installed(name: str) -> Path:
    from ort_aie_ep import _native

    path = Path(_native.__file__).with_name(name)
    if not path.is_file():
        raise AieError(f"{name} is missing beside {path.parent}: reinstall the package ort_aie_ep")
    return path


def compile(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    kv: str | None = None,
    last_logits: bool = False,
    fuse: bool = True,
    progress: Progress | None = None,
) -> CompileResult:
    """Compiles a model folder: see `ort_aie_ep.compiler.compile_model`."""
    # Importing the package must stay light for applications that only want library_path().
    from ort_aie_ep.compiler import compile_model

    return compile_model(
        source, destination, kv=kv, last_logits=last_logits, fuse=fuse, progress=progress
    )
