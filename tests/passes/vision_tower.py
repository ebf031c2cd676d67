"""A tiny vision tower: patch embedding, layers of attention without a mask and an MLP, a norm."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx
from float_models import graph_model
from onnx import helper

Floats = npt.NDArray[np.float32]


class Tower:
    """Nodes and weights under construction; `products` counts the multiplications by weights."""

    def __init__(self, hidden: int, heads: int, seed: int = 0) -> None:
        self.hidden, self.heads, self.products = hidden, heads, 0
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Floats] = {}
        self._rng = np.random.default_rng(seed)

    def random(self, name: str, *shape: int, mean: float = 0, deviation: float = 0.1) -> str:
        """An initializer."""
        values = mean + deviation * self._rng.standard_normal(shape)
        self.weights[name] = values.astype(np.float32)
        return name

    def node(self, op: str, inputs: list[str], name: str, domain: str = "", **more: object) -> str:
        """A node's output."""
        self.nodes.append(
            helper.make_node(op, inputs, [f"{name}.out"], name=name, domain=domain, **more)
        )
        return f"{name}.out"

    def linear(self, x: str, k: int, n: int, name: str) -> str:
        """A MatMul and a bias, as exporters write nn.Linear."""
        self.products += 1
        weight = self.random(f"{name}.weight", k, n, deviation=k**-0.5)
        product = self.node("MatMul", [x, weight], f"{name}/MatMul")
        return self.node("Add", [self.random(f"{name}.bias", n), product], f"{name}/Add")

    def norm(self, x: str, name: str) -> str:
        """LayerNormalization."""
        weights = [self.random(f"{name}.weight", self.hidden, mean=1)]
        weights.append(self.random(f"{name}.bias", self.hidden))
        return self.node("LayerNormalization", [x, *weights], name, epsilon=1e-6)

    def layer(self, x: str, name: str, ffn: int) -> str:
        """Attention and MLP, each with a residual and a norm before it."""
        h = self.norm(x, f"{name}/norm1")
        qkv = [self.linear(h, self.hidden, self.hidden, f"{name}/{part}") for part in "qkv"]
        attended = self.node(
            "MultiHeadAttention", qkv, f"{name}/attention", "com.microsoft", num_heads=self.heads
        )
        h = self.linear(attended, self.hidden, self.hidden, f"{name}/out")
        x = self.node("Add", [x, h], f"{name}/residual1")
        h = self.linear(self.norm(x, f"{name}/norm2"), self.hidden, ffn, f"{name}/fc1")
        h = self.node("Gelu", [h], f"{name}/gelu", approximate="tanh")
        h = self.linear(h, ffn, self.hidden, f"{name}/fc2")
        return self.node("Add", [x, h], f"{name}/residual2")


def vision_tower(
    patches: int = 9, pixels: int = 75, hidden: int = 64, ffn: int = 136, layers: int = 2
) -> tuple[onnx.ModelProto, int]:
    """x (batch, patches, pixels of a patch) -> features (batch, patches, hidden). Also returns the
    number of products with weights."""
    tower = Tower(hidden, heads=2)
    x = tower.linear("x", pixels, hidden, "/embed")
    position = tower.random("position", 1, patches, hidden)
    x = tower.node("Add", [x, position], "/embed/position")
    for i in range(layers):
        x = tower.layer(x, f"/layers.{i}", ffn)
    last = tower.norm(x, "/norm")
    tower.nodes[-1].output[0] = "features"
    assert last
    model = graph_model(
        tower.nodes,
        dict(tower.weights),
        x=("batch", patches, pixels),
        outputs={"features": ("batch", patches, hidden)},
    )
    return model, tower.products
