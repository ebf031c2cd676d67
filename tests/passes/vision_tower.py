"""A vision tower: patch embedding, layers of attention without a mask and an MLP, a norm."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx
from float_models import graph_model
from onnx import helper

Floats = npt.NDArray[np.float32]
# How exporters write attention: an operator of ONNX Runtime, torch's eager attention (keys
# transposed at once or in two steps), and what torch's exporter makes of its own attention.
SPELLINGS = ("MultiHeadAttention", "eager", "eager in two", "decomposed")


class Tower:
    """Nodes and weights under construction; `products` counts the multiplications by weights."""

    def __init__(self, hidden: int, heads: int, patches: int, spelling: str, seed: int = 0) -> None:
        self.hidden, self.heads, self.products = hidden, heads, 0
        self.dim, self.patches, self.spelling = hidden // heads, patches, spelling
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

    def number(self, name: str, *values: float, dtype: npt.DTypeLike = np.float32) -> str:
        """A constant number, or a vector of integers."""
        self.weights[name] = np.array(values[0] if dtype == np.float32 else values, dtype)
        return name

    def attention(self, qkv: list[str], name: str) -> str:
        """softmax(q . k^T / sqrt(dim)) . v of all heads, in one of SPELLINGS."""
        if self.spelling == "MultiHeadAttention":
            return self.node(self.spelling, qkv, name, "com.microsoft", num_heads=self.heads)
        shape = self.number(f"{name}/split", 0, 0, self.heads, self.dim, dtype=np.int64)
        tokens = [self.node("Reshape", [x, shape], f"{name}/{x}/split") for x in qkv]
        if self.spelling == "eager":
            swaps = [[0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]]
        else:
            swaps = [[0, 2, 1, 3]] * 3
        q, k, v = (
            self.node("Transpose", [x], f"{name}/{x}/heads", perm=perm)
            for x, perm in zip(tokens, swaps, strict=True)
        )
        attended = self._products(q, k, v, name)
        attended = self.node("Transpose", [attended], f"{name}/tokens", perm=[0, 2, 1, 3])
        shape = self.number(f"{name}/join", 0, 0, self.hidden, dtype=np.int64)
        return self.node("Reshape", [attended, shape], f"{name}/join")

    def _products(self, q: str, k: str, v: str, name: str) -> str:
        """The two products and the Softmax, of (batch, heads, patches, dim)."""
        if self.spelling == "eager in two":
            k = self.node("Transpose", [k], f"{name}/columns", perm=[0, 1, 3, 2])
        if self.spelling == "decomposed":
            flat = self.number(f"{name}/flat", -1, self.patches, self.dim, dtype=np.int64)
            columns = (-1, self.heads, self.dim, self.patches)
            back = self.number(f"{name}/back", *columns, dtype=np.int64)
            k = self.node("Reshape", [k, flat], f"{name}/flattened")
            k = self.node("Transpose", [k], f"{name}/turned", perm=[0, 2, 1])
            k = self.node("Reshape", [k, back], f"{name}/columns")
            root = self.number(f"{name}/root", self.dim**-0.25)
            q = self.node("Mul", [q, root], f"{name}/query")
            k = self.node("Mul", [root, k], f"{name}/key")
            scores = self.node("MatMul", [q, k], f"{name}/scores")
        else:
            scores = self.node("MatMul", [q, k], f"{name}/scores")
            scale = self.number(f"{name}/scale", self.dim**-0.5)
            scores = self.node("Mul", [scores, scale], f"{name}/scaled")
        probabilities = self.node("Softmax", [scores], name, axis=-1)
        return self.node("MatMul", [probabilities, v], f"{name}/values")

    def layer(self, x: str, name: str, ffn: int) -> str:
        """Attention and MLP, each with a residual and a norm before it."""
        h = self.norm(x, f"{name}/norm1")
        qkv = [self.linear(h, self.hidden, self.hidden, f"{name}/{part}") for part in "qkv"]
        h = self.linear(
            self.attention(qkv, f"{name}/attention"), self.hidden, self.hidden, f"{name}/out"
        )
        x = self.node("Add", [x, h], f"{name}/residual1")
        h = self.linear(self.norm(x, f"{name}/norm2"), self.hidden, ffn, f"{name}/fc1")
        h = self.node("Gelu", [h], f"{name}/gelu", approximate="tanh")
        h = self.linear(h, ffn, self.hidden, f"{name}/fc2")
        return self.node("Add", [x, h], f"{name}/residual2")


def vision_tower(
    patches: int = 9,
    pixels: int = 75,
    hidden: int = 64,
    ffn: int = 136,
    layers: int = 2,
    heads: int = 2,
    spelling: str = SPELLINGS[0],
) -> tuple[onnx.ModelProto, int]:
    """x (batch, patches, pixels of a patch) -> features (batch, patches, hidden). Also returns the
    number of products with weights."""
    tower = Tower(hidden, heads, patches, spelling)
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


def picture_encoder(
    side: int = 896, patch: int = 14, pool: int = 4, hidden: int = 72, text: int = 96
) -> tuple[onnx.ModelProto, int]:
    """pixels (batch, 3, side, side) -> features (batch, tokens, text), as Gemma 3 makes tokens of a
    picture: a convolution, a layer with a head, pooling, an RMS norm and a projection. Also returns
    the number of products with weights."""
    across = side // patch
    patches, tokens = across**2, (across // pool) ** 2
    tower = Tower(hidden, 1, patches, "eager")

    def shape(name: str, *dims: int) -> str:
        return tower.number(name, *dims, dtype=np.int64)

    weight = tower.random(
        "/patches.weight", hidden, 3, patch, patch, deviation=(3 * patch**2) ** -0.5
    )
    x = tower.node("Conv", ["x", weight], "/patches", kernel_shape=[patch] * 2, strides=[patch] * 2)
    x = tower.node("Reshape", [x, shape("/flat", 0, hidden, patches)], "/patches/flat")
    x = tower.node("Transpose", [x], "/patches/rows", perm=[0, 2, 1])
    x = tower.node("Add", [x, tower.random("position", 1, patches, hidden)], "/position")
    x = tower.norm(tower.layer(x, "/layers.0", 2 * hidden), "/norm")
    x = tower.node("Transpose", [x], "/channels", perm=[0, 2, 1])
    x = tower.node("Reshape", [x, shape("/grid", 0, hidden, across, across)], "/grid/Reshape")
    x = tower.node("AveragePool", [x], "/pool", kernel_shape=[pool] * 2, strides=[pool] * 2)
    x = tower.node("Reshape", [x, shape("/pooled", 0, hidden, tokens)], "/pooled/Reshape")
    x = tower.node("Transpose", [x], "/tokens", perm=[0, 2, 1])
    square = tower.node("Pow", [x, tower.number("/two", 2.0)], "/square")
    mean = tower.node("ReduceMean", [square, shape("/last", -1)], "/mean", keepdims=1)
    more = tower.node("Add", [mean, tower.number("/epsilon", 1e-6)], "/more")
    x = tower.node("Div", [x, tower.node("Sqrt", [more], "/root")], "/normed")
    x = tower.node("Mul", [x, tower.random("/norm2.weight", hidden, mean=1)], "/scaled")
    projection = tower.random("/projection.weight", hidden, text, deviation=hidden**-0.5)
    tower.node("MatMul", [x, projection], "/projection")
    tower.nodes[-1].output[0] = "features"
    model = graph_model(
        tower.nodes,
        dict(tower.weights),
        x=("batch", 3, side, side),
        outputs={"features": ("batch", tokens, text)},
    )
    return model, tower.products + 1
