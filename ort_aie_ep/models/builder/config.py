"""genai_config.json as the model builder writes it."""

from __future__ import annotations

from typing import Any

from ort_aie_ep.models.shapes import Shape


def genai_config(shape: Shape) -> dict[str, Any]:
    """genai_config.json of a model of `shape`, with token ids 0."""
    decoder: dict[str, Any] = {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": "model.onnx",
        "head_size": shape.head_dim,
        "hidden_size": shape.hidden,
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
    }
    if shape.window is not None:
        decoder["sliding_window"] = {
            "window_size": shape.window,
            "slide_key_value_cache": False,
            "slide_inputs": False,
            "layers": [layer for layer in range(shape.layers) if shape.is_local(layer)],
            "cache_slack": 0,
        }
    if (hybrid := shape.hybrid) is not None:
        if hybrid.sections:
            decoder["inputs"]["position_ids"] = "position_ids"
        for state in ("conv", "recurrent") if hybrid.value_heads else ("conv",):
            decoder["inputs"][f"past_{state}_names"] = f"past.%d.{state}"
            decoder["outputs"][f"present_{state}_names"] = f"present.%d.{state}"
        if not hybrid.value_heads:
            decoder["layer_types"] = [
                "full_attention" if shape.has_attention(layer) else "conv"
                for layer in range(shape.layers)
            ]
            decoder["conv_cache_size"] = hybrid.taps - 1
    return {
        "model": {
            "bos_token_id": 0,
            "context_length": shape.context,
            "decoder": decoder,
            "eos_token_id": 0,
            "pad_token_id": 0,
            "type": shape.family,
            "vocab_size": shape.vocab,
        },
        "search": {
            "diversity_penalty": 0.0,
            "do_sample": False,
            "early_stopping": True,
            "length_penalty": 1.0,
            "max_length": shape.context,
            "min_length": 0,
            "no_repeat_ngram_size": 0,
            "num_beams": 1,
            "num_return_sequences": 1,
            "past_present_share_buffer": True,
            "repetition_penalty": 1.0,
            "temperature": 1.0,
            "top_k": 50,
            "top_p": 1.0,
        },
    }
