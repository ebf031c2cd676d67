"""Compile checkpoints with and without LoRA adapters, and compare with peft and transformers.

    python -m venv models && models/bin/pip install -r lab/requirements-models.txt peft
    models/bin/python lab/check_checkpoints.py --ort-aie .venv/bin/ort-aie

Each checkpoint is tiny and random, and each adapter is one that peft wrote. `ort-aie compile` runs
the builder in this Python. Its model must have, bit by bit, the weights of the model that the
builder writes after peft has merged the adapter. Logits are compared with those of the merged model
in transformers.

Of the families that FastFlowLM has, `export-q4nx` then writes the file from what was compiled, and
`import-q4nx` reads it: blocks, norms and biases must come back, as bfloat16.

Prints a table of each, and exits with 1 if a weight differs, or a logit by more than the quantised
weights explain.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
import transformers
from genai_builder import COMMON, MAX_POSITIONS, SEED, TinyModel, tiny_tokenizer
from onnx import numpy_helper
from peft import LoraConfig, PeftModel, get_peft_model

transformers.utils.logging.disable_progress_bar()
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
EVERY = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]
TOKENS = 24
BUILDER = Path(__file__).parents[1] / "ort_aie_ep" / "compiler" / "checkpoint" / "run_builder.py"
# Of the logits' root mean square. Compiled models round activations to bfloat16 or to int8 where
# the builder's own model on ONNX Runtime rounds to int8: up to twice.
MOST = 2.0
# The builder rounds the scale of Gemma's embedding to two decimals, the root of 128 by 3e-4.
FLOAT_MOST = 5e-4


def _family(config: str, **values: Any) -> TinyModel:
    sizes = {
        "vocab_size": 500, "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2,
    }  # fmt: skip
    return TinyModel(config, {**COMMON, **sizes, **values})


_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
FAMILIES = {
    "gemma3": _family(
        "Gemma3TextConfig", num_hidden_layers=3, head_dim=64, query_pre_attn_scalar=48,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "llama": _family("LlamaConfig"),
    "llama_3_rope": _family("LlamaConfig", rope_parameters=_LLAMA3),
    "mistral": _family("MistralConfig", sliding_window=24),
    "phi3": _family("Phi3Config", original_max_position_embeddings=MAX_POSITIONS),
    "qwen2": _family("Qwen2Config"),
    "qwen3": _family("Qwen3Config", head_dim=64, tie_word_embeddings=True),
}  # fmt: skip
# FastFlowLM's families, and values of their configuration that its files need: rows in blocks of
# 32, no padding of the FFN. The builder takes a matrix with the vocabulary's rows for the lm_head.
_SIZES = {"vocab_size": 1024, "intermediate_size": 512}
Q4NX: dict[str, dict[str, Any]] = {
    "llama_3_rope": {**_SIZES, "tie_word_embeddings": True},
    "mistral": {**_SIZES, "sliding_window": None},
    "qwen2": _SIZES,
    "qwen3": _SIZES,
    "gemma3": {**_SIZES, "query_pre_attn_scalar": 64},
}


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
    options: tuple[str, ...] = ()


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
    tiny_tokenizer(folder)
    FAMILIES[case.family].make().to(case.dtype).save_pretrained(folder, max_shard_size=case.shard)


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


def weights(folder: Path) -> dict[str, np.ndarray]:
    """The initializers of a model by name."""
    model = onnx.load(folder / "model.onnx")
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


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


def run(*command: str | Path) -> None:
    """Runs a command of ort-aie; exits with what it says if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command[1:]))}: {done.stderr}")


