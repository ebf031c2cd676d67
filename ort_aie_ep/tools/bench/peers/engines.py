"""The engines by name: what they need, and how their model is made and opened.

A process that only opens an engine imports only that engine, because imports count in its memory
and in its time to the first token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ort_aie_ep.compiler.options import CompileOptions, KvType
from ort_aie_ep.errors import AieError
from ort_aie_ep.tools.bench.peers.engine import Engine, Model, Settings

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
class Source:
    """The source of all models.

    Attributes:
        folder: the folder that onnxruntime-genai's builder wrote.
        weights: the weights of that folder.
        scratch: a folder for the models made from it.
    """

    folder: ModelFolder
    weights: DecoderWeights
    scratch: Path


@dataclass(frozen=True)
class Kind:
    """An engine.

    Attributes:
        library: the library that it uses; for each peer's library, only the fastest engine counts.
        packages: modules imported to make and open its model, by the package that installs them.
        imports: modules imported to open it; they do not count in the time to load a model.
        model: writes the model that it opens.
        open: opens that model.
        batch_model: writes the model for several rows in a call, with the logits of all rows
            (`Batching`); None if it cannot, or if another engine of the same library is measured.
        without: a feature that it is retried without if it fails at first (`Settings.without`).
    """

    library: str
    packages: dict[str, str]
    imports: tuple[str, ...]
    model: Callable[[Source], Model]
    open: Callable[[Model, Settings], Engine]
    batch_model: Callable[[Source], Model] | None = None
    without: str = ""

    def missing(self) -> str | None:
        """How to get what is missing, or None if everything is there."""
        absent = [name for name, module in self.packages.items() if find_spec(module) is None]
        if not absent:
            return None
        return f"is not installed: pip install {' '.join(absent)}"


def _our_model(source: Source) -> Model:
    return _compiled(source, "f16")


def _our_batch_model(source: Source) -> Model:
    return _compiled(source, "f16", last_logits=False)


def _our_float_model(source: Source) -> Model:
    return _compiled(source, None)


def _our_int8_model(source: Source) -> Model:
    return _compiled(source, "int8")


def _compiled(source: Source, kv: KvType | None, *, last_logits: bool = True) -> Model:
    """With logits of only the last position, as the other engines compute for prompts."""
    import numpy as np

    from ort_aie_ep.compiler.compile import compile_model
    from ort_aie_ep.models.tokenizer import has_tokenizer
    from ort_aie_ep.tools.bench.peers import onnxruntime_cpu

    calibration = None
    if kv == "int8" and not has_tokenizer(source.folder):
        # Weights are random: text has no meaning to them, and no speed depends on a scale.
        calibration = source.scratch / "calibration.npy"
        ids = np.random.default_rng(0).integers(0, source.weights.sizes.vocabulary, (2, 64))
        np.save(calibration, ids)
    path = source.scratch / f"compiled-{kv or 'float'}{'' if last_logits else '-all-logits'}"
    options = CompileOptions(kv=kv, calibration=calibration, last_logits=last_logits)
    compiled = compile_model(source.folder.path, path, options)
    return onnxruntime_cpu.compiled_model(compiled.folder, source.weights)


def _ours(model: Model, settings: Settings) -> Engine:
    from ort_aie_ep.tools.bench.peers.onnxruntime_cpu import OrtEngine

    return OrtEngine(model, settings, library=True)


def _cpu_ep_model(source: Source) -> Model:
    from ort_aie_ep.tools.bench.peers import onnxruntime_cpu

    return onnxruntime_cpu.source_model(source.folder, source.weights)


def _cpu_ep(model: Model, settings: Settings) -> Engine:
    from ort_aie_ep.tools.bench.peers.onnxruntime_cpu import OrtEngine

    return OrtEngine(model, settings, library=False)


def _gguf(source: Source) -> Model:
    from ort_aie_ep.tools.bench.peers import gguf

    path = source.scratch / "model.gguf"
    # Several engines and libraries open the same file; the first one writes it.
    write = gguf.gguf_model if path.exists() else gguf.write_gguf
    return write(source.weights, path)


def _llama_cpp(model: Model, settings: Settings) -> Engine:
    from ort_aie_ep.tools.bench.peers.llama_cpp import LlamaCppEngine

    return LlamaCppEngine(model, settings, flash_attention=True)


def _llama_cpp_plain(model: Model, settings: Settings) -> Engine:
    from ort_aie_ep.tools.bench.peers.llama_cpp import LlamaCppEngine

    return LlamaCppEngine(model, settings, flash_attention=False)


def _ik_llama_cpp(model: Model, settings: Settings) -> Engine:
    from ort_aie_ep.tools.bench.peers.ik_llama_cpp import IkLlamaCppEngine

    return IkLlamaCppEngine(model, settings)


def _ir(source: Source) -> Model:
    from ort_aie_ep.tools.bench.peers import openvino

    # GenAI opens a folder and expects this name.
    path = source.scratch / "openvino" / "openvino_model.xml"
    path.parent.mkdir(exist_ok=True)
    if path.exists():
        return openvino.ir_model(source.weights, path)
    return openvino.write_ir(source.weights, path)


def _ir_of_all_logits(source: Source) -> Model:
    from ort_aie_ep.tools.bench.peers import openvino

    path = source.scratch / "all-logits.xml"
    return openvino.write_ir(source.weights, path, all_logits=True)


def _openvino(model: Model, settings: Settings) -> Engine:
    from ort_aie_ep.tools.bench.peers.openvino import OpenVinoEngine

    return OpenVinoEngine(model, settings)


def _openvino_genai(model: Model, settings: Settings) -> Engine:
    from ort_aie_ep.tools.bench.peers.openvino import OpenVinoGenAiEngine

    return OpenVinoGenAiEngine(model, settings)


_ORT = ("onnxruntime", "ort_aie_ep.tools.bench.peers.onnxruntime_cpu")
_LLAMA_CPP = ("llama_cpp", "ort_aie_ep.tools.bench.peers.llama_cpp")
_IK_LLAMA_CPP = ("ik_llama_cpp", "ort_aie_ep.tools.bench.peers.ik_llama_cpp")
_OPENVINO = ("openvino", "ort_aie_ep.tools.bench.peers.openvino")
_GENAI = (*_OPENVINO, "openvino_genai")
_GET_LLAMA_CPP = {"llama-cpp-python": "llama_cpp", "gguf": "gguf"}
_GET_IK_LLAMA_CPP = {"ik-llama-cpp-python==0.1.5": "ik_llama_cpp", "gguf": "gguf"}
_GET_OPENVINO = {"openvino": "openvino"}
_GET_GENAI = {"openvino": "openvino", "openvino-genai": "openvino_genai"}

KINDS = {
    OURS: Kind(OURS, {}, _ORT, _our_model, _ours, _our_batch_model),
    OURS_INT8: Kind(OURS, {}, _ORT, _our_int8_model, _ours),
    OURS_FLOAT: Kind(OURS, {}, _ORT, _our_float_model, _ours),
    CPU_EP: Kind("ONNX Runtime", {}, _ORT, _cpu_ep_model, _cpu_ep, _cpu_ep_model),
    "llama.cpp": Kind(
        "llama.cpp", _GET_LLAMA_CPP, _LLAMA_CPP, _gguf, _llama_cpp, _gguf, without="AMX"
    ),
    # On CPUs, this is faster for some contexts.
    "llama.cpp, no FA": Kind(
        "llama.cpp", _GET_LLAMA_CPP, _LLAMA_CPP, _gguf, _llama_cpp_plain, without="AMX"
    ),
    "ik_llama.cpp": Kind(
        "ik_llama.cpp", _GET_IK_LLAMA_CPP, _IK_LLAMA_CPP, _gguf, _ik_llama_cpp, _gguf,
        without="flash attention",
    ),
    "OpenVINO": Kind("OpenVINO", _GET_OPENVINO, _OPENVINO, _ir, _openvino, _ir_of_all_logits),
    "OpenVINO GenAI": Kind("OpenVINO", _GET_GENAI, _GENAI, _ir, _openvino_genai),
}  # fmt: skip
"""ort_aie_ep first, then the peers."""


def kind(name: str) -> Kind:
    """The engine of that name.

    Raises:
        AieError: there is no such engine.
    """
    if name not in KINDS:
        raise AieError(f"no engine is called {name!r}; expected one of {', '.join(KINDS)}")
    return KINDS[name]
