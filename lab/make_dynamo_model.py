"""Make tests/data/dynamo: an export of torch.onnx.export(dynamo=True) at opset 23, in 4 bits.

    python -m venv optimum && optimum/bin/pip install -r lab/requirements-optimum.txt
    optimum/bin/python lab/make_dynamo_model.py tests/data/dynamo

The model is a tiny Qwen3 with random seeded weights, exported with ONNX's Attention,
RMSNormalization and RotaryEmbedding. ONNX Runtime's quantiser then adds DequantizeLinear of int4 to
its MatMuls. The folder must not exist.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import onnx
import torch
from onnxruntime.quantization.matmul_nbits_quantizer import (
    DefaultWeightOnlyQuantConfig,
    MatMulNBitsQuantizer,
)
from onnxruntime.quantization.quant_utils import QuantFormat
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

SEED = 7
LAYERS, KV_HEADS, HEAD_DIM = 2, 2, 32
PASTS = [f"past.{layer}.{kind}" for layer in range(LAYERS) for kind in ("key", "value")]
INPUTS = ["input_ids", "attention_mask", "position_ids", *PASTS]
OUTPUTS = ["logits", *(name.replace("past", "present") for name in PASTS)]
CONFIG = Qwen3Config(
    vocab_size=200,
    hidden_size=96,
    intermediate_size=160,
    num_hidden_layers=LAYERS,
    num_attention_heads=4,
    num_key_value_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    max_position_embeddings=256,
    # Wide enough that attention is far from uniform and logits are far from ties.
    initializer_range=0.1,
    attn_implementation="sdpa",
)


class WithCache(torch.nn.Module):
    """The model with its cache as flat inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Qwen3ForCausalLM(CONFIG)

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, *past: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """The logits, and the cache after the tokens."""
        cache = DynamicCache.from_legacy_cache(tuple(zip(past[::2], past[1::2], strict=True)))
        result = self.model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache
        )
        layers = result.past_key_values.to_legacy_cache()
        return (result.logits, *(value for layer in layers for value in layer))


def main() -> None:
    """Exports, quantises and saves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True)

    torch.manual_seed(SEED)
    batch, tokens, past = 2, 3, 5
    inputs: list[torch.Tensor] = [
        torch.zeros(batch, tokens, dtype=torch.int64),
        torch.ones(batch, past + tokens, dtype=torch.int64),
        torch.arange(past, past + tokens).expand(batch, tokens).contiguous(),
        *(torch.zeros(batch, KV_HEADS, past, HEAD_DIM) for _ in PASTS),
    ]
    any_size = torch.export.Dim.DYNAMIC
    sizes: list[dict[int, Any]] = [{0: any_size, 1: any_size}] * 3
    caches: list[dict[int, Any]] = [{0: any_size, 2: any_size}] * len(PASTS)
    program = torch.onnx.export(
        WithCache().eval(),
        tuple(inputs),
        dynamo=True,
        opset_version=23,
        input_names=INPUTS,
        output_names=OUTPUTS,
        dynamic_shapes=(*sizes, tuple(caches)),
    )
    assert program is not None
    quantizer = MatMulNBitsQuantizer(
        program.model_proto,
        algo_config=DefaultWeightOnlyQuantConfig(
            block_size=32, is_symmetric=True, quant_format=QuantFormat.QDQ
        ),
    )
    quantizer.process()
    model = quantizer.model.model
    for thing in (*model.graph.node, *model.graph.value_info, *model.graph.input, model.graph):
        thing.ClearField("metadata_props")  # the place in the source that it comes from
    onnx.save(model, folder / "model.onnx")


if __name__ == "__main__":
    main()
