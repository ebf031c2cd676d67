"""The engines by name: what they need, how their model is made and opened, what they are asked.

A process that only opens an engine imports only that engine, because imports count in its memory.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench_peers.weights import DecoderWeights
    from ort_aie_ep.models.folder import ModelFolder

OURS = "ort_aie_ep"
OURS_INT8 = "ort_aie_ep, int8 KV"
CPU_EP = "ORT CPU EP"


@dataclass(frozen=True)
class Model:
    """The file or folder that an engine opens; mean bits of a weight in its format, including
    scales; bytes that a decoded token reads (all matrices, the lm_head once), and of the files."""

    path: Path
    bits: float
    weight_bytes: int
    file_bytes: int


@dataclass(frozen=True)
class Settings:
    """Threads that compute, tokens of context to make room for, and numerics of ort_aie_ep."""

    threads: int
    capacity: int
    numerics: str | None = None


@dataclass(frozen=True)
class Run:
    """A prompt and the decoding after it: the likeliest token after the prompt, which took
    `prefill_seconds`, and then one for each decoding step, which took `decode_seconds` together."""

    tokens: list[int]
    prefill_seconds: float
    decode_seconds: float


class Engine(ABC):
    """An open model. `description` is what is needed to repeat a run: version, build, KV type."""

    description: dict[str, str]

    @abstractmethod
    def run(self, prompt: Sequence[int], new_tokens: int) -> Run:
        """Forgets earlier tokens, prefills, and decodes `new_tokens` times, always greedily."""


class StepEngine(Engine):
    """An engine that is driven token by token."""

    @abstractmethod
    def reset(self) -> None:
        """Forgets the sequence."""

    @abstractmethod
    def forward(self, tokens: Sequence[int]) -> int:
        """Runs the next tokens; returns the likeliest one after the last of them."""

    def run(self, prompt: Sequence[int], new_tokens: int) -> Run:
        """See `Engine`."""
        self.reset()
        start = time.perf_counter()
        tokens = [self.forward(prompt)]
        prefilled = time.perf_counter()
        for _ in range(new_tokens):
            tokens.append(self.forward(tokens[-1:]))
        return Run(tokens, prefilled - start, time.perf_counter() - prefilled)


@dataclass(frozen=True)
class Source:
    """The folder that onnxruntime-genai's builder wrote, its weights, and a folder for the models
    that are made from it."""

    folder: ModelFolder
    weights: DecoderWeights
    scratch: Path

    @property
    def context(self) -> int:
        """Tokens that the model was made for."""
        return self.weights.shape.context

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return self.weights.shape.vocab

    def describe(self) -> str:
        """Its sizes."""
        return self.weights.describe()


@dataclass(frozen=True)
class GgufSource:
    """A GGUF file, which llama.cpp and ik_llama.cpp open as it is, and a folder for the model that
    ort_aie_ep makes of it; tokens that the model was made for, how many there are, elements and
    bytes of its matrices and of those that a token reads, and what types they have."""

    file: Path
    scratch: Path
    context: int
    vocabulary: int
    elements: int
    bytes: int
    read: int
    types: str

    def describe(self) -> str:
        """Its sizes."""
        return f"{self.bytes / 1e6:.0f} MB of matrices: {self.types}"


@dataclass(frozen=True)
class Kind:
    """An engine: the modules that its model and it need, by the package that installs them; those
    imported to open it, which does not count in the time to load a model; how its model is opened
    and written; and whether it is a part of ort_aie_ep."""

    packages: dict[str, str]
    imports: tuple[str, ...]
    open: Callable[[Model, Settings], Engine]
    model: Callable[[Source | GgufSource], Model]
    ours: bool = False

    def missing(self) -> str | None:
        """How to get what is missing, or None if everything is there."""
        absent = [name for name, module in self.packages.items() if find_spec(module) is None]
        return f"is not installed: pip install {' '.join(absent)}" if absent else None


def _later(place: str, **options: Any) -> Callable[..., Any]:
    """What a module of this package has by that name, imported when it is called."""
    module, _, name = place.partition(".")

    def call(*given: Any) -> Any:
        return getattr(import_module(f"bench_peers.{module}"), name)(*given, **options)

    return call


_ORT = ("onnxruntime", "bench_peers.onnxruntime_engine")
_LLAMA_CPP = {"llama-cpp-python": "llama_cpp", "gguf": "gguf"}
_GGUF = _later("gguf_file.gguf_model")
_OPENED = _later("onnxruntime_engine.OrtEngine", library=True)
KINDS = {
    OURS: Kind(
        {}, _ORT, _OPENED, _later("onnxruntime_engine.compiled_model", kv="f16"), ours=True
    ),
    OURS_INT8: Kind(
        {}, _ORT, _OPENED, _later("onnxruntime_engine.compiled_model", kv="int8"), ours=True
    ),
    CPU_EP: Kind(
        {}, _ORT, _later("onnxruntime_engine.OrtEngine", library=False),
        _later("onnxruntime_engine.source_model"),
    ),
    "llama.cpp": Kind(
        _LLAMA_CPP, ("llama_cpp", "bench_peers.llama_cpp_engine"),
        _later("llama_cpp_engine.llama_cpp_engine"), _GGUF,
    ),
    "llama.cpp, no FA": Kind(
        _LLAMA_CPP, ("llama_cpp", "bench_peers.llama_cpp_engine"),
        _later("llama_cpp_engine.llama_cpp_engine", flash_attention=False), _GGUF,
    ),
    "ik_llama.cpp": Kind(
        {"ik-llama-cpp-python==0.1.5": "ik_llama_cpp", "gguf": "gguf"},
        ("ik_llama_cpp", "bench_peers.llama_cpp_engine"),
        _later("llama_cpp_engine.ik_llama_cpp_engine"), _GGUF,
    ),
    "OpenVINO GenAI": Kind(
        {"openvino": "openvino", "openvino-genai": "openvino_genai"},
        ("openvino", "openvino_genai", "bench_peers.openvino_engine"),
        _later("openvino_engine.OpenVinoEngine"), _later("openvino_engine.ir_model"),
    ),
}  # fmt: skip
"""ort_aie_ep first, then the peers."""
