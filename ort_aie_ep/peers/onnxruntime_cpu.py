"""ONNX Runtime: the source on its CPU EP alone, or a compiled folder with our library."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING

import numpy as np

import ort_aie_ep
from ort_aie_ep.generate import Decoder
from ort_aie_ep.model_file import load_model
from ort_aie_ep.model_folder import ModelFolder, find_model
from ort_aie_ep.peers.engine import Model, Settings, StepEngine
from ort_aie_ep.session import Options, open_session

if TYPE_CHECKING:
    from ort_aie_ep.peers.weights import LlamaWeights


def source_model(folder: ModelFolder, weights: LlamaWeights) -> Model:
    """The source as it is."""
    bits = weights.source_bits()
    return Model(folder.path, bits, int(weights.product_elements() * bits / 8))


def compiled_model(folder: ModelFolder, weights: LlamaWeights) -> Model:
    """A compiled folder; its Q4NX tensors are counted, those of embeddings alone left out."""
    tensors = {
        value.name: value.const_value.nbytes
        for node in load_model(folder.model).graph
        if node.domain == "aie" and node.op_type != "Q4NXGather"
        for value in node.inputs
        if value is not None
        and value.const_value is not None
        and (value.name or "").endswith("_q4nx")
    }
    total = sum(tensors.values())
    return Model(folder.path, total * 8 / weights.product_elements(), total)


class OrtEngine(StepEngine):
    """An InferenceSession with bound caches."""

    def __init__(self, model: Model, settings: Settings, *, library: bool) -> None:
        """Opens it, with our operators where `library` is set.

        Raises:
            AieError: ONNX Runtime refuses the model or an option.
        """
        folder = find_model(model.path)
        wanted = settings.options if library else {}
        options = Options(wanted.get("target"), wanted.get("numerics"), settings.threads)
        session = open_session(folder.model, options, library=library)
        self._decoder = Decoder(session, folder, settings.capacity)
        caches = {v.type for v in session.get_inputs() if v.name.startswith("past_key_values.")}
        rows = next(v.shape[1] for v in session.get_outputs() if v.name == "logits")
        self._description = {
            "version": f"onnxruntime {metadata.version('onnxruntime')}",
            "threads": str(settings.threads),
            "logits": "of the last position" if rows == 1 else "of all positions",
            "KV": ", ".join(sorted(kind[len("tensor(") : -1] for kind in caches)),
        }
        if library:
            from ort_aie_ep import _native

            self._description |= {
                "version": f"ort_aie_ep {ort_aie_ep.__version__}, {self._description['version']}",
                "kernels": _native.selected_isa(),
                "numerics": options.numerics or "auto",
            }

    def describe(self) -> dict[str, str]:
        """See `Engine`."""
        return self._description

    def reset(self) -> None:
        """See `StepEngine`."""
        self._decoder.reset()

    def forward(self, tokens: Sequence[int]) -> int:
        """See `StepEngine`."""
        return int(np.argmax(self._decoder.forward(np.asarray(tokens, np.int64))[-1]))
