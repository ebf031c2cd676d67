"""com.microsoft.MultiHeadAttention: what becomes aie.FlowAttention, compared with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from builder_nodes import matmul_nbits, projection_weights
from onnx import helper
from op_models import ONNX_TYPES, model_of, onnx_tensor, open_session, run

from ort_aie_ep.graph_passes import run_passes

Array = npt.NDArray[Any]
INPUTS = ["query", "key", "value", "bias", "key_padding_mask", "attention_bias", "past_key",
          "past_value"]  # fmt: skip
OUTPUTS = ["output", "present_key", "present_value", "qk"]
H = 3


def feeds(
    *, batch: int = 2, queries: int = 40, keys: int | None = None, dim: int = 72, bias: bool = False
) -> dict[str, Array]:
    rng = np.random.default_rng([batch, queries, dim])
    made = {
        name: rng.standard_normal((batch, tokens, H * dim)).astype(np.float32)
        for name, tokens in (("query", queries), ("key", keys or queries),
                             ("value", keys or queries))
    }  # fmt: skip
    if bias:
        made["bias"] = rng.standard_normal(3 * H * dim).astype(np.float32)
    return made


def attention(
    inputs: dict[str, Array], *, outputs: int = 1, constant_bias: bool = True, **attributes: Any
) -> onnx.ModelProto:
    names = [name if name in inputs else "" for name in INPUTS]
    while not names[-1]:
        names.pop()
    node = helper.make_node(
        "MultiHeadAttention", names, OUTPUTS[:outputs], name="/attention", domain="com.microsoft",
        num_heads=H, **attributes,
    )  # fmt: skip
    constants = ["bias"] if constant_bias else []
    graph = helper.make_graph(
        [node],
        "graph",
        [
            helper.make_tensor_value_info(
                name, ONNX_TYPES[x.dtype],
                ["batch", f"tokens_{x.shape[1]}", x.shape[2]] if x.ndim == 3 else x.shape,
            )
            for name, x in inputs.items()
            if name not in constants
        ],
        [helper.make_tensor_value_info(name, 1, None) for name in OUTPUTS[:outputs]],
        [onnx_tensor(name, inputs[name]) for name in constants if name in inputs],
    )  # fmt: skip
    return model_of(graph)


def compiled(model: onnx.ModelProto) -> tuple[ir.Model, dict[str, str]]:
    graph_model = ir.from_proto(model)
    outcomes = run_passes(graph_model).outcomes.values()
    return graph_model, {o.node: o.becomes or o.reason for o in outcomes}


def check(model: onnx.ModelProto, inputs: dict[str, Array]) -> ir.Model:
    """Compares with ONNX Runtime. Each side may be off by the rounding of D products of vectors no
    longer than 32 (each bias has its own deviation), scaled by 1 / sqrt(D), and of sums over fewer
    than 600 keys of values below 8."""
    changed, outcomes = compiled(model)
    assert outcomes["/attention"] == "aie.FlowAttention"
    actual = run(open_session(ir.to_proto(changed).SerializeToString()), inputs)
    dim = inputs["query"].shape[2] // H
    scale = next((a.f for a in model.graph.node[0].attribute if a.name == "scale"), dim**-0.5)
    bound = 2 * (2 * (dim + 16) * 32**2 * scale + 600 + 8) * 2**-24 * 8
    for name, theirs in run(open_session(model.SerializeToString()), inputs).items():
        assert actual[name].shape == theirs.shape
        assert np.abs(actual[name] - theirs).max() <= bound, name
    return changed


@pytest.mark.parametrize("dim", [8, 64, 72, 80])
@pytest.mark.parametrize("queries", [1, 40, 300])
@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_of_a_vision_tower(dim: int, queries: int, bias: bool) -> None:
    inputs = feeds(dim=dim, queries=queries, bias=bias)
    changed = check(attention(inputs), inputs)
    assert [node.op_type for node in changed.graph] == ["Add"] * (3 * bias) + ["FlowAttention"]


@pytest.mark.parametrize("keys", [7, 90])
def test_keys_of_another_sequence(keys: int) -> None:
    inputs = feeds(keys=keys)
    check(attention(inputs), inputs)


def test_presents_scale_and_causality() -> None:
    inputs = feeds(bias=True)
    check(attention(inputs, outputs=3, unidirectional=1, scale=0.2), inputs)


@pytest.mark.parametrize("shape", [(1, 1, 40, 40), (2, 3, 40, 40), (1, 3, 40, 40), (2, 1, 40, 40)])
def test_an_attention_bias(shape: tuple[int, ...]) -> None:
    inputs = feeds()
    inputs["attention_bias"] = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    check(attention(inputs), inputs)


def test_its_bias_becomes_part_of_the_projections() -> None:
    k, n = 96, H * 32
    nodes, constants = [], {"bias": np.linspace(-1, 1, 3 * n).astype(np.float32)}
    for seed, name in enumerate(INPUTS[:3]):
        weights = projection_weights(n, k, prefix=name, seed=seed)
        constants |= weights
        nodes.append(matmul_nbits("x", name, weights, n, k, name=f"/{name}"))
    nodes.append(
        helper.make_node("MultiHeadAttention", INPUTS[:4], ["output"], name="/attention",
                         domain="com.microsoft", num_heads=H)
    )  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", 1, ["batch", "tokens", k])],
        [helper.make_tensor_value_info("output", 1, ["batch", "tokens", n])],
        [onnx_tensor(name, x) for name, x in constants.items()],
        value_info=[
            helper.make_tensor_value_info(name, 1, ["batch", "tokens", n]) for name in INPUTS[:3]
        ],
    )
    changed, _ = compiled(model_of(graph))
    assert [node.op_type for node in changed.graph] == [*["Q4NXMatMul"] * 3, "FlowAttention"]


@pytest.mark.parametrize(
    ("change", "options", "reason"),
    [
        ({"key_padding_mask": np.ones((2, 40), np.int32)}, {}, "key_padding_mask adds mask_filter"),
        ({"past_key": np.zeros((2, H, 4, 72), np.float32),
          "past_value": np.zeros((2, H, 4, 72), np.float32)}, {"outputs": 3}, "it has a past"),
        ({}, {"outputs": 4}, "output_qk asks for the score matrix"),
        ({"value": np.zeros((2, 40, H * 64), np.float32)}, {},
         "value has 192 channels, query 216; expected as many"),
        ({"bias": np.zeros(3 * H * 72, np.float32)}, {"constant_bias": False},
         "its bias is not a constant (648)"),
        ({name: np.zeros((2, 40, H * 12), np.float32) for name in INPUTS[:3]}, {},
         "heads have 12 channels; expected a multiple of 8"),
        ({"query": np.zeros((2, 20, H * 72), np.float32)}, {"unidirectional": 1},
         "unidirectional=1 with keys that may be more or fewer than the queries"),
        ({"query": np.zeros((2, 40, H, 3, 72), np.float32), "key": None, "value": None}, {},
         "query, key and value are not known to be three tensors"),
    ],
)  # fmt: skip
def test_what_stays_says_why(
    change: dict[str, Array | None], options: dict[str, Any], reason: str
) -> None:
    inputs = {name: x for name, x in (feeds() | change).items() if x is not None}
    changed, outcomes = compiled(attention(inputs, **options))
    assert outcomes["/attention"].startswith(reason)
    assert [node.op_type for node in changed.graph] == ["MultiHeadAttention"]
