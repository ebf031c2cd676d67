"""What to do with a compiled folder next: the command or the lines of Python that take it."""

from __future__ import annotations

from ort_aie_ep.model_file import load_model
from ort_aie_ep.model_folder import OPTIMUM_ENCODER, ModelFolder

# What an encoder reads, and optimum's class for models with such an encoder.
SEQ2SEQ_CLASSES = {
    "input_features": "ORTModelForSpeechSeq2Seq",
    "input_values": "ORTModelForSpeechSeq2Seq",
    "pixel_values": "ORTModelForVision2Seq",
    "flattened_patches": "ORTModelForPix2Struct",
}


def encoder_decoder_lines(folder: ModelFolder) -> list[str]:
    """Lines of Python that load an encoder and decoders of optimum.

    Raises:
        AieError: the encoder is missing or damaged.
    """
    inputs = load_model(folder.path / OPTIMUM_ENCODER).graph.inputs
    names = [value.name for value in inputs if value.name in SEQ2SEQ_CLASSES]
    name = SEQ2SEQ_CLASSES[names[0]] if names else "ORTModelForSeq2SeqLM"
    return [
        "options = onnxruntime.SessionOptions()",
        "options.register_custom_ops_library(ort_aie_ep.library_path())",
        f"model = {name}.from_pretrained({str(folder.path)!r}, session_options=options)",
    ]
