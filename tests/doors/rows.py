"""The models of the table of doors: who wrote each, and ONNX Runtime's own result for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from mixed_models import to_k_quant_mixed
from model_folders import DATA
from optimum_models import quantise, with_accuracy_level, with_bfloat16_scales, write_export

import ort_aie_ep
from ort_aie_ep.models.folder import ModelFolder, find_model
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.runtime.sessions import open_session

Array = npt.NDArray[Any]
Write = Callable[[Path], Path]

LENGTHS = (40, 1, 1, 9, 30, 1, 17, 1)  # a prompt, tokens, later turns on a filled cache
ON_SIM = (6, 1, 1)
PROMPTS, NEW = (24, 1, 47), 16
CAPACITY = 64  # as genai's cache: that of Gemma 3 must hold its window of 32


@dataclass(frozen=True, eq=False)
class Row:
    """A model and who wrote it.

    Attributes:
        model, maker: as the pages name them.
        write: writes what `compile` reads below an empty folder, and returns it.
        options: of `compile`.
        since: the ONNX Runtime that runs it.
    """

    model: str
    maker: str
    write: Write
    options: Mapping[str, Any] = field(default_factory=dict)
    since: tuple[int, int] = (1, 23)

    def __str__(self) -> str:
        return f"{self.model} {self.maker}"


class Made:
    """The files of a row, each made once, and what ONNX Runtime computes from them."""

    def __init__(self, row: Row, work: Path) -> None:
        self.row, self.work = row, work

    @cached_property
    def source(self) -> Path:
        return self.row.write(self.work / "source")

    @cached_property
    def compiled(self) -> ModelFolder:
        return self._compiled("compiled")

    @cached_property
    def for_npu(self) -> ModelFolder:
        """As `compiled`, but for a file whose bits no NPU reads."""
        return self._compiled("npu", q4nx_compatible=True) if self.from_file else self.compiled

    def _compiled(self, name: str, **options: Any) -> ModelFolder:
        own = {"q4nx_compatible": False} if self.from_file else {}
        given = {**own, **self.row.options, **options}
        return find_model(ort_aie_ep.compile(self.source, self.work / name, **given).path)

    @property
    def from_file(self) -> bool:
        return self.row.maker == "GGUF"

    @cached_property
    def config(self) -> dict[str, Any]:
        return json.loads((self.compiled.path / "genai_config.json").read_text())["model"]

    @cached_property
    def exact(self) -> Path:
        """The graph that ONNX Runtime runs alone, with products in float32."""
        folder = self.work / "exact"
        if self.from_file:
            return _dequantised_graph(self.source, folder)
        return with_accuracy_level(self.source, folder, 0)

    def error(self, actual: Array, lengths: tuple[int, ...]) -> float:
        """How far logits are from ONNX Runtime's, in parts of what `bf16` numerics may be off.

        The yardstick is ONNX Runtime's own accuracy_level 4, which rounds activations to 1/127 of
        the largest of 32: a relative error about four times that of bfloat16's 8 bits. Scales and
        dequantised weights are rounded to bfloat16 too, so a door may come near, but not exceed it.
        For weights that ONNX Runtime has as floats alone: activations and weights are rounded by
        up to 2^-8 of them in each of some ten products, one after the other.
        """
        expected, allowed = yardstick(self, lengths)
        if allowed is None:
            off = np.sqrt(np.mean((actual - expected) ** 2) / np.mean(expected**2))
            return float(off / (10 * 2.0**-8))
        return float(np.abs(actual - expected).max()) / allowed


@cache
def yardstick(made: Made, lengths: tuple[int, ...]) -> tuple[Array, float | None]:
    """ONNX Runtime's logits, and the largest error of one that is allowed, if that can be told."""

    def by_ort(folder: Path) -> Array:
        return logits(open_session(folder / "model.onnx", library=False), folder, lengths)

    expected = by_ort(made.exact)
    if made.from_file or "quantize" in made.row.options:
        return expected, None
    changes = [with_accuracy_level]
    if made.row.maker.startswith("optimum"):
        changes.append(with_bfloat16_scales)  # and minima, which others have as codes
    allowed = 0.0
    for change in changes:
        if not (folder := made.work / change.__name__).exists():
            change(made.exact, folder)
        allowed += float(np.abs(by_ort(folder) - expected).max())
    return expected, allowed


def logits(session: Any, folder: Path, lengths: tuple[int, ...] = LENGTHS) -> Array:
    """Of seeded tokens, fed in pieces of these lengths: (all, vocabulary)."""
    decoder = Decoder(session, find_model(folder), sum(lengths))
    rng = np.random.default_rng(7)
    parts = [decoder.forward(rng.integers(3, decoder.vocabulary, n)) for n in lengths]
    return np.concatenate(parts)


def prompt(vocabulary: int, length: int = PROMPTS[0]) -> list[int]:
    return [int(token) for token in np.random.default_rng(length).integers(3, vocabulary, length)]


def greedy(session: Any, folder: ModelFolder, length: int = PROMPTS[0]) -> list[int]:
    """NEW tokens after a prompt."""
    decoder = Decoder(session, folder, CAPACITY)
    tokens, text = prompt(decoder.vocabulary, length), []
    while len(text) < NEW:
        tokens = [int(decoder.forward(np.array(tokens))[-1].argmax())]
        text += tokens
    return text


