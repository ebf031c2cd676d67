"""int4 LLMs in ONNX Runtime on AMD Ryzen AI NPUs, and on any CPU.

The execution provider runs models as they are; the custom operators run compiled models:

    import onnxruntime, ort_aie_ep

    name, path = ort_aie_ep.get_ep_name(), ort_aie_ep.get_library_path()
    onnxruntime.register_execution_provider_library(name, path)
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]
    options = onnxruntime.SessionOptions()
    options.add_provider_for_devices(devices[:1], {})
    session = onnxruntime.InferenceSession("model.onnx", options)

    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(path)
    session = onnxruntime.InferenceSession("compiled_folder/model.onnx", options)

This needs only the ONNX Runtime that loads the library. The extra [tools] adds the compiler, and
`ort-aie --help` on the command line:

    ort_aie_ep.compile("model_folder", "compiled_folder")
    session = ort_aie_ep.session("model_folder")    # compiled into a cache, once
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from ort_aie_ep.compiler.options import CompileKeywords, CompileOptions, takes
from ort_aie_ep.errors import AieError

# Importing the package must stay light, for applications that only need the library's path.
# Functions import whatever takes long to import or comes with the extra [tools].
if TYPE_CHECKING:
    import onnxruntime

    from ort_aie_ep.compiler.compile import CompileResult
    from ort_aie_ep.progress import Progress
    from ort_aie_ep.runtime.counters import NpuCounters

    __version__: str
else:

    def __getattr__(name: str) -> str:
        if name == "__version__":  # of the installed package, which is slow to look up
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
    "logits_of_last",
    "npu_counters",
    "session",
]


def get_library_path() -> str:
    """Path of `libort_aie_ep.so`, the execution provider and the operators of compiled models.

    On Windows it is `ort_aie_ep.dll`.

    For `onnxruntime.register_execution_provider_library` and
    `SessionOptions.register_custom_ops_library`.

    Raises:
        AieError: the package was installed without its library.
    """
    # The modelled NPU (target sim) is a process. It needs an interpreter that has this package.
    os.environ.setdefault("ORT_AIE_SIM_PYTHON", sys.executable)
    return str(_installed("ort_aie_ep"))


def library_path() -> str:
    """The same as `get_library_path`."""
    return get_library_path()


def get_ep_name() -> str:
    """The name of the library's execution provider, as its devices report it."""
    return "AieExecutionProvider"


def get_ep_names() -> list[str]:
    """The names of all the library's execution providers."""
    return [get_ep_name()]


def npu_counters() -> NpuCounters:
    """Counts of the work of this process's NPU targets: see `runtime.counters.NpuCounters`."""
    from ort_aie_ep.runtime import counters

    return counters.npu_counters()


def logits_of_last(tokens: int) -> AbstractContextManager[None]:
    """Makes runs of this thread compute the logits of a sequence's last `tokens` tokens alone: see
    `runtime.core_library.logits_of_last`."""
    from ort_aie_ep.runtime import core_library

    return core_library.logits_of_last(tokens)


def stub_path() -> str:
    """Path of the small library that is copied into compiled onnxruntime-genai folders."""
    return str(_installed("ort_aie_ep_stub"))


def _installed(name: str) -> Path:
    from ort_aie_ep import platforms

    path = Path(__file__).with_name(platforms.library_name(name))
    if not path.is_file():
        raise AieError(f"{path} is missing: reinstall the package ort_aie_ep")
    return path


@takes(CompileKeywords)
def compile(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    **options: Unpack[CompileKeywords],
) -> CompileResult:
    """Compiles a model folder: see `ort_aie_ep.compiler.compile.compile_model`.

    `source` may also be a name on a hub: see `session`.
    `ort_aie_ep.compiler.options.CompileOptions` says what each option does.
    """
    from ort_aie_ep.requirements import require_tools

    require_tools("ort_aie_ep.compile")
    from ort_aie_ep.compiler.compile import compile_model
    from ort_aie_ep.hub.models import local

    path = local(source, progress).path
    return compile_model(path, destination, CompileOptions.of(**options), progress=progress)


@takes(CompileKeywords)
def session(
    model: str | os.PathLike[str],
    *,
    session_options: onnxruntime.SessionOptions | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_limit: str | None = None,
    progress: Progress | None = None,
    **options: Unpack[CompileKeywords],
) -> onnxruntime.InferenceSession:
    """Opens an ordinary session on a model, and compiles the model into a cache first if needed.

    A compiled model is opened as it is. The cache identifies a model by a hash of its .onnx file
    and its external data files (about 1 s for 1 GB). The hash is computed again only when a file's
    path, size, times or inode change, so that reopening takes no longer than opening a session.
    Each combination of compile options has its own entry, and so has each state of the compiler's
    code. An entry takes 4.1 to 5 bits a weight on disk, 2.1 to 3 for weights of 2 bits. When the
    cache exceeds a limit, entries that no session has open are removed, the least recently used
    first. Processes may share a cache; `ort-aie cache` shows it.

    Args:
        model: an onnxruntime-genai folder, a folder with one .onnx file, an .onnx, .gguf or .q4nx
            file, or a Hugging Face checkpoint; or, with the extra [hub], a name on a model hub,
            OWNER/REPO[@REVISION][:FOLDER or FILE], which is downloaded first.
        session_options: the custom-op library is registered on it if it is not there already; a
            new one by default. Providers that were added to it are kept; without any, only the
            CPU EP is used.
        cache_dir: the cache; by default $ORT_AIE_CACHE, else ort_aie_ep/models in
            $XDG_CACHE_HOME or ~/.cache.
        cache_limit: maximum size of the cache in bytes, such as "20GB", or "none"; by default
            $ORT_AIE_CACHE_LIMIT, else 32 GB.
        progress: called with (bytes done, bytes in all, what is being done): first while the
            model is downloaded and its files are hashed, then from 0 again for each stage of
            compiling (see `compile`). Not called if nothing of this is needed.
        options: as for `compile`.

    Raises:
        AieError: the path is not a model; a name cannot be downloaded; the model is damaged, has
            nothing to compile, or changes in the meantime; it is already compiled and a compile
            option is given; the cache cannot be written; ONNX Runtime refuses the session; the
            extra [tools] is not installed.
    """
    from ort_aie_ep.requirements import require_tools

    require_tools("ort_aie_ep.session")
    from ort_aie_ep.hub.models import compiled, local
    from ort_aie_ep.runtime.sessions import open_compiled, refuse_weightless

    if session_options is not None:
        refuse_weightless(session_options)
    asked = CompileOptions.of(**options)
    opened = compiled(
        local(model, progress), asked, progress, cache_dir=cache_dir, limit=cache_limit
    )
    try:
        session = open_compiled(opened.file, session_options)
    except BaseException:
        opened.close()
        raise
    opened.close_with(session)
    return session
