"""Small graphs of nodes that onnxruntime-genai's model builder writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper
from op_models import FLOAT32, ONNX_TYPES, model_of, onnx_tensor

Array = npt.NDArray[Any]


def projection_weights(
    n: int,
    k: int,
    *,
    block_size: int = 32,
    bits: int = 4,
    dtype: np.dtype[Any] = FLOAT32,
    zero_points: bool | np.dtype[Any] = False,
    prefix: str = "proj",
    seed: int = 0,
) -> dict[str, Array]:
    """Initializers B, scales and perhaps zero points, in the order of MatMulNBits' inputs.

    `zero_points`: packed, or one value of this type for each scale.
    """
    rng = np.random.default_rng([seed, n, k])
    blocks = -(-k // block_size)
    weights = {
        f"{prefix}.B": rng.integers(0, 256, (n, blocks, block_size * bits // 8), np.uint8),
        f"{prefix}.scales": rng.uniform(0.01, 0.1, (n, blocks)).astype(np.float32).astype(dtype),
    }
    if isinstance(zero_points, np.dtype):
        points = rng.uniform(0, 2**bits - 1, (n, blocks)).astype(np.float32)
        weights[f"{prefix}.zero_points"] = points.astype(zero_points)
    elif zero_points:
        weights[f"{prefix}.zero_points"] = rng.integers(
            0, 256, (n, -(-blocks * bits // 8)), np.uint8
        )
    return weights


def matmul_nbits(
    a: str, y: str, weights: dict[str, Array], n: int, k: int, *, block_size: int = 32,
    name: str = "/model/proj/MatMul_Q4", inputs: list[str] | None = None, **attributes: int,
) -> onnx.NodeProto:  # fmt: skip
    given: dict[str, Any] = {"K": k, "N": n, "block_size": block_size, "bits": 4}
    given |= {"accuracy_level": 4} | attributes
    names = [a, *weights, *(inputs or [])]
    return helper.make_node("MatMulNBits", names, [y], name=name, domain="com.microsoft", **given)


def projection_model(
    n: int = 40,
    k: int = 320,
    *,
    dtype: np.dtype[Any] = FLOAT32,
    block_size: int = 32,
    bits: int = 4,
    zero_points: bool | np.dtype[Any] = False,
    bias: bool = False,
    **attributes: int,
) -> onnx.ModelProto:
    """x -> MatMulNBits -> y."""
    weights = projection_weights(
        n, k, block_size=block_size, bits=bits, dtype=dtype, zero_points=zero_points
    )
    extra: dict[str, Array] = {}
    names: list[str] = []
    if bias:
        extra["bias"] = np.linspace(-1, 1, n).astype(dtype)
        names = [*([] if zero_points else [""]), "", "bias"]
    given: dict[str, Any] = {"block_size": block_size, "inputs": names, "bits": bits}
    node = matmul_nbits("x", "y", weights, n, k, **(given | attributes))
    initializers = weights | extra
    element = ONNX_TYPES[dtype]
    graph = helper.make_graph(
        [node],
        "main_graph",
        [helper.make_tensor_value_info("x", element, ["batch", "sequence", k])],
        [helper.make_tensor_value_info("y", element, ["batch", "sequence", n])],
        [onnx_tensor(key, x) for key, x in initializers.items()],
    )
    return model_of(graph)


def attention_model(
    *,
    cache: int = TensorProto.FLOAT,
    outputs: int = 3,
    scales: bool = False,
    **attributes: Any,
) -> onnx.ModelProto:
    """A GroupQueryAttention with packed QKV: 4 query heads, 2 KV heads."""
    names = ["qkv", "", "", "past_key", "past_value", "seqlens_k", "total", "cos", "sin"]
    if scales:
        names += ["", "", "", "k_scale", "v_scale"]
    two_in_a_byte = attributes.get("kv_cache_bit_width") == 4
    past = [2, 2, "past", 16 if two_in_a_byte else 32]
    graph_inputs: list[tuple[str, int, list[Any]]] = [
        ("qkv", TensorProto.FLOAT, ["batch", "sequence", 8 * 32]),
        ("past_key", cache, past),
        ("past_value", cache, past),
        ("seqlens_k", TensorProto.INT32, ["batch"]),
        ("total", TensorProto.INT32, []),
    ]
    out_names = ["output", "present_key", "present_value", "output_qk"][:outputs]
    node = helper.make_node(
        "GroupQueryAttention", names, out_names, name="/model/attn/GroupQueryAttention",
        domain="com.microsoft",
        **({"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1} | attributes),
    )  # fmt: skip
    initializers: dict[str, Array] = {
        "cos": np.ones((64, 16), np.float32),
        "sin": np.zeros((64, 16), np.float32),
    }
    if scales:
        initializers |= {"k_scale": np.ones(1, np.float32), "v_scale": np.ones(1, np.float32)}
    types = [TensorProto.FLOAT, cache, cache, TensorProto.FLOAT]
    graph = helper.make_graph(
        [node],
        "main_graph",
        [helper.make_tensor_value_info(*value) for value in graph_inputs],
        [
            helper.make_tensor_value_info(name, element, [f"{name}_{i}" for i in range(rank)])
            for name, element, rank in zip(out_names, types, (3, 4, 4, 4), strict=False)
        ],
        [onnx_tensor(name, array) for name, array in initializers.items()],
    )
    return model_of(graph)


def tied_model(
    n: int = 70,
    k: int = 320,
    *,
    block_size: int = 32,
    tied: bool = True,
) -> onnx.ModelProto:
    """ids -> GatherBlockQuantized(Reshape(lm_head)) -> MatMulNBits(lm_head) -> logits."""
    weights = projection_weights(n, k, block_size=block_size, prefix="lm_head")
    blocks = -(-k // block_size)
    initializers = dict(weights)
    initializers["shape"] = np.array([n, blocks * block_size // 2], np.int64)
    source = "lm_head.B"
    if not tied:
        source = "embedding.B"
        initializers[source] = weights["lm_head.B"] ^ 1
    nodes = [
        helper.make_node("Reshape", [source, "shape"], ["data"], name="/model/embed/Reshape"),
        helper.make_node(
            "GatherBlockQuantized",
            ["data", "ids", *list(weights)[1:]],
            ["hidden"],
            name="/model/embed/Gather",
            domain="com.microsoft",
            bits=4,
            block_size=block_size,
            gather_axis=0,
            quantize_axis=1,
        ),
        matmul_nbits("hidden", "logits", weights, n, k, block_size=block_size,
                     name="/lm_head/MatMul_Q4"),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "main_graph",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "sequence"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "sequence", n])],
        [onnx_tensor(key, array) for key, array in initializers.items()],
    )
    return model_of(graph)


def save(model: onnx.ModelProto, folder: Path, *, external: bool = True) -> Path:
    """Writes model.onnx, and its weights into model.onnx.data; returns the .onnx file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    onnx.save_model(
        model, path, save_as_external_data=external, location="model.onnx.data", size_threshold=100
    )
    return path
