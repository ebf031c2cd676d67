"""What to do next with a compiled folder: the command or the lines of Python that load it."""

from __future__ import annotations

from ort_aie_ep.models.files import is_regular
from ort_aie_ep.models.folder import (
    OPTIMUM_DECODERS,
    OPTIMUM_ENCODER,
    ModelFolder,
    file_sections,
    section,
)
from ort_aie_ep.models.interface import Unfit, read_file_interface

# An encoder's input, and optimum's class for models with such an encoder.
SEQ2SEQ_CLASSES = {
    "input_features": "ORTModelForSpeechSeq2Seq",
    "input_values": "ORTModelForSpeechSeq2Seq",
    "pixel_values": "ORTModelForVision2Seq",
    "flattened_patches": "ORTModelForPix2Struct",
}
SESSION_OPTIONS = (
    "options = onnxruntime.SessionOptions()",
    "options.register_custom_ops_library(ort_aie_ep.library_path())",
)


def why_not_text(folder: ModelFolder) -> str:
    """Why `run`, `bench` and `accuracy` cannot use a folder, or an empty string.

    Raises:
        AieError: the model is damaged.
    """
    try:
        read_file_interface(folder)
    except Unfit as reason:
        return str(reason)
    return ""


def lines(folder: ModelFolder) -> list[str]:
    """Lines of Python that load a compiled folder that is not a language model by itself.

    Raises:
        AieError: the encoder of an encoder-decoder export is missing or damaged.
    """
    path = str(folder.path)
    if folder.model.name in OPTIMUM_DECODERS:
        name = "ORTModelForCausalLM"
        if folder.is_optimum_encoder_decoder:
            name = _seq2seq_class(folder)
        return [
            *SESSION_OPTIONS,
            f"model = {name}.from_pretrained({path!r}, session_options=options)",
        ]
    if _has_parts(folder):
        return [f"model = onnxruntime_genai.Model({path!r})"]
    return [
        *SESSION_OPTIONS,
        f"session = onnxruntime.InferenceSession({str(folder.model)!r}, options)",
    ]


def other_ways(folder: ModelFolder) -> str:
    """A sentence that says what opens a model that is not a language model by itself."""
    if folder.is_optimum_encoder_decoder:
        return "optimum's ORTModelForSeq2SeqLM or ORTModelForSpeechSeq2Seq opens it"
    if _has_parts(folder):
        return "onnxruntime_genai.Model opens it together with the other files of its folder"
    return "onnxruntime.InferenceSession opens it; you provide its inputs"


def _seq2seq_class(folder: ModelFolder) -> str:
    from ort_aie_ep.models.onnx_file import load_model

    inputs = load_model(folder.path / OPTIMUM_ENCODER).graph.inputs
    classes = [SEQ2SEQ_CLASSES[v.name] for v in inputs if v.name in SEQ2SEQ_CLASSES]
    return classes[0] if classes else "ORTModelForSeq2SeqLM"


def _has_parts(folder: ModelFolder) -> bool:
    """Whether genai_config.json names other files that are there."""
    named = (folder.path / part["filename"] for part, _ in file_sections(section(folder, "model")))
    return any(path != folder.model and is_regular(path) for path in named)
