"""Models with LoRA weights that a host may replace: inputs with defaults, as Olive makes them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper

Floats = npt.NDArray[np.float32]
RANK = 8


def with_branches(source: Path, folder: Path, *ends: str) -> dict[str, Floats]:
    """Copies a builder's folder to `folder` and adds a LoRA branch to each MatMulNBits whose name
    has one of `ends`: Y = MatMulNBits(X) + MatMul(MatMul(X, A), B).

    A (K, rank) and B (rank, N) are inputs whose defaults have rank 0. Returns an adapter: random
    values for them of rank RANK.
    """
    shutil.copytree(source, folder)
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    graph, adapter = model.graph, dict[str, Floats]()
    rng = np.random.default_rng(3)
    for node in list(graph.node):
        if node.op_type != "MatMulNBits" or not any(end in node.name for end in ends):
            continue
        size = {a.name: a.i for a in node.attribute}
        stem, (y,) = node.name.removesuffix("/MatMul_Q4"), node.output
        a, b = (f"{stem[1:].replace('/', '.')}.lora_{which}.weight" for which in "AB")
        for name, (rows, cols) in {a: (size["K"], 0), b: (0, size["N"])}.items():
            empty = np.zeros((rows, cols), np.float32)
            graph.initializer.append(onnx.numpy_helper.from_array(empty, name))
            dims = [rows or "lora_rank", cols or "lora_rank"]
            graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))
            shape = (rows or RANK, cols or RANK)
            adapter[name] = (0.15 * rng.standard_normal(shape)).astype(np.float32)
        node.output[0] = f"{stem}/base"
        nodes = [
            helper.make_node(
                "MatMul", [node.input[0], a], [f"{stem}/a"], name=f"{stem}/lora_A/MatMul"
            ),
            helper.make_node(
                "MatMul", [f"{stem}/a", b], [f"{stem}/b"], name=f"{stem}/lora_B/MatMul"
            ),
            helper.make_node("Add", [f"{stem}/base", f"{stem}/b"], [y], name=f"{stem}/lora/Add"),
        ]
        place = list(graph.node).index(node) + 1
        for offset, new in enumerate(nodes):
            graph.node.insert(place + offset, new)
    onnx.save(model, folder / "model.onnx")
    return adapter


def write_adapter(values: dict[str, Floats], path: Path) -> Path:
    """Writes an .onnx_adapter file."""
    adapter = onnxruntime.AdapterFormat()
    adapter.set_parameters(
        {k: onnxruntime.OrtValue.ortvalue_from_numpy(v) for k, v in values.items()}
    )
    adapter.export_adapter(str(path))
    return path
