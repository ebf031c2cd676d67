"""Exports of optimum, as it writes them and in 4 bits.

Recipes for check_model_matrix.py; they need the environment of requirements-optimum.txt.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optimum_exports import DYNAMO, FLOAT16, MORE, OTHERS, RECORDED, export
from optimum_models import quantise

VERSIONS = ("optimum", "optimum-onnx", "transformers", "torch")


@dataclass(frozen=True)
class Case:
    """One export.

    Attributes:
        name: the case's name.
        family: key of RECIPES.
        dtype: "fp16", or None for float32.
        quantised: None, "MatMulNBits" or "QDQ", with 4 bits in blocks of 32 and zero points.
        compile: arguments of `ort_aie_ep.compile`.
    """

    name: str
    family: str
    dtype: str | None = None
    quantised: str | None = None
    compile: dict[str, Any] = field(default_factory=dict)


# Every family has a separate case for float16.
RECIPES = {k: v for k, v in {**RECORDED, **OTHERS, **MORE}.items() if not k.endswith(FLOAT16)}


def cases() -> Iterator[Case]:
    """Each family as exported, in 4 bits and in float16, then options on a few families."""
    for family in RECIPES:
        yield Case(family, family)
        yield Case(f"{family}, int4", family, quantised="MatMulNBits")
        yield Case(f"{family}, fp16", family, dtype="fp16")
    for family in ("llama", "llama_dynamo", "qwen3", "gemma3", "phi"):
        yield Case(f"{family}, int4 QDQ", family, quantised="QDQ")
        for form in ("q4nx", "bf16"):
            yield Case(f"{family} --quantize {form}", family, compile={"quantize": form})
        yield Case(f"{family}, int4 --kv f16", family, None, "MatMulNBits", {"kv": "f16"})


def build(case: Case, folder: Path) -> None:
    """Writes the folder that optimum exports, quantised if the case says so."""
    by_dynamo = case.family.endswith(DYNAMO)
    if case.quantised is None:
        export(RECIPES[case.family](), folder, dtype=case.dtype, by_dynamo=by_dynamo)
        return
    exported = folder.with_name("export")
    export(RECIPES[case.family](), exported, dtype=case.dtype, by_dynamo=by_dynamo)
    quantise(exported, folder, qdq=case.quantised == "QDQ")
    shutil.rmtree(exported)
