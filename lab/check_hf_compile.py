"""Compile checkpoints with and without LoRA adapters, and compare with peft and transformers.

    python -m venv models && models/bin/pip install -r lab/requirements-models.txt peft
    models/bin/python lab/check_hf_compile.py --ort-aie .venv/bin/ort-aie

Each checkpoint is tiny and random, and each adapter is one that peft wrote. `ort-aie compile` runs
the builder in this Python. Its model must have, bit by bit, the weights of the model that the
builder writes after peft has merged the adapter. Logits are compared with those of the merged model
in transformers. Prints a table, and exits with 1 if a weight differs, or a logit by more than the
quantised weights explain.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
import transformers
from make_demo_model import save_tokenizer
from matrix_builder_models import FAMILIES, MAX_POSITIONS, TOKENIZER
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import Tokenizer

transformers.utils.logging.disable_progress_bar()
SEED = 7
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
EVERY = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]
TOKENS = 24
BUILDER = Path(__file__).parents[1] / "ort_aie_ep" / "compiler" / "checkpoint" / "run_builder.py"
# Of the logits' root mean square. Compiled models round activations to bfloat16 or to int8 where
# the builder's own model on ONNX Runtime rounds to int8: as in the model matrix, up to twice.
MOST = 2.0
# The builder rounds the scale of Gemma's embedding to two decimals, the root of 128 by 3e-4.
FLOAT_MOST = 5e-4


@dataclass(frozen=True)
class Case:
    """A checkpoint with an adapter.

    Attributes:
        name: what is special.
        family: key of FAMILIES.
        adapter: arguments of LoraConfig; None: no adapter.
        dtype: type of the checkpoint's weights.
        shard: the largest shard.
        options: options of `ort-aie compile`.
    """

    name: str
    family: str
    adapter: dict[str, Any] | None
    dtype: torch.dtype = torch.float32
    shard: str = "50GB"
    options: tuple[str, ...] = field(default=())


def _lora(targets: list[str], **more: Any) -> dict[str, Any]:
    return {"r": 4, "lora_alpha": 16, "target_modules": targets, **more}


CASES = (
    Case("no adapter", "llama", None),
    Case("attention", "llama", _lora(ATTENTION)),
    Case("all projections, three shards", "llama", _lora(EVERY), shard="400KB"),
    Case("bfloat16", "llama", _lora(EVERY), dtype=torch.bfloat16),
    Case("float16", "llama", _lora(EVERY), dtype=torch.float16),
    Case("blocks of 64, k_quant", "qwen3", _lora(EVERY),
         options=("--builder-option", "block_size=64", "--builder-option", "algo_config=k_quant")),
    Case("use_rslora, ranks and alphas by pattern", "qwen3",
         _lora(EVERY, use_rslora=True, rank_pattern={"layers.1.self_attn.q_proj": 2},
               alpha_pattern={"down_proj": 3})),
    Case("use_dora", "gemma3", _lora(EVERY, use_dora=True),
         options=("--builder-option", "windowed_kv_cache=false")),
    Case("biases", "qwen2", _lora(ATTENTION, bias="all")),
    Case("modules_to_save", "llama", _lora(ATTENTION, modules_to_save=["lm_head"])),
    Case("lm_head and embedding", "llama", _lora([*EVERY, "lm_head", "embed_tokens"])),
    Case("packed gate and up", "phi3", _lora(["qkv_proj", "o_proj", "gate_up_proj", "down_proj"])),
)  # fmt: skip


def make_checkpoint(case: Case, folder: Path) -> None:
    """Writes the checkpoint."""
    torch.manual_seed(SEED)
    family = FAMILIES[case.family]
    model = getattr(transformers, family.model).from_config(family.make_config())
    save_tokenizer(Tokenizer.from_file(str(TOKENIZER)), folder, MAX_POSITIONS)
    model.to(case.dtype).save_pretrained(folder, max_shard_size=case.shard)


def load(folder: Path) -> Any:
    """The checkpoint in transformers, in its own type."""
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")


def make_adapter(case: Case, checkpoint: Path, folder: Path) -> None:
    """Writes the adapter, whose every tensor changes something."""
    torch.manual_seed(SEED + 1)
    model = get_peft_model(load(checkpoint), LoraConfig(task_type="CAUSAL_LM", **case.adapter))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                around = parameter if "magnitude" in name else 0.0
                parameter.copy_(around + 0.02 * torch.randn(parameter.shape))
    model.save_pretrained(folder)


def build(checkpoint: Path, folder: Path, options: tuple[str, ...]) -> None:
    """Runs the builder by itself."""
    extra = options[1::2]
    command = [sys.executable, BUILDER, "-i", checkpoint, "-o", folder,
               "-p", "int4", "-e", "cpu", "-c", folder.parent / "cache"]  # fmt: skip
    subprocess.run([*command, "--extra_options", *extra, "hf_token=false"], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip


def weights(folder: Path) -> dict[str, bytes]:
    """The initializers of a model by name."""
    model = onnx.load(folder / "model.onnx")
    return {t.name: onnx.numpy_helper.to_array(t).tobytes() for t in model.graph.initializer}


def logits(folder: Path, tokens: np.ndarray, library: str) -> np.ndarray:
    """The logits of one prompt, on ONNX Runtime's CPU EP and with compiled operators."""
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(library)
    session = onnxruntime.InferenceSession(folder / "model.onnx", options)
    decoder = json.loads((folder / "genai_config.json").read_text())["model"]["decoder"]
    feeds: dict[str, np.ndarray] = {}
    for value in session.get_inputs():
        if value.name == "input_ids":
            feeds[value.name] = tokens
        elif value.name == "attention_mask":
            feeds[value.name] = np.ones_like(tokens)
        elif value.name == "position_ids":
            feeds[value.name] = np.arange(tokens.size)[None]
        else:
            shape = [1, decoder["num_key_value_heads"], 0, decoder["head_size"]]
            feeds[value.name] = np.zeros(shape, np.float32)
    return session.run(["logits"], feeds)[0]


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """Root mean square of the difference, relative to that of `other`."""
    return float(np.sqrt(((one - other) ** 2).mean() / (other**2).mean()))