def check(case: Case, ort_aie: Path, library: str, work: Path) -> bool:
    """Compiles a case, prints its row, and says whether it is right."""
    checkpoint, adapter = work / "checkpoint", work / "adapter"
    make_checkpoint(case, checkpoint)
    words: list[str | Path] = [*case.options, "--builder-python", sys.executable]
    if case.adapter is not None:
        make_adapter(case, checkpoint, adapter)
        words += ["--adapter", adapter]
    out, exact, source = work / "out", work / "exact", work / "source"
    run(ort_aie, "compile", checkpoint, out, *words, "--keep-source", source)
    run(ort_aie, "compile", checkpoint, exact, *words, "--precision", "fp32")
    model, merged = load(checkpoint), checkpoint
    if case.adapter is not None:
        model, merged = PeftModel.from_pretrained(model, adapter).merge_and_unload(), work / "peft"
        model.save_pretrained(merged)
        tiny_tokenizer(merged)
    build(merged, work / "expected", case.options)
    ours, theirs = weights(source), weights(work / "expected")
    equal = sum(name in ours and ours[name].tobytes() == w.tobytes() for name, w in theirs.items())

    tokens = np.random.default_rng(SEED).integers(1, 500, (1, TOKENS))
    with torch.no_grad():
        reference = model.float()(torch.tensor(tokens)).logits.numpy()
    folders = (out, work / "expected", exact)
    aie, cpu, in_float = (distance(logits(f, tokens, library), reference) for f in folders)
    right = equal == len(theirs) == len(ours) and aie <= MOST * cpu and in_float <= FLOAT_MOST
    row = f"{equal} of {len(theirs)} | {aie:.3f} | {cpu:.3f} | {in_float:.1e}"
    print(f"| {case.family} | {case.name} | {row} |" + ("" if right else " WRONG"), flush=True)
    return right


def check_q4nx(family: str, ort_aie: Path, work: Path) -> bool:
    """Exports what was compiled and imports it again; prints the row, says whether it is right."""
    recipe, checkpoint, file = FAMILIES[family], work / "checkpoint", work / "out" / "model.q4nx"
    tiny_tokenizer(checkpoint)
    recipe.save(recipe.make(**Q4NX[family]), checkpoint)
    file.parent.mkdir()
    run(ort_aie, "compile", checkpoint, work / "compiled", "--builder-python", sys.executable)
    run(ort_aie, "export-q4nx", work / "compiled", file)
    run(ort_aie, "import-q4nx", file, work / "imported")
    # Embeddings and tables of rotations are made again.
    made_again = ("cos_cache", "sin_cache", "model.embed_tokens")
    one, other = (
        {name: w for name, w in weights(work / folder).items() if not name.startswith(made_again)}
        for folder in ("compiled", "imported")
    )

    def comes_back(name: str) -> bool:
        before, after = one.get(name), other.get(name)
        if before is None or after is None or before.dtype != np.float32:
            return before is not None and np.array_equal(before, after)
        return bool(np.abs(before - after).max() <= 2**-8 * np.abs(before).max())

    wrong = sorted(name for name in one.keys() | other.keys() if not comes_back(name))
    print(f"| {family} | {file.stat().st_size} | {len(one)} | {', '.join(wrong)} |", flush=True)
    return not wrong


def main() -> None:
    """Check every case and family, or those whose name contains an argument."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ort-aie", type=Path, default=Path("ort-aie"))
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    ort_aie = arguments.ort_aie.absolute()
    ask = "import ort_aie_ep; print(ort_aie_ep.get_library_path())"
    python = ort_aie.with_name("python")
    library = subprocess.run([python, "-P", "-c", ask], check=True, capture_output=True, text=True)

    def asked_for(name: str) -> bool:
        return not arguments.names or any(given in name for given in arguments.names)

    wrong = 0
    print("| family | adapter | equal weights | out | builder | fp32 |\n|---|---|---|---|---|---|")
    for case in CASES:
        if asked_for(case.name):
            with tempfile.TemporaryDirectory() as work:
                wrong += not check(case, ort_aie, library.stdout.strip(), Path(work))
    print("\n| family | bytes of .q4nx | weights | wrong |\n|---|---|---|---|")
    for family in Q4NX:
        if asked_for(family):
            with tempfile.TemporaryDirectory() as work:
                wrong += not check_q4nx(family, ort_aie, Path(work))
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
