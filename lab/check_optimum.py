"""Export with optimum, compile, and let ORTModelForCausalLM generate with both.

    optimum/bin/pip install 'ort_aie_ep[tools]'  # into make_optimum_models.py's environment
    optimum/bin/python lab/check_optimum.py --work WORK

For each family, as exported and in 4 bits, both models complete a left-padded batch of three
prompts greedily. Logits must agree as long as both read the same tokens, and each row's text until
ONNX Runtime's own text is undecided. Exits with 1 if they do not.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from make_optimum_models import COMMON, DYNAMO, FAMILIES, FLOAT16, export
from optimum.onnxruntime import ORTModelForCausalLM
from transformers import (
    CohereConfig,
    FalconConfig,
    Gemma2Config,
    GemmaConfig,
    GlmConfig,
    GPTJConfig,
    GPTNeoConfig,
    GraniteConfig,
    HeliumConfig,
    LlamaConfig,
    NemotronConfig,
    Olmo2Config,
    OlmoConfig,
    OPTConfig,
    Phi3Config,
    PretrainedConfig,
    Qwen2Config,
    SmolLM3Config,
    StableLmConfig,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from optimum_models import quantise, with_bfloat16_scales, with_int8_activations

import ort_aie_ep

LENGTHS = (19, 11, 3)
NEW_TOKENS = 24


def _scaled(kind: str, **more: float) -> LlamaConfig:
    scaling = {"rope_type": kind, "factor": 8.0, "original_max_position_embeddings": 64, **more}
    return LlamaConfig(**SIZES, rope_scaling=scaling)


SIZES = {**COMMON, "intermediate_size": 320, "num_attention_heads": 4, "num_key_value_heads": 2}
# optimum-onnx 0.1.0 runs some families only with as many key-value heads as query heads.
EVEN = {**SIZES, "num_key_value_heads": 4}
# Families whose graphs are not in the repository.
OTHERS: dict[str, Callable[[], PretrainedConfig]] = {
    **{f"{name}{DYNAMO}": FAMILIES[name] for name in ("qwen3", "phi", "mistral")},
    "llama_3_rope": lambda: _scaled("llama3", low_freq_factor=1.0, high_freq_factor=4.0),
    "llama_yarn": lambda: _scaled("yarn"),
    "cohere": lambda: CohereConfig(**SIZES),
    "falcon": lambda: FalconConfig(**SIZES, alibi=False),
    "gemma": lambda: GemmaConfig(**SIZES, head_dim=64),
    "gemma2": lambda: Gemma2Config(**EVEN, head_dim=32, sliding_window=16),
    "glm": lambda: GlmConfig(**SIZES, head_dim=32),
    "gptj": lambda: GPTJConfig(
        vocab_size=500, n_embd=128, n_layer=2, n_head=4, n_positions=256, rotary_dim=16
    ),
    "gpt_neo": lambda: GPTNeoConfig(
        vocab_size=500,
        hidden_size=128,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=16,
        max_position_embeddings=256,
        intermediate_size=320,
    ),
    "granite": lambda: GraniteConfig(**SIZES, attention_multiplier=0.3),
    "helium": lambda: HeliumConfig(**SIZES, head_dim=32),
    "nemotron": lambda: NemotronConfig(**SIZES, head_dim=32),
    "olmo": lambda: OlmoConfig(**EVEN),
    "olmo_clip": lambda: OlmoConfig(**EVEN, clip_qkv=0.5),
    "olmo2": lambda: Olmo2Config(**EVEN),
    "opt": lambda: OPTConfig(**COMMON, ffn_dim=320, num_attention_heads=4, word_embed_proj_dim=128),
    "phi3": lambda: Phi3Config(**EVEN, sliding_window=20),
    "phi3_long_window": lambda: Phi3Config(**EVEN, sliding_window=262144),
    "qwen2": lambda: Qwen2Config(**SIZES),
    "smollm3": lambda: SmolLM3Config(**SIZES),
    "stablelm": lambda: StableLmConfig(**SIZES),
}


def open_model(folder: Path, *, ours: bool) -> ORTModelForCausalLM:
    """The folder opened in optimum; a compiled one needs ort_aie_ep's operators (`ours`)."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    if ours:
        options.register_custom_ops_library(ort_aie_ep.library_path())
    return ORTModelForCausalLM.from_pretrained(folder, session_options=options)


