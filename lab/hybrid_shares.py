"""What of a hybrid's token and prompt is in aie plans, and what in ONNX Runtime's operators.

    models/bin/python lab/hybrid_shares.py make WORK
    python lab/hybrid_shares.py measure WORK NAME

`make` needs the environment of requirements-models.txt, `measure` one with ort_aie_ep[tools].

`make` builds models with random weights at the widths of published ones. Layers and vocabulary are
the same fraction of the published model's, so shares are those of the whole model. `measure`
compiles a model, and runs a prompt and then single tokens with ONNX Runtime's profiler, which gives
the time of each node. It prints what each operator takes of a prompt and of a token (the mean of
all tokens but the first), and the sums for the source on ONNX Runtime's CPU EP.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

PROMPT, TOKENS = 256, 24
MAX_POSITIONS = 4096
# Rows of the table; what takes less is summed up.
SHOWN = 0.005


# Values of the published models, with a part of their layers and vocabulary.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    # 8 of 24 layers, and a third of 248,320 tokens.
    "qwen3.5-2b-like": (
        "qwen3_5",
        {
            "vocab_size": 82784,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 8,
            "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
            "num_attention_heads": 8,
            "head_dim": 256,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 16,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000000.0,
                "partial_rotary_factor": 0.25,
                "mrope_interleaved": True,
                "mrope_section": [11, 11, 10],
            },
        },
    ),
    # 8 of 16 layers, 5 of 10 convolutions, and half of 65,536 tokens.
    "lfm2-1.2b-like": (
        "lfm2",
        {
            "vocab_size": 32768,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 8,
            "layer_types": ["conv", "conv", "full_attention", "conv", "conv", "full_attention",
                            "conv", "full_attention"],
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
        },
    ),
}  # fmt: skip


def make(work: Path) -> None:
    """Writes WORK/NAME for each model."""
    from genai_builder import build_genai_folder, tiny_tokenizer
    from make_test_models import TEST_MODELS

    for name, (family, changed) in MODELS.items():
        recipe, values = TEST_MODELS[family], {**changed, "max_position_embeddings": MAX_POSITIONS}
        if "text_config" in recipe.values:
            vision = recipe.values["vision_config"] | {"out_hidden_size": changed["hidden_size"]}
            text = recipe.values["text_config"] | values
            values = {"text_config": text, "vision_config": vision}
        with tempfile.TemporaryDirectory(dir=work) as scratch:
            tiny_tokenizer(Path(scratch), MAX_POSITIONS)
            recipe.save(recipe.make(**values), Path(scratch))
            build_genai_folder(Path(scratch), work / name)
        print(work / name, flush=True)


def profiled(folder: Path, work: Path, *, source: bool) -> tuple[dict[str, float], ...]:
    """Milliseconds by operator of the prompt and of a token."""
    import onnxruntime

    import ort_aie_ep
    from ort_aie_ep.models.folder import find_model
    from ort_aie_ep.running.generate import Decoder

    options = onnxruntime.SessionOptions()
    if not source:
        options.register_custom_ops_library(ort_aie_ep.library_path())
    options.enable_profiling = True
    options.profile_file_prefix = str(work / "profile")
    found = find_model(folder)
    session = onnxruntime.InferenceSession(found.model, options)
    decoder = Decoder(session, found, PROMPT + TOKENS)
    rng = np.random.default_rng(3)
    decoder.forward(rng.integers(3, 400, PROMPT))
    decoder.reset()
    decoder.forward(rng.integers(3, 400, PROMPT))
    for token in rng.integers(3, 400, (TOKENS, 1)):
        decoder.forward(token)
    file = Path(session.end_profiling())
    events = json.loads(file.read_text())
    file.unlink()
    return by_call(events)


def by_call(events: list[dict[str, Any]]) -> tuple[dict[str, float], ...]:
    """The second prompt's, and the mean of all tokens but the first."""
    ends = sorted((e["ts"] + e["dur"], e["ts"]) for e in events if e["name"] == "model_run")
    nodes = [e for e in events if e["name"].endswith("_kernel_time")]
    calls = []
    for end, start in ends:
        sums: dict[str, float] = defaultdict(float)
        for event in nodes:
            if start <= event["ts"] <= end:
                sums[event["args"]["op_name"]] += event["dur"] / 1e3
        sums["between nodes"] = (end - start) / 1e3 - sum(sums.values())
        calls.append(sums)
    tokens = calls[3:]
    mean = {op: sum(call[op] for call in tokens) / len(tokens) for op in tokens[0]}
    return dict(calls[1]), mean


def table(token: dict[str, float], prompt: dict[str, float]) -> str:
    """In Markdown, a line for each operator, sorted by its share of a token."""
    wholes = sum(token.values()), sum(prompt.values())
    lines = ["| operator | token | | prompt | |", "|---|---|---|---|---|"]

    def add(name: str, *spent: float) -> None:
        cells = (f"{s:.2f} ms | {100 * s / w:.1f} %" for s, w in zip(spent, wholes, strict=True))
        lines.append(f"| {name} | {' | '.join(cells)} |")

    operators = sorted(token.keys() | prompt.keys(), key=lambda op: -token.get(op, 0.0))
    rest = np.zeros(2)
    for op in operators:
        spent = token.get(op, 0.0), prompt.get(op, 0.0)
        if any(s >= SHOWN * w for s, w in zip(spent, wholes, strict=True)):
            add(op, *spent)
        else:
            rest += spent
    add("others", *rest)
    return "\n".join(lines)


def measure(work: Path, name: str) -> None:
    """Prints both tables of a model."""
    import ort_aie_ep

    compiled = work / f"{name}-compiled"
    if not compiled.exists():
        ort_aie_ep.compile(work / name, compiled)
        print(f"compiled {compiled}; measure again")
        return
    with tempfile.TemporaryDirectory() as scratch:
        theirs = profiled(work / name, Path(scratch), source=True)
        ours = profiled(compiled, Path(scratch), source=False)
    source, whole = ([sum(spent.values()) for spent in times] for times in (theirs, ours))
    print(f"{name}: a prompt of {PROMPT} tokens takes {whole[0]:.0f} ms ({source[0]:.0f} ms on")
    print(f"ONNX Runtime's CPU EP), a token {whole[1]:.1f} ms ({source[1]:.1f} ms)\n")
    print(table(ours[1], ours[0]), flush=True)


def main() -> None:
    """Makes or measures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("make", "measure"))
    parser.add_argument("work", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODELS))
    arguments = parser.parse_args()
    if arguments.what == "make":
        make(arguments.work)
        return
    for name in arguments.names or MODELS:
        measure(arguments.work, name)


if __name__ == "__main__":
    main()
