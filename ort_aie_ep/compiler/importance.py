"""How much each in-feature of a product counts: its mean square while the model reads a text.

The error of a product's output is the sum of its weights' errors times its in-features. So far as
in-features do not depend on each other, its mean square is the sum of squared errors of weights
times the in-features' mean squares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ort_aie_ep.compiler.reading import Purpose, Reader, read_windows
from ort_aie_ep.errors import AieError
from ort_aie_ep.graph_passes.projection.float_matmul import quantisable
from ort_aie_ep.graph_passes.unique_names import name_nodes, name_values
from ort_aie_ep.graph_passes.weights.float_weights import Floats
from ort_aie_ep.models.folder import ModelFolder
from ort_aie_ep.models.onnx_file import load_model
from ort_aie_ep.progress import Count, Progress
from ort_aie_ep.runtime import sessions

PURPOSE = Purpose("importance", "which weights matter", "importance (--importance)", 16)
# Added to what each in-feature counts, as a fraction of the mean over in-features: another text may
# use an in-feature that this one never uses.
_LEAST = 0.01
# The version of ONNX's operators in which ReduceMean's axes became an input.
_AXES_ARE_INPUTS = 18


@dataclass(frozen=True)
class Importance:
    """What was measured while a model read a text.

    Attributes:
        text: the source of the text.
        tokens: how many the model read.
        of: by `FloatWeights.key`, what each in-feature counts, (K).
    """

    text: str
    tokens: int
    of: dict[str, Floats]


def measure(
    source: ModelFolder, text: Path, keep: Sequence[str], progress: Progress | None
) -> Importance:
    """Runs the source on a text, in ONNX Runtime alone.

    Products in bodies of If, Loop and Scan are not measured. `progress` counts bytes of weights,
    each once for every window of the text.

    Raises:
        AieError: the text cannot serve, the model cannot be run on tokens alone, or its activations
            are not finite.
    """
    windows = read_windows(source, text, PURPOSE)
    model = load_model(source.model)
    name_nodes(model)
    name_values(model)
    read_by = _add_mean_squares(model, keep)
    content: bytes = ir.to_proto(model).SerializeToString()
    session = sessions.open_edited(content, source.model.parent, sessions.Options())
    run = Reader(session, windows)
    tokens = sum(len(window) for window in windows.windows)
    size = sum(weights.tensor.nbytes for _, weights in quantisable(model, keep))
    count = Count(progress, size * len(windows.windows))
    count.begin("reading the text")
    outputs = sorted({output for products in read_by.values() for output in products})
    means = {name: np.zeros(()) for name in outputs}
    for window in windows.windows:
        for name, squares in run.read(window, outputs).outputs.items():
            means[name] = means[name] + squares.astype(np.float64) * (len(window) / tokens)
        count.step(size)
    of = {}
    for matrix, products in read_by.items():
        counts = np.sum([means[output] for output in products], axis=0)
        if not np.isfinite(counts).all():
            raise AieError(
                f"importance: the activations that weights '{matrix}' multiply are NaN or infinite "
                f"on {windows.source}"
            )
        of[matrix] = (counts + _LEAST * counts.mean()).astype(np.float32)
    return Importance(windows.source, tokens, of)


def _add_mean_squares(model: ir.Model, keep: Sequence[str]) -> dict[str, list[str]]:
    """Adds outputs (K), the mean squares of what each product multiplies by its weights: by
    `FloatWeights.key`, one for each product with them."""
    graph, found = model.graph, dict[str, list[str]]()
    made: dict[ir.Value, str] = {}
    axes = ir.Value(name="importance.axes", const_value=ir.tensor([0], ir.DataType.INT64))
    graph.register_initializer(axes)
    for node, weights in quantisable(model, keep):
        x = node.inputs[0]
        if node.graph is not graph or x is None:
            continue
        if x not in made:
            k, _ = weights.shape
            made[x] = _add_mean_square(graph, x, k, axes, f"importance.{len(made)}")
        found.setdefault(weights.key, []).append(made[x])
    return found


def _add_mean_square(graph: ir.Graph, x: ir.Value, k: int, axes: ir.Value, name: str) -> str:
    shape = ir.Value(name=f"{name}.shape", const_value=ir.tensor([-1, k], ir.DataType.INT64))
    graph.register_initializer(shape)
    rows = ir.node("Reshape", [x, shape])
    floats = ir.node("Cast", rows.outputs, {"to": ir.DataType.FLOAT.value})
    squares = ir.node("Mul", [floats.outputs[0], floats.outputs[0]])
    if graph.opset_imports.get("", 0) >= _AXES_ARE_INPUTS:
        mean = ir.node("ReduceMean", [squares.outputs[0], axes], {"keepdims": 0})
    else:
        mean = ir.node("ReduceMean", squares.outputs, {"axes": [0], "keepdims": 0})
    for node, part in zip((rows, floats, squares), ("rows", "floats", "squares"), strict=True):
        node.outputs[0].name = f"{name}.{part}"
    (output,) = mean.outputs
    output.name, output.type = name, ir.TensorType(ir.DataType.FLOAT)
    output.shape = ir.Shape([k])
    graph.extend([rows, floats, squares, mean])
    graph.outputs.append(output)
    return name
