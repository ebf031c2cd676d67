"""Tiny random models as Hugging Face has them, and what onnxruntime-genai's model builder makes.

What `make_*_models.py`, the model matrix and the checks of checkpoints share; it needs the
environment of requirements-models.txt.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SEED = 7
MAX_POSITIONS = 256
END_OF_TEXT = "<|endoftext|>"
TINY_TOKENIZER = Path(__file__).parent.parent / "tests" / "data" / "llama" / "tokenizer.json"
"""Its vocabulary is 500."""

COMMON: dict[str, Any] = {
    "max_position_embeddings": MAX_POSITIONS,
    # Wide enough that attention is far from uniform and logits are far from ties.
    "initializer_range": 0.1,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}

GENAI_FILES = (
    "genai_config.json",
    "model.onnx",
    "model.onnx.data",
    "tokenizer.json",
    "tokenizer_config.json",
)
# What a model with a head for the token after the next one has besides.
HEAD_FILES = ("mtp.onnx", "mtp.onnx.data")


@dataclass(frozen=True)
class TinyModel:
    """A random model of a family.

    Attributes:
        config: name of the configuration's class in transformers.
        values: values of the configuration.
        auto: the auto class that makes the model that the builder expects.
        adapt: attributes of the configuration that this builder expects and this transformers does
            not write.
        options: the builder's KEY=VALUE options that the family needs.
        prepare: changes the HF folder before the builder reads it.
        finish: changes the builder's graph.
    """

    config: str
    values: Mapping[str, Any]
    auto: str = "AutoModelForCausalLM"
    adapt: Mapping[str, object] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    prepare: Callable[[Path], None] | None = None
    finish: Callable[[ir.Model], None] | None = None

    def make(self, **changed: Any) -> Any:
        """The model in transformers, seeded, with values that replace the family's."""
        torch.manual_seed(SEED)
        config = getattr(transformers, self.config)(**{**self.values, **changed})
        return getattr(transformers, self.auto).from_config(config)

    def save(self, model: Any, hf: Path) -> None:
        """Writes a model of this family, with other vectors, as the builder expects it."""
        randomise_vectors(model)
        model.save_pretrained(hf)
        if self.prepare is not None:
            self.prepare(hf)


def train_tokenizer(texts: Iterator[tuple[str, str]], vocab: int) -> Tokenizer:
    """A byte-level BPE tokenizer (GPT-2's split, so runs of indentation become single tokens)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((text for _, text in texts), trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_positions: int = MAX_POSITIONS) -> None:
    """tokenizer.json and the smallest tokenizer_config.json that transformers and genai load."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "add_bos_token": False,
        "add_eos_token": False,
        "add_prefix_space": False,
        "bos_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "eos_token": END_OF_TEXT,
        "model_max_length": max_positions,
        "pad_token": END_OF_TEXT,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": END_OF_TEXT,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def tiny_tokenizer(folder: Path) -> None:
    """Writes a tokenizer of tests/data."""
    save_tokenizer(Tokenizer.from_file(str(TINY_TOKENIZER)), folder)


