"""The engines by name: what they need, how their model is made and opened, what they are asked.

A process that only opens an engine imports only that engine, because imports count in its memory
and in its time to the first token.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ort_aie_ep.errors import AieError

if TYPE_CHECKING:
    from ort_aie_ep.models.folder import ModelFolder
    from ort_aie_ep.tools.bench.peers.weights import DecoderWeights

OURS = "ort_aie_ep"
OURS_FLOAT = "ort_aie_ep, float KV"
OURS_INT8 = "ort_aie_ep, int8 KV"
CPU_EP = "ORT CPU EP"
COMPARED = (OURS, OURS_INT8)
"""The engines of ort_aie_ep that are compared with the best peer."""


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
    """How to open it: threads that compute, tokens of context to make room for, options of
    particular engines, and the feature to leave out after a failure (`Kind.without`)."""

    threads: int
    capacity: int
    options: dict[str, str] = field(default_factory=dict)
    without: str = ""


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

    def decode_at(self, total: int, count: int) -> float:
        """Seconds for `count` tokens, each the last of a sequence of `total` unread tokens."""
        raise AieError(f"{type(self).__name__} cannot decode without a prompt")

    def batch_at(self, length: int, sequences: int, tokens: int, count: int) -> float:
        """Seconds for `count` calls after one that is not counted.

        Each call adds `tokens` tokens to each of `sequences` sequences of about `length` tokens,
        and returns the logits of all added tokens. They are `different_tokens`.
        """
        raise AieError(f"{type(self).__name__} cannot take several rows in a call")


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


def different_tokens(sequences: int, tokens: int) -> npt.NDArray[np.int64]:
    """(sequences, tokens) of a call with several rows.

    They differ, because equal tokens would choose the same experts and read fewer weights.
    """
    return np.arange(1, sequences * tokens + 1, dtype=np.int64).reshape(sequences, tokens)


def seconds_after_one(call: Callable[[], object], count: int) -> float:
    """Seconds of `count` calls after one that is not counted."""
    call()
    start = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - start


@dataclass(frozen=True)
class Source:
    """The folder that onnxruntime-genai's builder wrote, its weights, and a folder for the models
    that are made from it."""

    folder: ModelFolder
    weights: DecoderWeights
    scratch: Path


@dataclass(frozen=True)
class Kind:
    """An engine.

    Attributes:
        library: the library that it uses; for each peer's library, only the fastest engine counts.
        packages: modules imported to make and open its model, by the package that installs them.
        imports: modules imported to open it, which does not count in the time to load a model.
        open: opens its model.
        model: writes its model.
        batch_model: writes the model for several rows in a call, with the logits of all rows; None
            if it cannot, or if another engine of the same library is measured.
        without: a feature that it is retried without if it fails at first.
    """

    library: str
    packages: dict[str, str]
    imports: tuple[str, ...]
    open: Callable[[Model, Settings], Engine]
    model: Callable[[Source], Model]
    batch_model: Callable[[Source], Model] | None = None
    without: str = ""

    def missing(self) -> str | None:
        """How to get what is missing, or None if everything is there."""
        absent = [name for name, module in self.packages.items() if find_spec(module) is None]
        return f"is not installed: pip install {' '.join(absent)}" if absent else None


def _later(place: str, **options: Any) -> Callable[..., Any]:
    """What a module of this package has by that name, imported when it is called."""
    module, _, name = place.partition(".")

    def call(*given: Any) -> Any:
        return getattr(import_module(f"{__package__}.{module}"), name)(*given, **options)

    return call


def _ort(library: str, model: Callable[[Source], Model], batch_model: Any = None) -> Kind:
    imports = "onnxruntime", f"{__package__}.onnxruntime_cpu"
    opens = _later("onnxruntime_cpu.OrtEngine", library=library == OURS)
    return Kind(library, {}, imports, opens, model, batch_model)


def _compiled(kv: str | None, **options: Any) -> Callable[[Source], Model]:
    return _later("onnxruntime_cpu.compiled_model", kv=kv, **options)


_LLAMA_CPP = f"{__package__}.llama_cpp"
_OPENVINO = f"{__package__}.openvino"
_GET_LLAMA_CPP = {"llama-cpp-python": "llama_cpp", "gguf": "gguf"}
_SOURCE, _GGUF, _IR = map(
    _later, ("onnxruntime_cpu.source_model", "gguf.gguf_model", "openvino.ir_model")
)
KINDS = {
    OURS: _ort(OURS, _compiled("f16"), _compiled("f16", last_logits=False)),
    OURS_INT8: _ort(OURS, _compiled("int8")),
    OURS_FLOAT: _ort(OURS, _compiled(None)),
    CPU_EP: _ort("ONNX Runtime", _SOURCE, _SOURCE),
    "llama.cpp": Kind(
        "llama.cpp", _GET_LLAMA_CPP, ("llama_cpp", _LLAMA_CPP),
        _later("llama_cpp.llama_cpp_engine", flash_attention=True), _GGUF, _GGUF, "AMX",
    ),
    # On CPUs, this is faster for some contexts.
    "llama.cpp, no FA": Kind(
        "llama.cpp", _GET_LLAMA_CPP, ("llama_cpp", _LLAMA_CPP),
        _later("llama_cpp.llama_cpp_engine", flash_attention=False), _GGUF, None, "AMX",
    ),
    "ik_llama.cpp": Kind(
        "ik_llama.cpp", {"ik-llama-cpp-python==0.1.5": "ik_llama_cpp", "gguf": "gguf"},
        ("ik_llama_cpp", _LLAMA_CPP), _later("llama_cpp.ik_llama_cpp_engine"), _GGUF, _GGUF,
        "flash attention",
    ),
    "OpenVINO": Kind(
        "OpenVINO", {"openvino": "openvino"}, ("openvino", _OPENVINO),
        _later("openvino.OpenVinoEngine"), _IR, _later("openvino.ir_model", all_logits=True),
    ),
    "OpenVINO GenAI": Kind(
        "OpenVINO", {"openvino": "openvino", "openvino-genai": "openvino_genai"},
        ("openvino", "openvino_genai", _OPENVINO), _later("openvino.OpenVinoGenAiEngine"), _IR,
    ),
}  # fmt: skip
"""ort_aie_ep first, then the peers."""

QUICK = tuple(name for name, k in KINDS.items() if name == OURS or k.library != OURS)
"""The engines that a quick run begins with."""


def kind(name: str) -> Kind:
    """The engine of that name; AieError if there is none."""
    if name not in KINDS:
        raise AieError(f"no engine is called {name!r}; expected one of {', '.join(KINDS)}")
    return KINDS[name]
