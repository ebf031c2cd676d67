"""Export a Gemma 3 that sees pictures (4B, 12B, 27B) to a folder for onnxruntime-genai, in float32.

    python -m venv models && models/bin/pip install -r lab/requirements-models.txt
    models/bin/python lab/export_gemma3.py HF_FOLDER FOLDER

onnxruntime-genai's model builder writes the text model of such a folder alone, with causal
attention. Gemma 3's image tokens see each other both ways; so the text model that is written here
takes the token ids beside the embeddings, which onnxruntime-genai gives it, and masks accordingly.
All three models are exported with torch.onnx at opset 23, with ONNX's own Attention.

The folder must not exist. The text model takes about 4 bytes of memory and of disk for each weight.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import onnx
import torch
from torch.nn import functional
from transformers import DynamicCache, Gemma3ForConditionalGeneration

OPSET = 23
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
# Positions of images in a text are found by comparing with this; a token of an earlier call.
EARLIER = -2


class Vision(torch.nn.Module):
    """pixel_values (images, 3, height, width) -> image_features (images, tokens, hidden)."""

    def __init__(self, model: Gemma3ForConditionalGeneration) -> None:
        super().__init__()
        self.tower = model.model.vision_tower
        self.projector = model.model.multi_modal_projector

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """SigLIP, pooling, norm and projection."""
        return self.projector(self.tower(pixel_values).last_hidden_state)


class Embedding(torch.nn.Module):
    """input_ids (batch, tokens) and image_features, one row after the other in place of the image
    tokens -> inputs_embeds (batch, tokens, hidden)."""

    def __init__(self, model: Gemma3ForConditionalGeneration) -> None:
        super().__init__()
        self.tokens = model.get_input_embeddings()
        self.image_token = model.config.image_token_id

    def forward(self, input_ids: torch.Tensor, image_features: torch.Tensor) -> torch.Tensor:
        """Rows of the table, and of the features."""
        is_image = input_ids == self.image_token
        embedded = self.tokens(torch.where(is_image, 0, input_ids))
        rows = image_features.flatten(0, -2)
        # A call without images has no features, and needs a row that it does not use.
        rows = torch.cat([rows, torch.zeros_like(embedded[0, :1])])
        place = is_image.flatten().to(torch.int64).cumsum(0).reshape(input_ids.shape) - 1
        return torch.where(is_image[..., None], rows[place.clamp(min=0)], embedded)


class Text(torch.nn.Module):
    """The decoder, with its cache as flat inputs and outputs."""

    def __init__(self, model: Gemma3ForConditionalGeneration) -> None:
        super().__init__()
        self.model, self.head = model.model.language_model, model.lm_head
        self.image_token = model.config.image_token_id

    def masks(self, ids: torch.Tensor, shown: torch.Tensor) -> dict[str, torch.Tensor]:
        """Which keys each token sees: those before it, and its own image's; booleans."""
        batch, new = ids.shape
        past = shown.shape[1] - new
        key = torch.arange(shown.shape[1])
        query = key[past:, None]
        is_image = ids == self.image_token
        starts = is_image & ~functional.pad(is_image, (1, 0))[:, :-1]
        image = torch.where(is_image, starts.to(torch.int64).cumsum(1), -1)
        of_keys = torch.cat([torch.full((batch, past), EARLIER), image], 1)
        own = (image[:, :, None] == of_keys[:, None, :]) & is_image[:, :, None]
        visible = ((key <= query) | own) & (shown[:, None, :] != 0)
        window = self.model.config.sliding_window
        local = visible & (key > query - window)
        return {"full_attention": visible[:, None], "sliding_attention": local[:, None]}

    def forward(
        self,
        embeds: torch.Tensor,
        ids: torch.Tensor,
        shown: torch.Tensor,
        positions: torch.Tensor,
        *past: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """The logits, and the cache after the tokens."""
        cache = DynamicCache(list(zip(past[::2], past[1::2], strict=True)))
        result = self.model(
            inputs_embeds=embeds,
            attention_mask=self.masks(ids, shown),
            position_ids=positions,
            past_key_values=cache,
        )
        layers = [x for layer in cache.layers for x in (layer.keys, layer.values)]
        return self.head(result.last_hidden_state), *layers


def save(
    module: torch.nn.Module,
    inputs: dict[str, torch.Tensor],
    sizes: dict[str, dict[int, Any]],
    outputs: list[str],
    path: Path,
) -> None:
    """Export with any size of the dimensions in `sizes`."""
    variadic = [size for name, size in sizes.items() if name.startswith("past")]
    given = [size for name, size in sizes.items() if not name.startswith("past")]
    program = torch.onnx.export(
        module,
        tuple(inputs.values()),
        dynamo=True,
        opset_version=OPSET,
        input_names=list(inputs),
        output_names=outputs,
        dynamic_shapes=(*given, *([tuple(variadic)] if variadic else [])),
        verbose=False,
    )
    assert program is not None
    program.save(path, external_data=True)
    model = onnx.load(path, load_external_data=False)
    for thing in (*model.graph.node, *model.graph.value_info, *model.graph.input, model.graph):
        thing.ClearField("metadata_props")  # the place in the source that it comes from
    onnx.save(model, path)


def export(model: Gemma3ForConditionalGeneration, folder: Path) -> None:
    """Write the three models and the two configurations."""
    model = model.eval().float()
    model.set_attn_implementation("sdpa")
    text, vision = model.config.text_config, model.config.vision_config
    dim = torch.export.Dim.DYNAMIC
    side, tokens, hidden = vision.image_size, model.config.mm_tokens_per_image, text.hidden_size
    save(
        Vision(model),
        {"pixel_values": torch.zeros(2, 3, side, side)},
        {"pixel_values": {0: dim}},
        ["image_features"],
        folder / "vision.onnx",
    )
    save(
        Embedding(model),
        {
            "input_ids": torch.zeros(2, 3, dtype=torch.int64),
            "image_features": torch.zeros(2, tokens, hidden),
        },
        {"input_ids": {0: dim, 1: dim}, "image_features": {0: dim, 1: dim}},
        ["inputs_embeds"],
        folder / "embedding.onnx",
    )
    layers = range(text.num_hidden_layers)
    names = [f"{{}}.{layer}.{kind}" for layer in layers for kind in ("key", "value")]
    batch, new, past = 2, 3, 5
    rows = {
        "inputs_embeds": torch.zeros(batch, new, hidden),
        "input_ids": torch.zeros(batch, new, dtype=torch.int64),
        "attention_mask": torch.ones(batch, past + new, dtype=torch.int64),
        "position_ids": torch.arange(past, past + new).expand(batch, new).contiguous(),
    }
    heads, size = text.num_key_value_heads, text.head_dim
    caches = {
        name.format("past_key_values"): torch.zeros(batch, heads, past, size) for name in names
    }
    save(
        Text(model),
        rows | caches,
        {key: {0: dim, 1: dim} for key in rows} | {key: {0: dim, 2: dim} for key in caches},
        ["logits", *(name.format("present") for name in names)],
        folder / "text.onnx",
    )
    write_json(folder / "genai_config.json", genai_config(model))
    write_json(folder / "processor_config.json", processor_config(side))


def genai_config(model: Gemma3ForConditionalGeneration) -> dict[str, Any]:
    """The configuration that onnxruntime-genai reads."""
    config, text = model.config, model.config.text_config
    end = model.generation_config.eos_token_id or text.eos_token_id
    return {
        "model": {
            "type": "gemma3",
            "bos_token_id": text.bos_token_id,
            "eos_token_id": end,
            "pad_token_id": text.pad_token_id,
            "image_token_id": config.image_token_id,
            "context_length": text.max_position_embeddings,
            "vocab_size": text.vocab_size,
            "decoder": {
                "filename": "text.onnx",
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "head_size": text.head_dim,
                "hidden_size": text.hidden_size,
                "num_attention_heads": text.num_attention_heads,
                "num_hidden_layers": text.num_hidden_layers,
                "num_key_value_heads": text.num_key_value_heads,
                "inputs": {
                    "inputs_embeds": "inputs_embeds",
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "position_ids": "position_ids",
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
            },
            "embedding": {
                "filename": "embedding.onnx",
                "inputs": {"input_ids": "input_ids", "image_features": "image_features"},
                "outputs": {"inputs_embeds": "inputs_embeds"},
            },
            "vision": {
                "filename": "vision.onnx",
                "config_filename": "processor_config.json",
                "inputs": {"pixel_values": "pixel_values"},
                "outputs": {"image_features": "image_features"},
            },
        },
        "search": {
            "do_sample": False,
            "max_length": text.max_position_embeddings,
            "past_present_share_buffer": False,
        },
    }


def processor_config(side: int) -> dict[str, Any]:
    """A picture as (3, side, side) numbers from -1 to 1, in onnxruntime-extensions' terms."""
    steps: list[tuple[str, dict[str, Any]]] = [
        ("DecodeImage", {"color_space": "RGB"}),
        (
            "Resize",
            {"interpolation": "LINEAR", "width": side, "height": side, "keep_aspect_ratio": 0},
        ),
        ("Rescale", {"rescale_factor": 1 / 255}),
        ("Normalize", {"mean": [0.5] * 3, "std": [0.5] * 3}),
        ("Permute3D", {"dims": [2, 0, 1]}),
    ]
    transforms = [
        {"operation": {"name": kind.lower(), "type": kind, "attrs": attrs}} for kind, attrs in steps
    ]
    return {"processor": {"name": "gemma_3_image_processing", "transforms": transforms}}


def write_json(path: Path, content: dict[str, Any]) -> None:
    """As onnxruntime-genai's builder does."""
    path.write_text(json.dumps(content, indent=4) + "\n")


def main() -> None:
    """Load, export, and copy the tokenizer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="a folder as Hugging Face has it")
    parser.add_argument("folder", type=Path, help="the folder to write")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True)
    export(Gemma3ForConditionalGeneration.from_pretrained(arguments.source), arguments.folder)
    for name in TOKENIZER_FILES:
        if (arguments.source / name).is_file():
            shutil.copy(arguments.source / name, arguments.folder)


if __name__ == "__main__":
    main()