def randomise_vectors(model: Any) -> None:
    """Set norm weights around their usual values, and non-zero biases.

    transformers initialises them to constants, which would hide a missing norm or bias (and the
    builder leaves all-zero biases out of the graph). The end-of-text token gets a row of zeros in
    the lm_head, so that no greedy text ends early; this also makes blocks whose scale is zero.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                spread = 0.2 if "norm" in name and name.endswith("weight") else 0.1
                parameter.add_(spread * torch.randn(parameter.shape))
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):  # ONNX Runtime drops a product with 1
                buffer.mul_(0.9)
        if model.config.model_type in ("gemma3_text", "gemma4_unified"):
            # Otherwise embeddings times √hidden would drown the layers, and a tied model would
            # repeat its input.
            model.get_input_embeddings().weight.mul_(0.1)
            model.get_decoder().norm.weight.add_(8.0)
        head = model.get_output_embeddings()
        head.weight[0] = 0.0
        if getattr(head, "bias", None) is not None:
            head.bias[0] = 0.0


# Values of the codes of MXFP4, whose highest bit is the sign.
_MAGNITUDES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_MXFP4 = torch.cat([_MAGNITUDES, -_MAGNITUDES])


def write_mxfp4(hf: Path) -> None:
    """Gives the experts random weights in MXFP4, as they are published.

    The builder reads gate_up_proj_blocks (experts, outputs, inputs / 32, 16), in which a byte has
    two codes, the first in its low half, and gate_up_proj_scales, exponents with a bias of 127. The
    tensors that transformers reads get the same values.
    """
    file = hf / "model.safetensors"
    tensors = load_file(file)
    names = ("experts.gate_up_proj", "experts.down_proj")
    for name in [key for key in tensors if key.endswith(names)]:
        experts, inputs, outputs = tensors[name].shape
        codes = torch.randint(0, 16, (experts, outputs, inputs // 32, 32), dtype=torch.uint8)
        scales = torch.randint(121, 124, codes.shape[:3], dtype=torch.uint8)  # 2^-6 to 2^-4
        values = _MXFP4[codes.long()] * torch.exp2(scales.float() - 127)[..., None]
        tensors[name] = values.reshape(experts, outputs, inputs).transpose(1, 2).contiguous()
        tensors[f"{name}_blocks"] = codes[..., 0::2] | codes[..., 1::2] << 4
        tensors[f"{name}_scales"] = scales
    save_file(tensors, file, {"format": "pt"})


def add_head(hf: Path) -> None:
    """Gives a Qwen3.5 a random head for the token after the next one, of which transformers has
    the layer alone."""
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer

    config = transformers.AutoConfig.from_pretrained(hf).text_config
    config.layer_types = ["full_attention"]
    layer, width = Qwen3_5DecoderLayer(config, 0), config.hidden_size
    shapes = {f"layers.0.{name}": value.shape for name, value in layer.named_parameters()}
    shapes |= {f"{name}.weight": torch.Size([width]) for name in
               ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")}  # fmt: skip
    shapes["fc.weight"] = torch.Size([width, 2 * width])
    file = hf / "model.safetensors"
    tensors = load_file(file)
    for name, shape in shapes.items():
        spread = 0.2 if len(shape) == 1 else COMMON["initializer_range"]
        tensors[f"mtp.{name}"] = spread * torch.randn(shape)
    save_file(tensors, file, {"format": "pt"})


def build_genai_folder(
    hf: Path,
    destination: Path,
    options: Iterable[str] = (),
    adapt: Mapping[str, object] | None = None,
) -> None:
    """An int4 genai folder for the CPU, with only the files that genai reads. `options` are the
    builder's own KEY=VALUE strings, `adapt` attributes of the configuration that it expects."""
    from onnxruntime_genai.models.builder import create_model, parse_extra_options

    with tempfile.TemporaryDirectory() as cache:
        arguments = ("", str(hf), str(destination), "int4", "cpu", cache)
        prepared = parse_extra_options(*arguments, list(options))
        config = prepared["hf_details"]["hf_config"]
        for name, value in (adapt or {}).items():
            for part in (config, getattr(config, "text_config", None)):
                if part is not None:
                    setattr(part, name, value)
        create_model(*arguments, **prepared)
    for file in destination.iterdir():
        if file.name not in GENAI_FILES + HEAD_FILES:
            file.unlink()
    # transformers rewrote these files, with a class name that only its version 5 knows.
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(hf / name, destination / name)
    for name in GENAI_FILES:
        if not (destination / name).exists():
            raise RuntimeError(f"the model builder did not write {name}")


def generate(folder: Path, prompt: str, tokens: int) -> str:
    """The greedy continuation of `prompt` by onnxruntime-genai."""
    import onnxruntime_genai as og

    model = og.Model(str(folder))
    tokenizer = og.Tokenizer(model)
    ids = tokenizer.encode(prompt)
    parameters = og.GeneratorParams(model)
    # max_length stays the folder's: a value below a sliding window is an error.
    parameters.set_search_options(do_sample=False)
    generator = og.Generator(model, parameters)
    generator.append_tokens(ids)
    for _ in range(tokens):
        if generator.is_done():
            break
        generator.generate_next_token()
    text: str = tokenizer.decode(generator.get_sequence(0)[len(ids) :])
    return text
