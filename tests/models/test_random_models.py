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

from ort_aie_ep.cli import app


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


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(s, marks=pytest.mark.in_turn) for s in range(6, 16))]
)
def test_random_models_compute_the_same_and_commands_take_them(seed: int, tmp_path: Path) -> None:
    graph = RandomGraph(seed)
    model = graph.save(tmp_path / "model.onnx")
    expected = Expected(graph)
    assert not ort_aie("explain", model)
    assert "tokenizer" in ort_aie("run", model, "text")
    assert "ort_aie_report.json" in ort_aie("doctor", model)
    compiled = tmp_path / "compiled"
    if refused := ort_aie("compile", model, compiled):
        assert "nothing" in refused or "no node" in refused, refused
        return
    session = open_session(str(compiled / "model.onnx"), config={"ort_aie.numerics": "bf16"})
    expected.check(outputs(session, graph))
    assert not ort_aie("doctor", compiled)
    assert not ort_aie("explain", compiled, "--nodes")
    ort_aie("predict", compiled, "--contexts", "8")
    assert "tokenizer" in ort_aie("run", compiled, "text")


@needs_provider
def test_random_models_compute_the_same_in_the_provider() -> None:
    with registered():
        for seed in range(16):
            graph = RandomGraph(seed)
            session = provider_session(graph.model.SerializeToString(), numerics="bf16")
            Expected(graph).check(outputs(session, graph))
            del session


@needs_provider
def test_explain_ep_takes_a_random_model(tmp_path: Path) -> None:
    assert not ort_aie("explain", RandomGraph(0).save(tmp_path / "model.onnx"), "--ep")


def test_a_node_between_two_plans_is_explained(tmp_path: Path) -> None:
    model = RandomGraph(0).save(tmp_path / "model.onnx")
    assert not ort_aie("compile", model, tmp_path / "compiled")
    assert not ort_aie("explain", tmp_path / "compiled")


@pytest.mark.parametrize("shape", [np.array([], np.int64), np.array(-1)], ids=["empty", "0-d"])
def test_an_embedding_that_is_reshaped_to_no_matrix_stays(shape: Array, tmp_path: Path) -> None:
    graph = next(
        g for g in map(RandomGraph, range(50)) if g.model.graph.node[0].op_type == "Reshape"
    )
    name = graph.model.graph.node[0].input[1]
    for tensor in graph.model.graph.initializer:
        if tensor.name == name:
            tensor.CopyFrom(numpy_helper.from_array(shape, name))
    assert not ort_aie("explain", graph.save(tmp_path / "model.onnx"))
    # ONNX Runtime refuses the model too.
    ort_aie("compile", tmp_path / "model.onnx", tmp_path / "compiled")


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ("node", "the node 'zz\\xff': its name"),
        ("value", "the node '{op}_0': its output"),
        ("graph", "the graph 'zz\\xff': its name"),
    ],
)
def test_a_name_that_is_not_utf8_is_told(part: str, told: str, tmp_path: Path) -> None:
    model = RandomGraph(0).model
    node = model.graph.node[0]
    told = told.format(op=node.op_type)
    if part == "value":
        old = node.output[0]
        for each in model.graph.node:
            each.input[:] = ["zz1" if name == old else name for name in each.input]
        node.output[0] = "zz1"
    else:
        (node if part == "node" else model.graph).name = "zz1"
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString().replace(b"zz1", b"zz\xff"))
    for words in (("explain", path), ("compile", path, tmp_path / "compiled")):
        message = ort_aie(*words)
        assert f"model.onnx: {told} 'zz\\xff'" in message
    assert not (tmp_path / "compiled").exists()
