"""The plans of models by their sizes alone."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import onnx_ir as ir

from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.graph_passes import plan, run_passes
from ort_aie_ep.graph_passes.projection.last_logits import keep_last_logits
from ort_aie_ep.models.builder.decoder import build
from ort_aie_ep.models.builder.weights import Coding
from ort_aie_ep.models.shapes import SHAPES, Shape
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.prediction.compiled import plans_in
from ort_aie_ep.prediction.recipes import Plans

#: Names in `SHAPES` with a graph that the designs cover. Windows are those of the published
#: config.json (Gemma3-1B: 512); paper 2 writes 1024 for both sizes.
MODELS = (
    "llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b",
    "qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b",
    "gemma3-1b", "gemma3-4b",
)  # fmt: skip


def shape_of(model: str) -> Shape:
    """Sizes of `model`. Raises DesignError, which lists the known models."""
    if model not in MODELS:
        raise DesignError(f"unknown model {model!r}; known: {', '.join(MODELS)}")
    return SHAPES[model]


@lru_cache(maxsize=16)
def plans_of(shape: Shape, form: BlockForm = SHIPPING) -> Plans:
    """The plan that `ort-aie compile --last-logits` makes of the onnxruntime-genai builder's model,
    with weights in a form: the compiler's, of a model whose weights are not there."""
    coding = Coding(form.bits, ir.DataType.UINT8 if form.minima else None)
    model, weights = build(shape, lambda name: coding, form.group)
    for weight in weights:
        zeros = np.broadcast_to(np.zeros((), weight.dtype.numpy()), weight.shape)
        model.graph.initializers[weight.name].const_value = ir.Tensor(
            zeros, dtype=weight.dtype, name=weight.name
        )
    report = run_passes(model)
    keep_last_logits(model)
    plan(model, report)
    return plans_in(model)
