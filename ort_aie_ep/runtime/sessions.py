"""Opens ONNX Runtime sessions as every command does: the library, options, quiet logs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import ort_aie_ep
from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import ModelFolder, find_model
from ort_aie_ep.models.integrity import is_as_compiled
from ort_aie_ep.models.interface import TYPES
from ort_aie_ep.runtime.options import Options as Options

if TYPE_CHECKING:
    import onnxruntime

# Exceptions carry the same text as ONNX Runtime's log lines, so log only what ends the process.
LOG_FATAL = 4
# ONNX Runtime says this about a node that no library it knows has registered.
UNKNOWN_OPERATOR = "is not a registered function/op"
# ONNX Runtime says this about a session with threads of its own in a process that has one pool of
# threads for all sessions (`onnxruntime.set_global_thread_pool_sizes`). Nothing else tells whether
# a process has such a pool.
_GLOBAL_THREADS = "use_per_session_threads must be false"


@dataclass(frozen=True)
class Model:
    """A model that was inspected but not opened.

    Attributes:
        folder: its folder.
        compiled: whether `ort-aie compile` made it.
    """

    folder: ModelFolder
    compiled: bool


def inspect(path: Path) -> Model:
    """Finds the model and checks its external data; weights are not read.

    Raises:
        AieError: there is no model, or it is damaged.
    """
    folder = find_model(path)
    if is_as_compiled(folder.model):
        return Model(folder, True)
    # What is compiled does not need onnx_ir, which takes longer to import than all the rest.
    from ort_aie_ep.models.onnx_file import is_compiled, load_model

    return Model(folder, is_compiled(load_model(folder.model)))


def new_options(threads: int | None = None) -> onnxruntime.SessionOptions:
    """Options for a session in this process.

    Args:
        threads: threads of the session, or None for ONNX Runtime's default. A process that has one
            pool of threads for all sessions uses that pool.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if _has_global_threads():
        options.use_per_session_threads = False
    elif threads is not None:  # with global threads ONNX Runtime warns about a number
        options.intra_op_num_threads = options.inter_op_num_threads = threads
    return options


def _has_global_threads() -> bool:
    """Whether sessions may not have threads of their own. Asked again for each session, because a
    process may decide so at any time."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = LOG_FATAL
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # starts no thread
    try:
        # ONNX Runtime checks the options before the model, which is empty and fails in any case.
        onnxruntime.InferenceSession(
            b"", options, providers=["CPUExecutionProvider"], enable_fallback=False
        )
    except Exception as error:  # ONNX Runtime's exceptions share no base class
        return _GLOBAL_THREADS in str(error)
    return False


def open_session(
    model: Path, options: Options | None = None, *, library: bool = True
) -> onnxruntime.InferenceSession:
    """A session on the CPU EP, with ort_aie_ep's operators unless `library` is False.

    Raises:
        AieError: ONNX Runtime refuses the model or an option.
    """
    return _open(str(model), model, options or Options(), library, {})


def open_edited(model: bytes, folder: Path, options: Options) -> onnxruntime.InferenceSession:
    """A session, without ort_aie_ep, on an edited model whose weights stay in `folder`."""
    entries = {"session.model_external_initializers_file_folder_path": str(folder)}
    return _open(model, folder, options, False, entries)


def open_operator(model: bytes, options: Options) -> onnxruntime.InferenceSession:
    """A session, with ort_aie_ep, on a model that contains all its weights."""
    return _open(model, Path("the operator's graph"), options, True, {})


def refuse_weightless(session_options: onnxruntime.SessionOptions) -> None:
    """Raises AieError if a session shall have no weights of its own; compiled models have them."""
    for entry in ("ep.enable_weightless_mode", "ep.enable_weightless"):
        try:
            mode = session_options.get_session_config_entry(entry)
        except RuntimeError:  # it is not set
            continue
        if mode != "0":
            raise AieError(
                f"{entry}={mode}: a compiled model has packed weights of its own; to keep weights "
                "only in their source, write a context model (onnxruntime.ModelCompiler)"
            )


def open_compiled(
    model: Path, session_options: onnxruntime.SessionOptions | None
) -> onnxruntime.InferenceSession:
    """A session on a compiled model with a user's options; adds the library if they lack it.

    Providers that were added to the options are kept; without any, only the CPU EP is used.

    Raises:
        AieError: ONNX Runtime refuses the model or an option.
    """
    import onnxruntime

    options = new_options() if session_options is None else session_options

    def session() -> onnxruntime.InferenceSession:
        providers = None if options.has_providers() else ["CPUExecutionProvider"]
        return onnxruntime.InferenceSession(model, options, providers=providers)

    with _errors(f"{model} cannot be opened"):
        if session_options is not None:
            # Options do not tell whether they have ort_aie_ep's operators, from the library or the
            # provider's devices, and refuse them twice. Without the operators, ONNX Runtime stops
            # at the graph.
            try:
                return session()
            except Exception as error:  # ONNX Runtime's exceptions share no base class
                if UNKNOWN_OPERATOR not in str(error):
                    raise
        options.register_custom_ops_library(ort_aie_ep.library_path())
        return session()


def _open(
    model: str | bytes, where: Path, options: Options, library: bool, entries: dict[str, str]
) -> onnxruntime.InferenceSession:
    import onnxruntime

    session_options = new_options(options.threads)
    session_options.log_severity_level = LOG_FATAL
    for name, value in (options.entries() | entries).items():
        session_options.add_session_config_entry(name, value)
    with _errors(f"{where} cannot be opened"), options.environment():
        if library:
            session_options.register_custom_ops_library(ort_aie_ep.library_path())
        return onnxruntime.InferenceSession(
            model, session_options, providers=["CPUExecutionProvider"]
        )


@contextmanager
def _errors(what: str) -> Iterator[None]:
    """Raises ONNX Runtime's exceptions, which share no base class, as AieError."""
    try:
        yield
    except AieError:
        raise
    except Exception as error:
        raise AieError(f"{what}: {plain_message(error)}") from error


def run(session: onnxruntime.InferenceSession, binding: Any) -> None:
    """Runs a session with bound inputs and outputs.

    Raises:
        AieError: an operator failed.
    """
    # To a user, an ONNX Runtime exception is as clear as its text; nothing else can arise here.
    with _errors("running the model failed"):
        session.run_with_iobinding(binding)


def ort_value(array: npt.NDArray[Any], type_name: str) -> onnxruntime.OrtValue:
    """An OrtValue on the array's memory; `type_name` is ONNX Runtime's, such as "tensor(float)"."""
    import onnxruntime

    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, TYPES[type_name][1])


def as_float(array: npt.NDArray[Any], type_name: str) -> npt.NDArray[np.float32]:
    """The numbers of an array that `models.interface.TYPES` has for a float type."""
    if type_name == "tensor(bfloat16)":
        import ml_dtypes

        array = array.view(ml_dtypes.bfloat16)
    return array.astype(np.float32, copy=False)


def plain_message(error: Exception) -> str:
    """The text of an ONNX Runtime exception without its codes."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ", "", str(error).strip())
    return text.removeprefix("Exception during initialization: ")
