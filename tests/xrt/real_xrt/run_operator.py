"""Runs one aie.Q4NXMatMul on the target of the command line, and prints the result as JSON.

    python run_operator.py TARGET

{"libraries": paths of all libraries that the process has loaded, "y": the result's bytes in
hexadecimal}, or "error" with the exception instead of "y".
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ort_aie_ep import _native
from ort_aie_ep.runtime.sessions import Options, open_operator

K, N = 512, 64


def model() -> bytes:
    """A graph with one Q4NXMatMul: A (1, K) float32 to Y (1, N)."""
    rng = np.random.default_rng(6)
    scales = rng.uniform(0.01, 0.1, (N, K // 32)).astype(np.float32).view(np.uint32) >> 16
    minima = np.full((N, K // 32), 0xBF00, np.uint16)  # -0.5 as bfloat16
    codes = rng.integers(0, 16, (N, K), np.uint8)
    blocks = _native.pack(codes, scales.astype(np.uint16), minima)
    a = ir.Value(name="A", shape=ir.Shape((1, K)), type=ir.TensorType(ir.DataType.FLOAT))
    w = ir.Value(name="W", const_value=ir.tensor(blocks, name="W"))
    attributes = {"K": K, "N": N, "accuracy_level": 0, "format": _native.FORMAT}
    node = ir.node("Q4NXMatMul", [a, w], attributes, domain="aie", version=1)
    y = node.outputs[0]
    y.name, y.shape, y.type = "Y", ir.Shape((1, N)), ir.TensorType(ir.DataType.FLOAT)
    graph = ir.Graph([a], [y], nodes=[node], initializers=[w], opset_imports={"": 22, "aie": 1})
    content: bytes = ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString()
    return content


def main(target: str) -> None:
    report: dict[str, object] = {}
    a = np.random.default_rng(7).standard_normal((1, K), np.float32)
    try:
        session = open_operator(model(), Options(target=target, numerics="bf16"))
        report["y"] = np.asarray(session.run(None, {"A": a})[0]).tobytes().hex()
    except Exception as error:  # ort_aie_ep's and ONNX Runtime's have no common base
        report["error"] = str(error)
    maps = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    report["libraries"] = sorted({fields[5] for fields in maps if ".so" in fields[-1]})
    print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
