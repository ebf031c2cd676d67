"""Checks that ONNX Runtime opens a written model, and if not, whether it opens its source.

Before the model is written, checks that there is an ONNX Runtime that can open it.
"""

from __future__ import annotations

import re
from pathlib import Path

import ort_aie_ep
from ort_aie_ep.errors import AieError
from ort_aie_ep.requirements import RUNTIME, require
from ort_aie_ep.runtime.sessions import (
    LOG_FATAL,
    UNKNOWN_OPERATOR,
    Options,
    new_options,
    plain_message,
)

# Errors for models that another ONNX Runtime, execution provider or custom-op library may open:
# newer versions, and operators, attributes or types that this CPU execution provider lacks.
ELSEWHERE = (
    UNKNOWN_OPERATOR,
    "Unrecognized attribute",
    "Could not find an implementation",
    "Unsupported model IR version",
    "stamped with official released onnx opset",
)
# Errors of the operators' schemas: inputs that no version takes. A compiled model may open in spite
# of them, as its operators infer less.
OF_SCHEMAS = ("ShapeInferenceError", "TypeInferenceError")
# ONNX Runtime reports this, too, as a ShapeInferenceError, but the model is valid: it is about the
# external data of constants that only a folded constant used.
NOT_OF_SCHEMAS = "Cannot parse data from external tensors"


def check_runtime() -> None:
    """Checks, before anything is written, that this ONNX Runtime can open compiled models.

    Raises:
        AieError: ONNX Runtime is not installed, does not load, or is too old for the library.
    """
    require("opening a model", [RUNTIME])
    try:
        import onnxruntime
    except ImportError as error:
        raise AieError(f"ONNX Runtime is installed but cannot be imported: {error}") from error
    try:
        onnxruntime.SessionOptions().register_custom_ops_library(ort_aie_ep.library_path())
    except AieError:
        raise
    except Exception as error:  # ONNX Runtime's exceptions share no base class
        raise AieError(plain_message(error)) from error


def check_opens(compiled: Path, source: Path) -> list[str]:
    """Opens a compiled model on this CPU; returns notes for the user.

    Weights are mapped and graphs are not optimised, so this needs little time and memory.

    Raises:
        AieError: ONNX Runtime refuses the compiled model, whether or not it refuses the source; or
            inputs of the source's nodes do not fit their operators' schemas.
    """
    import onnxruntime

    runtime = f"ONNX Runtime {onnxruntime.__version__}"
    reason = _why_not(compiled, library=True)
    # An imported model was not made from an .onnx file.
    original = _why_not(source, library=False) if source.is_file() else None
    if reason is None and not _breaks_a_schema(original or ""):
        return []
    if original is None:
        raise AieError(
            f"{source}: {runtime} does not open the compiled model, which is a bug in ort_aie_ep: "
            f"{reason}"
        )
    if any(text in original for text in ELSEWHERE):
        return [
            f"{source} and its compiled model could not be opened here, by {runtime} on its "
            f"CPU execution provider: {original}"
        ]
    raise AieError(f"{source} is not a valid model: {runtime} does not open it: {original}")


def _breaks_a_schema(reason: str) -> bool:
    return any(text in reason for text in OF_SCHEMAS) and NOT_OF_SCHEMAS not in reason


def _why_not(model: Path, *, library: bool) -> str | None:
    """ONNX Runtime's error for a model, or None if it opens it."""
    import onnxruntime

    options = new_options(threads=1)
    options.log_severity_level = LOG_FATAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    host = Options(target="host", log="quiet")
    for name, value in host.entries().items():
        options.add_session_config_entry(name, value)
    with host.environment():
        try:
            if library:
                options.register_custom_ops_library(ort_aie_ep.library_path())
            onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        except AieError:
            raise
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            return re.sub(r"\s+", " ", plain_message(error))
    return None
