"""Random models: their numbers through both doors, and every command that takes a model."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from op_models import BFLOAT16, ROUNDOFF, Array, open_session, session_options
from provider_calls import needs_provider, provider_session, registered
from random_graphs import RandomGraph
from typer.testing import CliRunner

import ort_aie_ep
from ort_aie_ep.cli import app
from ort_aie_ep.errors import AieError


def outputs(session: onnxruntime.InferenceSession, graph: RandomGraph) -> list[Array]:
    """What a session computes for a token, and for a prompt of seven."""
    return [np.asarray(y) for rows in (1, 7) for y in session.run(None, graph.inputs(rows))]


def on_cpu(model: onnx.ModelProto, graph: RandomGraph) -> list[Array]:
    content = model.SerializeToString()
    return outputs(onnxruntime.InferenceSession(content, session_options()), graph)


def rounded(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """The model with errors as bf16 products have them: scales in bf16, and each activation of a
    MatMulNBits off by up to a unit roundoff."""
    noisy = onnx.ModelProto()
    noisy.CopyFrom(model)
    u = ROUNDOFF[BFLOAT16]
    nodes, scales = [], set()
    for place, node in enumerate(noisy.graph.node):
        if node.op_type in ("MatMulNBits", "GatherBlockQuantized"):
            scales.add(node.input[2])
        if node.op_type == "MatMulNBits":
            factor, activation = f"factor{place}", f"activation{place}"
            nodes += [
                helper.make_node(
                    "RandomUniformLike", [node.input[0]], [factor],
                    low=1 - u, high=1 + u, seed=float(seed * 1000 + place),
                ),
                helper.make_node("Mul", [node.input[0], factor], [activation]),
            ]  # fmt: skip
            node.input[0] = activation
        nodes.append(node)
    del noisy.graph.node[:]
    noisy.graph.node.extend(nodes)
    for tensor in noisy.graph.initializer:
        if tensor.name in scales:
            exact = numpy_helper.to_array(tensor)
            in_bf16 = exact.astype(ml_dtypes.bfloat16).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(in_bf16, tensor.name))
    return noisy


class Expected:
    """The outputs of ONNX Runtime's CPU EP, and how far bf16's roundings move them.

    A door may be off by twice what the largest of several draws of such roundings is: its own
    roundings are another draw, whose largest error over an output is of the same size. 2^-14 of an
    output's size is for float32's own roundings, in another order, where later nodes cancel.
    """

    def __init__(self, graph: RandomGraph) -> None:
        self.outputs = on_cpu(graph.model, graph)
        draws = [on_cpu(rounded(graph.model, seed), graph) for seed in range(4)]
        self.bounds = [
            2 * max(np.abs(draw[i] - y).max() for draw in draws) + 2.0**-14 * np.abs(y).max()
            for i, y in enumerate(self.outputs)
        ]

    def ratios(self, found: list[Array]) -> list[float]:
        """The largest error of each output in parts of what is allowed."""
        assert [y.shape for y in found] == [y.shape for y in self.outputs]
        return [
            float(np.abs(y - e).max() / max(bound, 1e-30))
            for y, e, bound in zip(found, self.outputs, self.bounds, strict=True)
        ]

    def check(self, found: list[Array]) -> None:
        assert all(ratio <= 1 for ratio in self.ratios(found)), self.ratios(found)


def ort_aie(*words: object) -> str:
    """What a command prints, which ended by itself or with a message."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), (
        words,
        result.exc_info,
    )
    assert result.exit_code == 0 or "error: " in result.stderr, (words, result.stderr)
    return "" if result.exit_code == 0 else str(result.stderr)