def prompts(vocabulary: int) -> dict[str, torch.Tensor]:
    """A left-padded batch of seeded tokens."""
    rng, longest = np.random.default_rng(3), max(LENGTHS)
    mask = np.array([[0] * (longest - length) + [1] * length for length in LENGTHS])
    tokens = rng.integers(3, vocabulary, mask.shape) * mask
    return {"input_ids": torch.tensor(tokens), "attention_mask": torch.tensor(mask)}


def generate(folder: Path, *, ours: bool) -> Text:
    """The text that the folder's model generates for the prompts."""
    model = open_model(folder, ours=ours)
    batch = prompts(model.config.vocab_size)
    result = model.generate(
        **batch,
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    tokens = result.sequences[:, batch["input_ids"].shape[1] :].numpy()
    return Text(tokens, torch.stack(result.logits, 1).numpy())


@dataclass(frozen=True)
class Text:
    """Greedy tokens (batch, NEW_TOKENS) and the logits (batch, NEW_TOKENS, vocabulary) of each."""

    tokens: np.ndarray
    logits: np.ndarray

    def common(self, other: Text) -> list[int]:
        """For each row, how many of its first tokens are the same."""
        same = np.cumprod(self.tokens == other.tokens, 1)
        return [int(row) for row in same.sum(1)]

    def distance(self, other: Text) -> float:
        """The largest difference of a logit while both read the same tokens."""
        steps = self.tokens.shape[1]
        ends = [min(row + 1, steps) for row in self.common(other)]
        rows = (np.abs(self.logits - other.logits)[i, :end].max() for i, end in enumerate(ends))
        return float(max(rows))


def compare(name: str, expected: Text, actual: Text, tolerance: float) -> bool:
    """Prints how closely the two agree, and returns whether that is close enough."""
    distance, common = expected.distance(actual), expected.common(actual)
    good, steps = distance <= tolerance, expected.tokens.shape[1]
    for row, same in enumerate(common):
        if same < steps:
            second, best = np.partition(expected.logits[row, same], -2)[-2:]
            good &= bool(best - second <= 2 * tolerance)  # undecided, or wrong
    told = ", ".join("all" if same == steps else str(same) for same in common)
    print(
        f"{name}: same tokens until undecided: {told} of {steps}; logits within {distance:.2g}, "
        f"tolerance {tolerance:.2g}: {'good' if good else 'WRONG'}",
        flush=True,
    )
    return good


def check(name: str, work: Path) -> bool:
    """Checks a family, as exported and in 4 bits."""
    exported, quantised = work / "export", work / "quantised"
    config = {**FAMILIES, **OTHERS}[name]()
    half = name.endswith(FLOAT16)
    export(config, exported, dtype="fp16" if half else None, by_dynamo=name.endswith(DYNAMO))
    ort_aie_ep.compile(exported, work / "compiled")
    expected = generate(exported, ours=False)
    if half:
        # Each may be as far from the float32 export as the half-precision one is.
        export(config, work / "float32")
        tolerance = 2 * expected.distance(generate(work / "float32", ours=False))
    else:
        # For sums in another order in float32, as in tests/models/test_optimum_exports.py.
        tolerance = 2000 * float(np.finfo(np.float32).eps) * float(np.abs(expected.logits).max())
    actual = generate(work / "compiled", ours=True)
    good = compare(f"{name}, as exported", expected, actual, tolerance)
    if half:
        return good
    quantise(exported, quantised)
    ort_aie_ep.compile(quantised, work / "compiled4")
    expected = generate(quantised, ours=False)
    # The yardsticks of that test.
    tolerance = sum(
        expected.distance(generate(change(quantised, work / change.__name__), ours=False))
        for change in (with_bfloat16_scales, with_int8_activations)
    )
    actual = generate(work / "compiled4", ours=True)
    return compare(f"{name}, 4 bits", expected, actual, tolerance) and good


def main() -> None:
    """Check the families named on the command line, or all."""
    known = [*FAMILIES, *OTHERS]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    parser.add_argument("--work", type=Path, required=True, help="write to this folder")
    arguments = parser.parse_args()
    os.environ["ORT_AIE_NUMERICS"] = "bf16"
    good = True
    unknown = set(arguments.names) - set(known)
    if unknown:
        parser.error(
            f"unknown family: {', '.join(sorted(unknown))}; choose from {', '.join(known)}"
        )
    logging.disable(logging.WARNING)  # the quantizer logs each node
    for name in arguments.names or known:
        work = arguments.work / name
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        good &= check(name, work)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