def check(case: Case, ort_aie: Path, library: str, work: Path) -> bool:
    """Compiles a case, prints its row, and says whether it is right."""
    checkpoint, adapter = work / "checkpoint", work / "adapter"
    make_checkpoint(case, checkpoint)
    words: list[str | Path] = [*case.options, "--builder-python", sys.executable]
    if case.adapter is not None:
        make_adapter(case, checkpoint, adapter)
        words += ["--adapter", adapter]

    def compiled(name: str, *options: str | Path) -> Path:
        command = [ort_aie, "compile", checkpoint, work / name, *words, *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return work / name

    out = compiled("out", "--keep-source", work / "source")
    model, merged = load(checkpoint), checkpoint
    if case.adapter is not None:
        model, merged = PeftModel.from_pretrained(model, adapter).merge_and_unload(), work / "peft"
        model.save_pretrained(merged)
        save_tokenizer(Tokenizer.from_file(str(TOKENIZER)), merged, MAX_POSITIONS)
    build(merged, work / "expected", case.options)
    ours, theirs = weights(work / "source"), weights(work / "expected")
    equal = sum(ours.get(name) == content for name, content in theirs.items())

    tokens = np.random.default_rng(SEED).integers(1, 500, (1, TOKENS))
    with torch.no_grad():
        reference = model.float()(torch.tensor(tokens)).logits.numpy()
    aie = distance(logits(out, tokens, library), reference)
    cpu = distance(logits(work / "expected", tokens, library), reference)
    exact = distance(logits(compiled("exact", "--precision", "fp32"), tokens, library), reference)
    right = equal == len(theirs) == len(ours) and aie <= MOST * cpu and exact <= FLOAT_MOST
    row = f"{equal} of {len(theirs)} | {aie:.3f} | {cpu:.3f} | {exact:.1e}"
    print(f"| {case.family} | {case.name} | {row} |" + ("" if right else " WRONG"), flush=True)
    return right


def main() -> None:
    """Check every case, or those whose name contains the argument."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ort-aie", type=Path, default=Path("ort-aie"))
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    ort_aie = arguments.ort_aie.absolute()
    ask = "import ort_aie_ep; print(ort_aie_ep.get_library_path())"
    python = ort_aie.with_name("python")
    library = subprocess.run([python, "-P", "-c", ask], check=True, capture_output=True, text=True)
    print("| family | adapter | equal weights | out | builder | fp32 |\n|---|---|---|---|---|---|")
    wrong = 0
    for case in CASES:
        if not arguments.names or any(name in case.name for name in arguments.names):
            with tempfile.TemporaryDirectory() as work:
                wrong += not check(case, ort_aie, library.stdout.strip(), Path(work))
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
