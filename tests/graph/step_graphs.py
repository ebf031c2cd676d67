"""Graphs as src/graph receives them, for tests of fusions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ort_aie_ep import _native

Array = npt.NDArray[Any]
Shape = Sequence[int | str | None] | None

FLOAT, INT64, FLOAT16 = 1, 7, 10  # as ONNX numbers types
K, N = 96, 64
ROWS: Shape = ("batch", "sequence", K)
WIDE: Shape = ("batch", "sequence", N)


@dataclass
class Graph:
    """Nodes and values, in order; `x` and `r` (batch, sequence, K) are inputs."""

    nodes: list[dict[str, Any]] = field(default_factory=list)
    values: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("x", "r"):
            self.value(name, ROWS)

    def value(
        self, name: str, shape: Shape, type: int = FLOAT, constant: Array | bool | None = None
    ) -> str:
        self.values[name] = {
            "name": name,
            "type": type,
            "shape": None if shape is None else list(shape),
            "constant": constant,
            "wanted": False,
            "logits": False,
        }
        return name

    def weight(self, name: str, *shape: int, type: int = FLOAT) -> str:
        """A constant whose elements nothing reads."""
        return self.value(name, shape, type, True)

    def sizes(self, name: str, *sizes: int) -> str:
        return self.value(name, [len(sizes)], INT64, np.array(sizes, np.int64))

    def node(
        self,
        op_type: str,
        inputs: Sequence[str],
        *outputs: str,
        domain: str = "",
        **attributes: Any,
    ) -> str:
        """Named after its first output. Outputs without a description are (batch, sequence, N)
        floats."""
        self.nodes.append(
            {
                "name": f"/{outputs[0]}",
                "domain": domain,
                "op_type": op_type,
                "attributes": attributes,
                "inputs": list(inputs),
                "outputs": list(outputs),
            }
        )
        for name in outputs:
            if name and name not in self.values:
                self.value(name, WIDE)
        return outputs[0]

    def step(self, op: str, inputs: Sequence[str], *outputs: str, **attributes: Any) -> str:
        return self.node(op, inputs, *outputs, domain="aie", **{"format": 1, **attributes})

    def projection(
        self, a: str, y: str, *others: str, op: str = "Q4NXMatMul", n: int = N, **attributes: Any
    ) -> str:
        """A projection with W, which is named after `y`, and the inputs after it."""
        w = self.weight(f"{y}.W", -(-n // 32), 1, 5120, type=2)
        if y not in self.values:
            self.value(y, ("batch", "sequence", n))
        if op == "Q4NXMatMul":
            attributes = {"accuracy_level": 4, "symmetric": 1, **attributes}
        return self.step(op, [a, w, *others], y, K=K, N=n, **attributes)

    def fused(self, *wanted: str) -> list[Step]:
        """The result of the fusions if these values are outputs of the graph."""
        for name in wanted:
            self.values[name]["wanted"] = True
        return [Step(**item) for item in _native.fused_steps(self.nodes, [*self.values.values()])]


@dataclass
class Step:
    """An item of the result."""

    op: str
    name: str
    attributes: dict[str, int | float | str]
    reads: list[str]
    writes: list[str]
    nodes: list[str]
    places: list[int]
    why_not: str
    apart: str


def ops(steps: Sequence[Step]) -> list[str]:
    """An empty one for a node that stays."""
    return [step.op for step in steps]
