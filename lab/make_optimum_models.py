"""Record optimum's exports of tiny random models: the graphs in tests/data/optimum.

    python -m venv optimum && optimum/bin/pip install -r lab/requirements-optimum.txt
    optimum/bin/python lab/make_optimum_models.py tests/data/optimum

Each family gets one folder: config.json and generation_config.json as optimum writes them, and the
graph without its large tensors. weights.json has their names, standard deviations and order. They
are random anyway, so tests/optimum_models.py makes them again where they are needed.

With `--keep FOLDER`, the exports themselves stay there, as `optimum-cli export onnx` writes them.
Without a name after the folder, the script makes all of them. It replaces a folder that exists.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import onnx
import torch
import transformers
from onnx import numpy_helper
from optimum.exporters.onnx import main_export
from transformers import AutoModelForCausalLM, PretrainedConfig

# Smaller tensors (norm weights, biases and constants) stay in the graph.
LARGE_BYTES = 4096
KEPT_FILES = ("config.json", "generation_config.json")
SEED = 7
TASK = "text-generation-with-past"

COMMON: dict[str, Any] = {
    "vocab_size": 500,  # not a multiple of 32, so the lm_head's last block of rows has padding
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "max_position_embeddings": 256,
    # Wide enough that attention is far from uniform and logits are far from ties.
    "initializer_range": 0.1,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}

Config = Callable[[], PretrainedConfig]


def _config(kind: str, values: dict[str, Any], **more: Any) -> Config:
    """Makes transformers' configuration `kind` with these values."""
    return lambda: getattr(transformers, f"{kind}Config")(**values | more)


SIZES = {**COMMON, "intermediate_size": 320, "num_attention_heads": 4, "num_key_value_heads": 2}

# For torch's other exporter, which optimum-onnx 0.1.0 turns off with dynamo=False.
DYNAMO = "_dynamo"
FLOAT16 = "_float16"

_LLAMA = _config("Llama", SIZES, intermediate_size=352)
RECORDED: dict[str, Config] = {
    "llama": _LLAMA,
    f"llama{DYNAMO}": _LLAMA,
    f"llama{FLOAT16}": _LLAMA,
    # optimum assumes head_dim = hidden / heads, whatever the configuration says.
    "qwen3": _config(
        "Qwen3", SIZES, tie_word_embeddings=True, intermediate_size=288, num_key_value_heads=1,
        head_dim=32, rope_theta=1000000.0,
    ),
    "gemma3": _config(
        "Gemma3Text", SIZES, num_hidden_layers=3, intermediate_size=288, head_dim=64,
        query_pre_attn_scalar=48, sliding_window=16,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "phi": _config(
        "Phi", COMMON, intermediate_size=320, num_attention_heads=4, partial_rotary_factor=0.5
    ),
    "mistral": _config("Mistral", SIZES, sliding_window=12),
}  # fmt: skip
"""Families whose graphs are in tests/data/optimum."""


def randomise_vectors(model: Any) -> None:
    """Set norm weights around their usual values, and non-zero biases.

    transformers initialises them to constants, which would hide a missing norm or bias.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                spread = 0.2 if "norm" in name and name.endswith("weight") else 0.1
                parameter.add_(spread * torch.randn(parameter.shape))
        if model.config.model_type == "gemma3_text":
            # Embeddings times √hidden would drown the layers.
            model.get_input_embeddings().weight.mul_(0.1)


@contextmanager
def dynamo() -> Iterator[None]:
    """Make optimum export with dynamo=True."""
    original = torch.onnx.export

    def exported(model: Any, arguments: Any, **options: Any) -> Any:
        changed = {"dynamo": True, "external_data": False, "verbose": False}
        del options["do_constant_folding"]
        return original(model, arguments, **options | changed)

    with mock.patch.object(torch.onnx, "export", exported):
        yield


def export(
    config: PretrainedConfig,
    destination: Path,
    *,
    dtype: str | None = None,
    by_dynamo: bool = False,
) -> None:
    """Write the folder that `optimum-cli export onnx` makes of a seeded random model."""
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(config)
    randomise_vectors(model)
    with tempfile.TemporaryDirectory() as scratch, dynamo() if by_dynamo else nullcontext():
        model.save_pretrained(scratch)
        main_export(scratch, destination, task=TASK, do_validation=False, dtype=dtype)


def record(exported: Path, destination: Path) -> None:
    """Keep the configuration, the graph, and the standard deviation of each large tensor."""
    if destination.exists():
        shutil.rmtree(destination)
    destination.mkdir(parents=True)
    for file in KEPT_FILES:
        shutil.copyfile(exported / file, destination / file)
    model = onnx.load(exported / "model.onnx")
    deviations = {}
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) <= LARGE_BYTES:
            continue
        deviations[tensor.name] = round(float(numpy_helper.to_array(tensor).std()), 6)
        tensor.ClearField("raw_data")
    for part in (*model.graph.node, *model.graph.value_info, *model.graph.initializer):
        part.ClearField("metadata_props")  # the place in Python that each node comes from
        part.ClearField("doc_string")
    model.graph.ClearField("metadata_props")
    (destination / "weights.json").write_text(json.dumps(deviations, indent=2) + "\n")
    onnx.save(model, destination / "model.onnx")


def main() -> None:
    """Make the folders named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(RECORDED))
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the exports here")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    unknown = set(arguments.names) - RECORDED.keys()
    if unknown:
        parser.error(
            f"unknown family: {', '.join(sorted(unknown))}; choose from {', '.join(RECORDED)}"
        )
    with tempfile.TemporaryDirectory() as scratch:
        for name in arguments.names or RECORDED:
            exported = (arguments.keep or Path(scratch)) / name
            dtype = "fp16" if name.endswith(FLOAT16) else None
            export(RECORDED[name](), exported, dtype=dtype, by_dynamo=name.endswith(DYNAMO))
            record(exported, arguments.folder / name)
            size = sum(file.stat().st_size for file in (arguments.folder / name).iterdir())
            print(f"{name}: {size / 1e3:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
