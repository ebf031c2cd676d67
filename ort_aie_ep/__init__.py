"""int4 LLMs in ONNX Runtime on AMD Ryzen AI NPUs, and on any CPU.

The execution provider, for models as they are, and the operators of compiled models:

    import onnxruntime, ort_aie_ep

    name, path = ort_aie_ep.get_ep_name(), ort_aie_ep.get_library_path()
    onnxruntime.register_execution_provider_library(name, path)
    session = onnxruntime.InferenceSession("model.onnx", providers=[name, "CPUExecutionProvider"])

    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(path)
    session = onnxruntime.InferenceSession("compiled_folder/model.onnx", options)

This much needs no other package than the ONNX Runtime that loads the library. With the extra
[tools] there are the compiler too, and `ort-aie --help` on the command line:

    ort_aie_ep.compile("model_folder", "compiled_folder")
    session = ort_aie_ep.session("model_folder")    # compiled into a cache, once
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ort_aie_ep.errors import AieError

# Importing the package must stay light, for applications that only want the library's path: what
# takes long to import, or comes with the extra [tools], is imported by the functions.
if TYPE_CHECKING:
    import onnxruntime

    from ort_aie_ep.compiler.compile import CompileResult
    from ort_aie_ep.progress import Progress
    from ort_aie_ep.runtime.counters import NpuCounters

    __version__: str
else:

    def __getattr__(name: str) -> str:
        if name == "__version__":  # of the installed package, which takes long to ask
            from importlib.metadata import version

            return version("ort_aie_ep")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AieError",
    "__version__",
    "compile",
    "get_ep_name",
    "get_ep_names",
    "get_library_path",
    "library_path",
    "npu_counters",
    "session",
]


def get_library_path() -> str:
    """Path of `libort_aie_ep.so`, the execution provider and the operators of compiled models.

    For `onnxruntime.register_execution_provider_library` and
    `SessionOptions.register_custom_ops_library`.

    Raises:
        AieError: the package was installed without its library.
    """
    # The modelled NPU (target sim) is a process, of an interpreter that has this package.
    os.environ.setdefault("ORT_AIE_SIM_PYTHON", sys.executable)
    return str(_installed("libort_aie_ep.so"))


def library_path() -> str:
    """The same as `get_library_path`."""
    return get_library_path()


def get_ep_name() -> str:
    """The name of the execution provider that the library has, as its devices give it."""
    return "AieExecutionProvider"


def get_ep_names() -> list[str]:
    """The names of all execution providers that the library has."""
    return [get_ep_name()]


def npu_counters() -> NpuCounters:
    """What the NPU targets of this process have done: see `runtime.counters.NpuCounters`."""
    from ort_aie_ep.runtime import counters

    return counters.npu_counters()


def stub_path() -> str:
    """Path of the small library that compiled onnxruntime-genai folders carry a copy of."""
    return str(_installed("libort_aie_ep_stub.so"))


def _installed(name: str) -> Path:
    from importlib.util import find_spec

    # The libraries are where the extension module is, which an editable install has elsewhere.
    native = find_spec("ort_aie_ep._native")
    beside = __file__ if native is None or native.origin is None else native.origin
    path = Path(beside).with_name(name)
    if not path.is_file():
        raise AieError(f"{path} is missing: install the package ort_aie_ep again")
    return path


def compile(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    kv: str | None = None,
    calibration: str | os.PathLike[str] | None = None,
    last_logits: bool = False,
    fuse: bool = True,
    plan: bool = True,
    quantize: str | None = None,
    keep: Sequence[str] = (),
    progress: Progress | None = None,
) -> CompileResult:
    """Compiles a model folder: see `ort_aie_ep.compiler.compile.compile_model`."""
    from ort_aie_ep.requirements import require_tools

    require_tools("ort_aie_ep.compile")
    from ort_aie_ep.compiler.compile import compile_model

    return compile_model(
        source,
        destination,
        kv=kv,
        calibration=calibration,
        last_logits=last_logits,
        fuse=fuse,
        plan=plan,
        quantize=quantize,
        keep=keep,
        progress=progress,
    )


def session(
    model: str | os.PathLike[str],
    *,
    session_options: onnxruntime.SessionOptions | None = None,
    kv: str | None = None,
    calibration: str | os.PathLike[str] | None = None,
    last_logits: bool = False,
    fuse: bool = True,
    plan: bool = True,
    quantize: str | None = None,
    keep: Sequence[str] = (),
    cache_dir: str | os.PathLike[str] | None = None,
    cache_limit: str | None = None,
    progress: Progress | None = None,
) -> onnxruntime.InferenceSession:
    """An ordinary session on a model, which is compiled into a cache first unless it is there.

    A model that is compiled already is opened as it is. The cache knows a model by a hash of its
    .onnx file and its external data files (about 1 s for 1 GB), which is taken again only when a
    file's path, size, times or inode change, so that reopening takes as long as a session does.
    Each choice of the compilation has an entry of its own, and so has each state of the code that
    compiles. An entry takes 5 bits a weight on disk, 3 for weights of 2 bits; beyond a limit, those
    that no session has open go, the one used least recently first. Processes may share a cache;
    `ort-aie cache` shows it.

    Args:
        model: an onnxruntime-genai folder, a folder with one .onnx file, or an .onnx file.
        session_options: the custom-op library is registered on it unless it is there already; a
            new one by default. Providers that were added to it are kept; else there is the CPU EP
            alone.
        kv: as for `compile`, "f16" or "bf16" gives past and present that type, "int8" or "int4"
            makes them codes.
        calibration: as for `compile`, what the scales of those codes come from.
        last_logits: as for `compile`, give each row's last token's logits alone.
        fuse: as for `compile`, let norms, residuals and gates join the projections.
        plan: as for `compile`, make one node of each region.
        quantize: as for `compile`, what float weights become: "q4nx" or "bf16".
        keep: as for `compile`, names of nodes that `quantize` leaves alone.
        cache_dir: the cache; by default $ORT_AIE_CACHE, else ort_aie_ep/models in
            $XDG_CACHE_HOME or ~/.cache.
        cache_limit: bytes that the cache may have, such as "20GB", or "none"; by default
            $ORT_AIE_CACHE_LIMIT, else 32 GB.
        progress: called with (bytes done, bytes in all, what is being done): first while the
            model's files are hashed, then from 0 again while weights are written into the cache.
            Not called when neither is needed.

    Raises:
        AieError: the model is none, is damaged, has nothing to compile, or changes meanwhile;
            it is compiled already and a choice of the compilation is given; the cache cannot be
            written; ONNX Runtime refuses the session; the extra [tools] is not installed.
    """
    from ort_aie_ep.requirements import require_tools

    require_tools("ort_aie_ep.session")
    from ort_aie_ep.compiler.cache import Choices, cache_folder, compiled_file
    from ort_aie_ep.compiler.cache_entries import cache_limit as cache_size_limit
    from ort_aie_ep.runtime.sessions import open_compiled

    choices = Choices(
        kv,
        None if calibration is None else str(calibration),
        last_logits,
        fuse,
        plan,
        quantize,
        tuple(keep),
    )
    cache, limit = cache_folder(cache_dir), cache_size_limit(cache_limit)
    opened = compiled_file(Path(model), cache, choices, progress, limit)
    try:
        session = open_compiled(opened.file, session_options)
    except BaseException:
        opened.close()
        raise
    opened.close_with(session)
    return session
