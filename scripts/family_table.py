"""Write the table of families into docs/models.md.

    python scripts/family_table.py docs/models.md

Rows of folders in tests/data come from compiling them now, the others from docs/model_matrix.json,
which check_model_matrix.py and matrix_table.py wrote. The script writes the text between the
markers of the page; tests/models/test_families.py compares it with the page.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ort_aie_ep.explain.explain import CPU_EP, explain
from ort_aie_ep.graph_passes import DOMAIN, plan, run_passes
from ort_aie_ep.graph_passes.base import NO_OPERATOR

BEGIN, END = "<!-- the families: begin -->", "<!-- the families: end -->"
# Nodes that every model has: seqlens_k and total_sequence_length from the mask, and constants.
MASK = "/model/attn_mask_reformat/"
GOOD = "good"
BUILDER, EDITED = "builder 0.18", "builder 0.18, edited"

# Folders of tests/data: (family, made by, what is special in this model).
FOLDERS = {
    "llama": (
        "Llama",
        BUILDER,
        "tied embedding, packed QKV, a vocabulary that is not a multiple of 32",
    ),
    "llama_asym": (
        "Llama 3",
        BUILDER,
        "rotary frequencies scaled as in Llama 3.1, zero points, groups of 64, an untied embedding",
    ),
    "mistral": ("Mistral", BUILDER, "an untied embedding; for its window see below"),
    "smollm": ("SmolLM2", BUILDER, "three query heads to a key-value head, tied embedding"),
    "smollm3": ("SmolLM3", EDITED, "the last of four layers does not rotate; see below"),
    "qwen2": ("Qwen2, Qwen2.5", BUILDER, "biases of queries, keys and values, tied embedding"),
    "qwen3": (
        "Qwen3",
        BUILDER,
        "norms of the heads of queries and keys, heads wider than hidden size / heads",
    ),
    "qwen3_5": (
        "Qwen3.5, Qwen3.6",
        BUILDER,
        "linear attention in three layers of four, gated attention in the fourth, positions with "
        "three axes, norms of heads, tied embedding",
    ),
    "gemma3": (
        "Gemma 3 (text)",
        BUILDER,
        "local layers on window-sized caches and global ones, two rotary tables, norms as in "
        "Qwen3, heads of 256, GELU",
    ),
    "gemma4": (
        "Gemma 4 (dense, text)",
        BUILDER,
        "rotation by position_ids before the attention, norms of queries, keys and values; global "
        "layers have fewer and wider heads, whose keys are their values, and rotate a quarter",
    ),
    "gpt_oss": (
        "gpt-oss",
        BUILDER,
        "experts from a checkpoint in MXFP4, SwiGLU with a limit, attention sinks, windows in "
        "every other layer, biases, YaRN",
    ),
    "phi": (
        "Phi-1 and Phi-2",
        BUILDER,
        "biases, LayerNorm, partial rotation, a plain MLP beside the attention",
    ),
    "phi3": ("Phi-3", BUILDER, "gate and up in one tensor (`fuse_mlp_gate_up=true`), packed QKV"),
    "phi4mini": (
        "Phi-4-mini, Phi-3 with 128k",
        BUILDER,
        "LongRoPE: two rotary tables, of which an If chooses by the length; three quarters of a "
        "head are rotated, tied embedding",
    ),
    "lfm2": ("LFM2", BUILDER, "short convolutions in three layers of four, tied embedding"),
    "lfm2_moe": (
        "LFM2 MoE",
        BUILDER,
        "a dense layer, then experts, each token sent to two of eight; short convolutions",
    ),
    "granite4": (
        "Granite 4",
        BUILDER,
        "factors on the embedding, the residual and the logits, tied embedding; attention in every "
        "layer, as in Granite 4.0 Micro",
    ),
    "olive": (
        "Llama",
        "builder 0.14.1",
        "weights from Olive's GPTQ ([hosts/olive.md](hosts/olive.md))",
    ),
    "quark": (
        "Llama",
        BUILDER,
        "weights from Quark, scales and zero points with one dimension "
        "([hosts/quark.md](hosts/quark.md))",
    ),
}

# Families of the matrix that no folder has: (family, what is special in it).
RECORDED = {
    "ernie4_5": ("Ernie 4.5", "neighbouring channels are rotated"),
    "gemma": ("Gemma", "heads wider than hidden size / heads, GELU"),
    "gemma2": ("Gemma 2", "soft caps of scores and of logits, norms after each part of a layer"),
    "gemma3_vl": ("Gemma 3 (the text of its model for pictures)", "as Gemma 3"),
    "gemma4": ("Gemma 4 (experts)", "a dense MLP beside experts with GeGLU"),
    "granite": ("Granite 3", "as Granite 4"),
    "hunyuan_dense": ("Hunyuan", "norms of heads after a rotation by position_ids"),
    "lfm2_vl": ("LFM2-VL", "as LFM2"),
    "mistral3": ("Mistral 3, Ministral 3", "as Mistral"),
    "nemotron": ("Nemotron", "LayerNorm, squared ReLU"),
    "olmo": ("OLMo", "norms without weights"),
    "phimoe": ("Phi-3.5-MoE", "experts, LongRoPE, LayerNorm"),
    "qwen2_5_vl": ("Qwen2.5-VL", "rotation by time, height and width (MRotaryEmbedding)"),
    "qwen3_vl": ("Qwen3-VL", "as Qwen2.5-VL, with norms of heads"),
    "qwen3_5_moe": ("Qwen3.5-35B-A3B", "as Qwen3.5, with experts"),
    "whisper": ("Whisper", "an encoder, cross-attention, LayerNorm"),
}

HEAD = (
    "model",
    "family",
    "made by",
    "what is special in it",
    "aie operators",
    "left on the CPU EP",
)


def counted(operators: Iterable[str]) -> str:
    """ "2 A, B" of A, B, A."""
    times = sorted(Counter(operators).items())
    return ", ".join(name if count == 1 else f"{count} {name}" for name, count in times) or "–"


def with_reasons(operators: list[str], reasons: dict[str, str]) -> str:
    """The operators, and after them the reasons that the passes gave for some."""
    told = {reasons[op] for op in operators if op in reasons}
    return counted(operators) + "".join(f"; {reason}" for reason in sorted(told))


def left_on_the_cpu_ep(folder: Path) -> list[str]:
    """Operators of the source that stay ONNX Runtime's, without those that every model has."""
    return [
        node.op
        for node in explain(folder).nodes
        if node.runs == CPU_EP and node.op != "Constant" and not node.node.startswith(MASK)
    ]


