"""Projections that share some of their tensors: each is packed as its own node reads it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from builder_nodes import matmul_nbits, projection_weights
from expert_models import Experts, experts_model, feeds_of, needs_qmoe
from onnx import TensorProto, helper, numpy_helper
from op_models import ORT_VERSION, model_of, onnx_tensor, open_session, run
from provider_calls import provider_session, registered

from ort_aie_ep.graph_passes import run_passes

Array = npt.NDArray[Any]
N = 64


@pytest.fixture(scope="module", autouse=True)
def provider() -> Iterator[None]:
    with registered() if ORT_VERSION >= (1, 24) else nullcontext():
        yield


def check(model: onnx.ModelProto, feeds: dict[str, Array], expected: dict[str, str]) -> None:
    """Compares with ONNX Runtime, all of whose nodes become the operators of `expected`.

    Weights and activations are rounded to bfloat16, of experts twice: four roundings by at most
    2^-8 of a norm.
    """
    changed = ir.from_proto(model)
    report = run_passes(changed)
    assert {o.node: o.becomes for o in report.outcomes.values()} == expected
    wanted = run(open_session(model.SerializeToString()), feeds)
    doors = [run(open_session(ir.to_proto(changed).SerializeToString()), feeds)]
    if ORT_VERSION >= (1, 24):
        doors.append(run(provider_session(model.SerializeToString()), feeds))
    for actual in doors:
        for name, value in wanted.items():
            error = np.linalg.norm(actual[name] - value) / np.linalg.norm(value)
            assert error <= 2.0**-6, name


@pytest.mark.parametrize(
    "other",
    [
        {"scales": 2.0},
        {"bits": 8, "k": 64, "block_size": 32},  # the same bytes as 64 codes of 4 bits
        {"k": 100, "block_size": 64},
    ],
    ids=["scales", "bits", "in-features"],
)
def test_products_that_read_the_same_codes_in_another_way(other: dict[str, Any]) -> None:
    weights = projection_weights(N, 128, block_size=64)
    codes, scales = weights
    given = dict(weights)
    if "scales" in other:
        given["more"] = weights[scales] * np.float32(other["scales"])
    k = other.get("k", 128)
    second = [codes, "more" if "more" in given else scales]
    nodes = [
        matmul_nbits("x", "y", weights, N, 128, block_size=64, name="one", accuracy_level=0),
        helper.make_node(
            "MatMulNBits", ["part", *second], ["z"], name="two", domain="com.microsoft", K=k, N=N,
            bits=other.get("bits", 4), block_size=other.get("block_size", 64),
        ),
    ]  # fmt: skip
    x = np.random.default_rng(0).standard_normal((1, 3, 128)).astype(np.float32)
    feeds = {"x": x, "part": x[..., :k]}
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in feeds.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "z")],
        [onnx_tensor(name, array) for name, array in given.items()],
    )
    check(model_of(graph), feeds, {"one": "aie.Q4NXMatMul", "two": "aie.Q4NXMatMul"})


@needs_qmoe
def test_experts_with_the_same_codes_and_other_scales() -> None:
    case = Experts()
    model = experts_model(case)
    (node,) = model.graph.node
    scales = next(t for t in model.graph.initializer if t.name == node.input[3])
    more = numpy_helper.from_array(numpy_helper.to_array(scales) * 2, "more")
    model.graph.initializer.append(more)
    second = onnx.NodeProto()
    second.CopyFrom(node)
    second.name, second.input[3], second.output[0] = "two", "more", "z"
    model.graph.node.append(second)
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    check(model, feeds_of(case, 3), {node.name: "aie.Q4NXMoE", "two": "aie.Q4NXMoE"})


def test_a_tensor_that_has_the_name_of_a_packed_one_stays() -> None:
    weights = projection_weights(N, 128)
    taken = f"{next(iter(weights))}_q4nx"
    nodes = [
        matmul_nbits("x", "y", weights, N, 128, name="one", accuracy_level=0),
        helper.make_node("Add", ["y", taken], ["z"], name="sum"),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 128])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
        [onnx_tensor(name, array) for name, array in weights.items()]
        + [onnx_tensor(taken, np.ones((2, N), np.float32))],
    )
    x = np.random.default_rng(0).standard_normal((2, 128)).astype(np.float32)
    check(model_of(graph), {"x": x}, {"one": "aie.Q4NXMatMul"})
