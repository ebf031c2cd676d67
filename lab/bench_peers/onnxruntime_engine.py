"""ONNX Runtime: the source on its CPU EP alone, or a compiled folder with ort_aie_ep.

Opening a session does not need onnx_ir, which takes longer to import than all the rest, so only
code that writes models imports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

import ort_aie_ep
from bench_peers.engines import GgufSource, Model, Settings, Source, StepEngine
from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import ModelFolder, find_model
from ort_aie_ep.requirements import runtime_version
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.runtime.sessions import Options, open_session

if TYPE_CHECKING:
    from ort_aie_ep.compiler.options import KvType


def source_model(source: Source | GgufSource) -> Model:
    """The source as it is."""
    if isinstance(source, GgufSource):
        raise AieError("reads no GGUF files")
    folder, bits = source.folder, source.weights.source_bits()
    read = int(source.weights.product_elements() * bits / 8)
    return Model(folder.path, bits, read, _bytes(folder))


def compiled_model(source: Source | GgufSource, *, kv: KvType) -> Model:
    """A compiled folder; counts the bytes of weights that its projections read, of experts those
    that a token chooses."""
    import onnx_ir as ir

    from ort_aie_ep.compiler.compile import compile_model
    from ort_aie_ep.compiler.options import CompileOptions
    from ort_aie_ep.graph_passes.planning import expand_plans
    from ort_aie_ep.models.onnx_file import load_model
    from ort_aie_ep.models.tokenizer import has_tokenizer

    if isinstance(source, GgufSource):
        if kv != "f16":
            raise AieError("is measured with the KV cache of the others, on GGUF files")
        compile_model(source.file, source.scratch / "compiled", CompileOptions(kv=kv))
        folder = find_model(source.scratch / "compiled")
        bits = 8 * source.bytes / source.elements
        return Model(folder.path, bits, source.read, _bytes(folder))
    calibration = None
    if kv == "int8" and not has_tokenizer(source.folder):
        # Weights are random: text has no meaning to them, and no speed depends on a scale.
        calibration = source.scratch / "calibration.npy"
        ids = np.random.default_rng(0).integers(0, source.weights.shape.vocab, (2, 64))
        np.save(calibration, ids)
    options = CompileOptions(kv=kv, calibration=calibration)
    compile_model(source.folder.path, source.scratch / f"compiled-{kv}", options)
    folder = find_model(source.scratch / f"compiled-{kv}")
    model = load_model(folder.model)
    expand_plans(model)
    read = sum(
        value.const_value.nbytes
        for node in model.graph
        if node.domain == "aie" and node.op_type != "Q4NXGather"
        for value in node.inputs
        if value is not None
        and value.const_value is not None
        and value.const_value.dtype == ir.DataType.UINT8
    )
    return Model(folder.path, read * 8 / source.weights.product_elements(), read, _bytes(folder))


def _bytes(folder: ModelFolder) -> int:
    """Bytes of external data; a small model without any has its weights in the graph's file."""
    from ort_aie_ep.models.onnx_file import external_files, load_model

    files = external_files(load_model(folder.model)) or {folder.model}
    return sum(path.stat().st_size for path in files)


class OrtEngine(StepEngine):
    """An InferenceSession with bound caches, with ort_aie_ep's operators if `library` is set."""

    def __init__(self, model: Model, settings: Settings, *, library: bool) -> None:
        folder = find_model(model.path)
        options = Options(numerics=settings.numerics if library else None, threads=settings.threads)
        session = open_session(folder.model, options, library=library)
        self._decoder = Decoder(session, folder, settings.capacity)
        caches = {v.type for v in session.get_inputs() if v.name.startswith("past_key_values.")}
        self.description = {
            "version": f"onnxruntime {runtime_version()}",
            "threads": str(settings.threads),
            "logits of prompts": "of the last token" if library else "of all tokens",
            "KV": ", ".join(sorted(kind[len("tensor(") : -1] for kind in caches)),
        }
        if library:
            from ort_aie_ep.runtime.kernels import chosen_kernels, kernels_line, tried_kernels

            self.description |= {
                "version": f"ort_aie_ep {ort_aie_ep.__version__}, {self.description['version']}",
                "kernels": kernels_line(chosen_kernels(), tried_kernels()),
                "numerics": options.numerics or "auto",
            }

    def reset(self) -> None:
        """See `StepEngine`."""
        self._decoder.reset()

    def forward(self, tokens: Sequence[int]) -> int:
        """See `StepEngine`."""
        return int(np.argmax(self._decoder.prefill(np.asarray(tokens, np.int64))))