def folder_cells(folder: Path) -> tuple[str, str]:
    """The last two cells of a folder's row."""
    model = ir.load(folder / "model.onnx")
    report = run_passes(model)
    plan(model, report, whole=False)
    ours = [node.op_type for node in model.graph if node.domain == DOMAIN]
    reasons = {
        o.op_type: o.reason
        for o in report.outcomes.values()
        if o.becomes is None and o.reason != NO_OPERATOR
    }
    left = left_on_the_cpu_ep(folder)
    return counted(ours), with_reasons(left, {op: reasons[op] for op in left if op in reasons})


def recorded_cells(result: dict[str, Any]) -> tuple[str, str]:
    """The same of a line of the matrix."""
    if result["status"] != GOOD and not result["taken"]:
        return "–", f"{result['status']}: {result['detail']}"
    ours, left = (
        [op for op, times in result[key].items() for _ in range(times)] for key in ("taken", "left")
    )
    reasons = dict(text.split(": ", 1) for text in result["reasons"])
    cell = with_reasons(left, {op: why for op, why in reasons.items() if why != NO_OPERATOR})
    return counted(ours), cell if result["status"] == GOOD else f"{cell}; {result['status']}"


def row(cells: Iterable[str]) -> str:
    """A row of a Markdown table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def folder_row(data: Path, name: str) -> str:
    """The row of a folder."""
    return row((f"`{name}`", *FOLDERS[name], *folder_cells(data / name)))


def results(matrix: Path) -> dict[str, dict[str, Any]]:
    """What the matrix has about models of the builder, by name of the case."""
    return {r["name"]: r for r in json.loads(matrix.read_text()) if r["from"] == "builder"}


def recorded_rows(matrix: Path) -> Iterator[str]:
    """The rows of families without a folder."""
    found = results(matrix)
    for name, (family, special) in RECORDED.items():
        yield row((f"{name}", family, BUILDER, special, *recorded_cells(found[name])))


def rows(data: Path, matrix: Path) -> Iterator[str]:
    """The table."""
    yield row(HEAD)
    yield row(["---"] * len(HEAD)).replace(" ", "")
    for name in FOLDERS:
        yield folder_row(data, name)
    yield from recorded_rows(matrix)


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("page", type=Path)
    page = parser.parse_args().page
    before, _, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        sys.exit(f"{page} has no markers {BEGIN} and {END}")
    data = page.parent.parent / "tests" / "data"
    text = "\n".join([BEGIN, "", *rows(data, page.with_name("model_matrix.json")), ""])
    page.write_text(f"{before}{text}{END}{after}")


if __name__ == "__main__":
    main()
