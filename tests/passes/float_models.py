"""Graphs with float weights, as exporters write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper
from op_models import FLOAT32, ONNX_TYPES, model_of, onnx_tensor

Array = npt.NDArray[Any]


def matrix(k: int, n: int, dtype: np.dtype[Any] = FLOAT32) -> Array:
    """Weights (K, N) that give outputs near one for inputs near one."""
    values = np.random.default_rng([k, n]).standard_normal((k, n)) / np.sqrt(k)
    weights: Array = values.astype(np.float32).astype(dtype)
    return weights


def graph_model(
    nodes: list[onnx.NodeProto],
    initializers: dict[str, Array],
    *,
    x: tuple[int | str, ...],
    outputs: dict[str, tuple[int | str, ...]],
    dtype: np.dtype[Any] = FLOAT32,
    more_inputs: tuple[onnx.ValueInfoProto, ...] = (),
) -> onnx.ModelProto:
    """A model with input x, other inputs, and outputs, all of `dtype`."""
    element = ONNX_TYPES[dtype]
    graph = helper.make_graph(
        nodes,
        "main_graph",
        [helper.make_tensor_value_info("x", element, x), *more_inputs],
        [helper.make_tensor_value_info(name, element, dims) for name, dims in outputs.items()],
        [onnx_tensor(name, array) for name, array in initializers.items()],
    )
    return model_of(graph)


def matmul_model(
    k: int = 320,
    n: int = 96,
    *,
    dtype: np.dtype[Any] = FLOAT32,
    behind: str = "",
) -> onnx.ModelProto:
    """x -> MatMul -> y, the weights (K, N) plain or `behind` an Identity, Transpose or Constant."""
    weights = matrix(k, n, dtype)
    initializers = {"proj.weight": weights}
    nodes, name = [], "proj.weight"
    if behind == "Constant":
        del initializers["proj.weight"]
        tensor = onnx_tensor("value", weights)
        nodes.append(helper.make_node("Constant", [], ["w"], name="/proj/Constant", value=tensor))
    elif behind == "Transpose":
        initializers["proj.weight"] = np.ascontiguousarray(weights.T)
        nodes.append(helper.make_node("Transpose", [name], ["w"], name="/proj/T", perm=[1, 0]))
    elif behind:
        nodes.append(helper.make_node(behind, [name], ["w"], name="/proj/Identity"))
    if behind:
        name = "w"
    nodes.append(helper.make_node("MatMul", ["x", name], ["y"], name="/proj/MatMul"))
    return graph_model(
        nodes,
        initializers,
        x=("batch", "sequence", k),
        outputs={"y": ("batch", "sequence", n)},
        dtype=dtype,
    )


def tied_float_model(vocab: int = 200, hidden: int = 64) -> onnx.ModelProto:
    """x + Gather(E, ids) -> MatMul(Transpose(E)), and MatMul(Transpose(Identity(E)))."""
    table = matrix(hidden, vocab).T
    nodes = [
        helper.make_node("Gather", ["embed", "ids"], ["x1"], name="/embed/Gather"),
        helper.make_node("Add", ["x", "x1"], ["x2"], name="/embed/Add"),
        helper.make_node("Transpose", ["embed"], ["w1"], name="/lm_head/Transpose", perm=[1, 0]),
        helper.make_node("MatMul", ["x2", "w1"], ["logits"], name="/lm_head/MatMul"),
        helper.make_node("Identity", ["embed"], ["same"], name="/other/Identity"),
        helper.make_node("Transpose", ["same"], ["w2"], name="/other/Transpose"),
        helper.make_node("MatMul", ["x2", "w2"], ["other"], name="/other/MatMul"),
    ]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "sequence"])
    dims = ("batch", "sequence", vocab)
    return graph_model(
        nodes,
        {"embed": np.ascontiguousarray(table)},
        x=("batch", "sequence", hidden),
        outputs={"logits": dims, "other": dims},
        more_inputs=(ids,),
    )
