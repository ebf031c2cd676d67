"""Small random models: DAGs of operators that ort_aie_ep claims and of others, in any order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from op_models import model_of

WIDTH = 32  # of all activations, and a block of the weights
ROWS = ("batch", "tokens")
_UNARY = ("Relu", "Sigmoid", "Neg", "Abs", "Identity")
_BINARY = ("Add", "Mul", "Sub")
_KINDS = (
    "matmul", "matmul", "unary", "binary", "norm", "norm_sum", "row", "reshape", "flatten", "last",
    "float_matmul", "transpose",
)  # fmt: skip


class RandomGraph:
    """A model of `nodes` random operators: float `x` (batch, tokens, 32) to `y`, of the same
    type, and perhaps to what an inner node writes."""

    def __init__(self, seed: int, nodes: int | None = None) -> None:
        self._rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._values: list[str] = ["x"]
        self._tied: list[tuple[str, str]] = []  # codes and scales of the matrices
        if self._chance(0.4):
            self._embedding()
        for _ in range(nodes or int(self._rng.integers(1, 9))):
            getattr(self, "_" + str(self._rng.choice(_KINDS)))()
        last = self._values[-1]
        if self._nodes and last != "x" and not self._chance(0.3):
            self._node("Identity", [last], output="y")
        else:
            self._node("Relu", [last], output="y")
        outputs = ["y"]
        if len(self._values) > 2 and self._chance(0.3):
            outputs.append(self._values[1])
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [*ROWS, WIDTH])]
        if any("ids" in node.input for node in self._nodes):
            inputs.append(helper.make_tensor_value_info("ids", TensorProto.INT64, ROWS))
        self.model = model_of(
            helper.make_graph(
                self._nodes, "random", inputs,
                [helper.make_tensor_value_info(name, TensorProto.FLOAT, [*ROWS, WIDTH])
                 for name in outputs],
                self._constants,
            )
        )  # fmt: skip

    def save(self, path: Path) -> Path:
        """Writes the model to a file."""
        onnx.save(self.model, path)
        return path

    def inputs(self, rows: int) -> dict[str, np.ndarray]:
        """A batch of one, with `rows` tokens."""
        rng = np.random.default_rng(rows)
        values = {
            "x": rng.standard_normal((1, rows, WIDTH), np.float32),
            "ids": rng.integers(0, WIDTH, (1, rows)),
        }
        return {value.name: values[value.name] for value in self.model.graph.input}

    def _chance(self, share: float) -> bool:
        return bool(self._rng.random() < share)

    def _any(self) -> str:
        # Mostly what came last, so that operators follow each other.
        return self._values[-1] if self._chance(0.6) else str(self._rng.choice(self._values))

    def _node(
        self, op: str, inputs: list[str], output: str = "", domain: str = "", **attributes: object
    ) -> str:
        # A third of the nodes have no name, as in many exports.
        name = "" if self._chance(0.3) else f"{op}_{len(self._nodes)}"
        output = output or f"v{len(self._nodes)}"
        self._nodes.append(
            helper.make_node(op, inputs, [output], name, domain=domain, **attributes)
        )
        return output

    def _keep(self, output: str) -> None:
        self._values.append(output)

    def _constant(self, array: np.ndarray) -> str:
        name = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(array, name))
        return name

    def _packed(self) -> tuple[str, str]:
        codes = self._constant(self._rng.integers(0, 256, (WIDTH, 1, WIDTH // 2), np.uint8))
        scales = self._rng.uniform(0.01, 0.05, (WIDTH, 1)).astype(np.float32)
        self._tied.append((codes, self._constant(scales)))
        return self._tied[-1]

    def _matmul(self) -> None:
        codes, scales = self._packed() if self._chance(0.8) or not self._tied else self._tied[0]
        self._keep(self._node(
            "MatMulNBits", [self._any(), codes, scales], domain="com.microsoft",
            K=WIDTH, N=WIDTH, bits=4, block_size=WIDTH,
        ))  # fmt: skip

    def _embedding(self) -> None:
        codes, scales = self._packed()
        shape = self._constant(np.array([WIDTH, WIDTH // 2]))
        rows = self._node("Reshape", [codes, shape])
        self._keep(self._node(
            "GatherBlockQuantized", [rows, "ids", scales], domain="com.microsoft",
            bits=4, block_size=WIDTH, gather_axis=0, quantize_axis=1,
        ))  # fmt: skip

    def _unary(self) -> None:
        self._keep(self._node(str(self._rng.choice(_UNARY)), [self._any()]))

    def _binary(self) -> None:
        # Mul of what grows would leave float32's range.
        op = str(self._rng.choice(_BINARY))
        factor = self._node("Sigmoid", [self._any()]) if op == "Mul" else self._any()
        self._keep(self._node(op, [self._any(), factor]))

    def _weight(self) -> str:
        return self._constant(self._rng.uniform(0.5, 1.5, WIDTH).astype(np.float32))

    def _norm(self) -> None:
        inputs = [self._any(), self._weight()]
        self._keep(self._node("SimplifiedLayerNormalization", inputs, axis=-1, epsilon=1e-5))

    def _norm_sum(self) -> None:
        self._keep(self._node(
            "SkipSimplifiedLayerNormalization", [self._any(), self._any(), self._weight()],
            domain="com.microsoft", epsilon=1e-5,
        ))  # fmt: skip

    def _row(self) -> None:
        self._keep(self._node("Add", [self._any(), self._weight()]))

    def _reshape(self) -> None:
        shape = self._constant(np.array([0, 0, WIDTH if self._chance(0.5) else -1]))
        self._keep(self._node("Reshape", [self._any(), shape]))

    def _flatten(self) -> None:
        """Rows of a matrix and back, through the shape of the input."""
        flat = self._node("Reshape", [self._any(), self._constant(np.array([-1, WIDTH]))])
        self._keep(self._node("Reshape", [flat, self._node("Shape", ["x"])]))

    def _last(self) -> None:
        """A scalar beside the tensors: the sum of all values."""
        total = self._node("ReduceMean", [self._any()], keepdims=0)
        scalar = self._node("Reshape", [total, self._constant(np.array([], np.int64))])
        self._keep(self._node("Add", [self._any(), scalar]))

    def _float_matmul(self) -> None:
        weight = self._rng.standard_normal((WIDTH, WIDTH), np.float32) / 6
        self._keep(self._node("MatMul", [self._any(), self._constant(weight)]))

    def _transpose(self) -> None:
        across = self._node("Transpose", [self._any()], perm=[1, 0, 2])
        self._keep(self._node("Transpose", [across], perm=[1, 0, 2]))
