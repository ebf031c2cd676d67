"""Opening a model folder in onnxruntime-genai."""

from __future__ import annotations

import json
from typing import Any

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import GENAI_CONFIG, ModelFolder, section
from ort_aie_ep.requirements import install_line
from ort_aie_ep.runtime.sessions import LOG_FATAL, Options, plain_message


def module() -> Any:
    """onnxruntime_genai.

    Raises:
        AieError: it is not installed.
    """
    try:
        import onnxruntime_genai
    except ImportError as error:
        raise AieError(
            f"onnxruntime-genai is not installed: {install_line(['onnxruntime_genai'])} "
            "(ort-aie run --host session does without)"
        ) from error
    return onnxruntime_genai


def open_model(folder: ModelFolder, options: Options) -> Any:
    """An `onnxruntime_genai.Model`; a compiled folder's genai_config.json names the library.

    Raises:
        AieError: genai is not installed, or the folder has no genai_config.json.
        RuntimeError: genai refuses the folder.
    """
    genai = module()
    require_config(folder)
    config = genai.Config(str(folder.path))
    config.overlay(
        json.dumps({"model": {"decoder": {"session_options": entries(folder, options)}}})
    )
    with options.environment():
        return genai.Model(config)


def require_config(folder: ModelFolder) -> None:
    """Checks that a folder has what genai opens.

    Raises:
        AieError: it has no genai_config.json.
    """
    if folder.genai_config is None:
        raise AieError(
            f"{folder.model} came without {GENAI_CONFIG}, which onnxruntime-genai needs: give a "
            "folder that has one (ort-aie run --host session does without)"
        )


def entries(folder: ModelFolder, options: Options) -> dict[str, object]:
    """Session options in genai's form: unknown ones become session config entries."""
    found: dict[str, object] = {"log_severity_level": LOG_FATAL, **options.entries()}
    threads = "intra_op_num_threads"
    if options.threads is not None:
        found[threads] = options.threads
    elif threads not in section(folder, "model", "decoder", "session_options"):
        # genai's own choice is half of the logical CPUs, which are cores where none is shared. 0 is
        # ONNX Runtime's: the cores.
        found[threads] = 0
    return found


def refusal(error: RuntimeError) -> AieError:
    """What genai says, for the user. It raises RuntimeError for everything."""
    return AieError(f"onnxruntime-genai: {plain_message(error)}")


def least_length(folder: ModelFolder) -> int:
    """The smallest max_length of a generator: its cache must hold a sliding window.

    Whoever wants fewer tokens stops earlier.
    """
    window = section(folder, "model", "decoder", "sliding_window").get("window_size", 0)
    return window if isinstance(window, int) else 0