def _dequantised_graph(path: Path, folder: Path) -> Path:
    """The builder's graph of a GGUF file, all of it in float32."""
    from gguf_files import dequantised

    from ort_aie_ep.compiler.gguf.architecture import Model
    from ort_aie_ep.compiler.gguf.file import read_gguf
    from ort_aie_ep.compiler.gguf.importer import graph
    from ort_aie_ep.models.builder.config import genai_config
    from ort_aie_ep.models.files import write_json

    folder.mkdir()
    gguf = Model(read_gguf(dequantised(path, folder / "floats.gguf")), q4nx_compatible=False)
    ir.save(graph(gguf, {}), folder / "model.onnx")
    write_json(folder / "genai_config.json", genai_config(gguf.shape))
    return folder


# --- who wrote them ---


def folder_of(name: str, edit: Callable[[ir.Model], object] | None = None) -> Write:
    """A folder of tests/data, or one that differs by an edit."""

    def write(folder: Path) -> Path:
        shutil.copytree(DATA / name, folder)
        if edit is not None:
            model = ir.load(folder / "model.onnx")
            edit(model)
            ir.save(model, folder / "model.onnx")
        return folder

    return write


def optimum(name: str) -> Write:
    def write(folder: Path) -> Path:
        return quantise(write_export(name, folder.with_name("export")), folder)

    return write


def gguf(name: str) -> Write:
    def write(folder: Path) -> Path:
        from gguf_files import MODELS, mixed
        from gguf_files import write as write_gguf

        folder.mkdir()
        return write_gguf(folder / "model.gguf", MODELS[name], mixed)

    return write


def slide(model: ir.Model) -> None:
    """Mistral's window, which builder 0.18 leaves out, on a full-length cache."""
    for node in model.graph:
        if node.op_type == "GroupQueryAttention":
            node.attributes.add(ir.AttrInt64("local_window_size", 24))


BUILDER = "builder"
ROWS = (
    Row("Llama", BUILDER, folder_of("llama")),
    Row("Llama 3", BUILDER, folder_of("llama_asym")),
    Row("Llama in mixed widths", BUILDER, folder_of("llama", to_k_quant_mixed)),
    Row("Llama 3 in mixed widths", BUILDER, folder_of("llama_asym", to_k_quant_mixed)),
    Row("Qwen2", BUILDER, folder_of("qwen2")),
    Row("Qwen3", BUILDER, folder_of("qwen3")),
    # 1.23.2 lacks sliding_window_cache.
    Row("Gemma 3", BUILDER, folder_of("gemma3"), since=(1, 31)),
    Row("Gemma 4", BUILDER, folder_of("gemma4"), since=(1, 31)),
    Row("Phi-2", BUILDER, folder_of("phi")),
    Row("Phi-3", BUILDER, folder_of("phi3")),
    Row("Phi-4-mini", BUILDER, folder_of("phi4mini")),
    Row("Mistral", BUILDER, folder_of("mistral")),
    # Before, ONNX Runtime's window is one key longer than its size.
    Row("Mistral with a window", BUILDER, folder_of("mistral", slide), since=(1, 24)),
    Row("SmolLM2", BUILDER, folder_of("smollm")),
    Row("SmolLM3", BUILDER, folder_of("smollm3")),
    Row("Granite 4", BUILDER, folder_of("granite4")),
    Row("gpt-oss", BUILDER, folder_of("gpt_oss"), since=(1, 31)),
    Row("LFM2", BUILDER, folder_of("lfm2"), since=(1, 31)),
    Row("LFM2 MoE", BUILDER, folder_of("lfm2_moe"), since=(1, 31)),
    Row("Qwen3.5", BUILDER, folder_of("qwen3_5"), since=(1, 30)),
    Row("Llama", "Olive", folder_of("olive")),
    Row("Llama", "Quark", folder_of("quark")),
    # The exports are in opset 24, which ONNX Runtime 1.23 refuses.
    Row("Llama", "mobius-onnx", folder_of("mobius/llama_int4"), since=(1, 24)),
    Row("Qwen3", "mobius-onnx", folder_of("mobius/qwen3_int4"), since=(1, 24)),
    Row("Gemma 3", "mobius-onnx", folder_of("mobius/gemma3"), {"quantize": "bf16"}, since=(1, 24)),
    Row("Llama", "optimum", optimum("llama")),
    Row("Llama", "optimum by dynamo", optimum("llama_dynamo")),
    Row("Qwen3", "optimum", optimum("qwen3")),
    Row("Gemma 3", "optimum", optimum("gemma3")),
    Row("Phi-2", "optimum", optimum("phi")),
    Row("Mistral", "optimum", optimum("mistral")),
    Row("Llama", "GGUF", gguf("llama")),
    Row("Qwen3", "GGUF", gguf("qwen3")),
    Row("Gemma 3", "GGUF", gguf("gemma3"), since=(1, 31)),
    Row("gpt-oss", "GGUF", gguf("gpt-oss"), since=(1, 31)),
    Row("LFM2", "GGUF", gguf("lfm2"), since=(1, 31)),
    Row("LFM2 MoE", "GGUF", gguf("lfm2moe"), since=(1, 31)),
    Row("Qwen3.5", "GGUF", gguf("qwen35"), since=(1, 31)),
)
