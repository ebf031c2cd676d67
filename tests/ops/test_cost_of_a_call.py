"""A call of an op costs only what it computes: it allocates no memory, calls no threads for little
work, and reads constants when a session opens."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from cmake_program import Project
from expert_models import Experts, experts_folder, feeds_of
from onnx import TensorProto, helper
from op_models import FLOAT16, model_of, onnx_tensor, open_session, run
from projection_calls import activations, make_weights, q4nx_model
from provider_calls import needs_provider

import ort_aie_ep
from ort_aie_ep import _native

HERE = Path(__file__).parent
DEMO = Path(ort_aie_ep.__file__).parent / "demo_model"


NOT_PRELOADED = pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="a sanitizer is preloaded")


def allocations(project: Project, program: str, *arguments: str | Path) -> tuple[int, int]:
    """How often the library allocated memory: in the first call, and once it had buffers."""
    calls = HERE / "calls"
    done = subprocess.run(
        [sys.executable, "-P", calls / program, *arguments],
        env=os.environ | {"LD_PRELOAD": str(project.build("count_allocations")),
                          "PYTHONPATH": str(calls)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, later = map(int, done.stdout.split())
    return first, later


@NOT_PRELOADED
@pytest.mark.parametrize("door", ["compiled", pytest.param("provider", marks=needs_provider)])
def test_a_token_asks_for_no_memory(door: str, project: Project, tmp_path: Path) -> None:
    model = ort_aie_ep.compile(DEMO, tmp_path / "model").path if door == "compiled" else DEMO
    prompt, tokens = allocations(project, "decode.py", model, door)
    assert prompt > 0  # its buffers: proves that the counter counts
    assert tokens == 0


@NOT_PRELOADED
def test_a_row_between_projections_asks_for_no_memory(project: Project, tmp_path: Path) -> None:
    """Through a table, a norm, a sum, a function, a product and a cast."""
    rng = np.random.default_rng(3)
    constants = [
        onnx_tensor(name, rng.standard_normal(shape).astype(np.float16))
        for name, shape in {"W": (50, 3000), "weight": (3000,), "factor": ()}.items()
    ]
    given = {"domain": "aie", "format": _native.FORMAT}
    nodes = [
        helper.make_node("Gather", ["W", "indices"], ["a"], **given),
        helper.make_node("RMSNorm", ["a", "weight", "a"], ["b", "sum"], K=3000, **given),
        helper.make_node("Add", ["b", "sum"], ["c"], **given),
        helper.make_node("Activation", ["c"], ["d"], function="gelu", **given),
        helper.make_node("Mul", ["d", "factor"], ["e"], **given),
        helper.make_node("Cast", ["e"], ["Y"], dtype=TensorProto.FLOAT, **given),
    ]
    shape, half = [1, 1, 3000], TensorProto.FLOAT16
    graph = helper.make_graph(
        nodes, "graph",
        [helper.make_tensor_value_info("indices", TensorProto.INT64, [1, 1])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, shape)],
        constants,
        value_info=[helper.make_tensor_value_info("sum", half, shape)],
    )  # fmt: skip
    onnx.save(model_of(graph), tmp_path / "model.onnx")
    np.savez(tmp_path / "inputs.npz", indices=np.array([[7]]))
    first, later = allocations(
        project, "repeat.py", tmp_path / "model.onnx", tmp_path / "inputs.npz"
    )
    assert first > 0  # conversions have buffers
    assert later == 0


@NOT_PRELOADED
@pytest.mark.parametrize("rows", [1, 3, 70])
def test_a_layer_of_experts_asks_for_no_memory(rows: int, project: Project, tmp_path: Path) -> None:
    """A token, a few, and a prompt, whose experts are computed one after the other."""
    case = Experts(dtype=FLOAT16, biases=True, router_weights=True)
    ort_aie_ep.compile(experts_folder(case, tmp_path / "source"), tmp_path / "model")
    np.savez(tmp_path / "inputs.npz", **feeds_of(case, rows))
    first, later = allocations(
        project, "repeat.py", tmp_path / "model" / "model.onnx", tmp_path / "inputs.npz"
    )
    assert first > 0
    assert later == 0


def test_little_work_is_done_without_other_threads(project: Project) -> None:
    done = subprocess.run(
        [project.build("sections_test")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_an_initializer_that_a_caller_may_replace_is_not_a_constant() -> None:
    """It is a graph input as well: each call may give its value."""
    rng = np.random.default_rng(7)
    a, weights = activations(1, 256), make_weights(64, 256)
    biases = [rng.standard_normal(64).astype(np.float32) for _ in range(2)]
    expected = [
        run(open_session(q4nx_model(weights, a, bias=bias)), {"A": a})["Y"] for bias in biases
    ]
    model = onnx.load_from_string(q4nx_model(weights, a, bias=biases[0], constants=("W",)))
    model.graph.initializer.append(onnx_tensor("bias", biases[0]))
    session = open_session(model.SerializeToString())
    for given, y in (({}, expected[0]), ({"bias": biases[1]}, expected[1]), ({}, expected[0])):
        np.testing.assert_array_equal(session.run(None, {"A": a} | given)[0], y)


def test_a_tensor_may_have_more_dimensions_than_fit_in_place() -> None:
    a, weights = activations(2, 256), make_weights(64, 256)
    shape = (1, 1, 1, 1, 1, 1, 1, 2, 256)
    wide = a.reshape(shape)
    y = run(open_session(q4nx_model(weights, wide)), {"A": wide})["Y"]
    assert y.shape == (*shape[:-1], 64)
    expected = run(open_session(q4nx_model(weights, a)), {"A": a})["Y"]
    np.testing.assert_array_equal(y.reshape(2, 64), expected)
