"""Small graphs as text, and what is expected of each.

A graph is lines of `results = Operator<attributes>(inputs)`, of ONNX's operators and of those of
com.microsoft; `-` is an input or a result that is left out. Three names are short for products with
weights of their own, which are named after the first result:

    y = Q(a, bias?)   MatMulNBits of (..., K)
    y = F(a)          MatMul with float weights
    y = P(a, bias?)   either, by the entry's form; a bias of float weights is an Add

A value that no node writes is an input or a constant. `given` says what each is that is not among
`USUAL`; what no node reads is an output.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from builder_nodes import projection_weights
from onnx import helper, numpy_helper
from op_models import FLOAT32, ONNX_TYPES, model_of, onnx_tensor

Array = npt.NDArray[Any]
# A constant of that shape, an input of those dimensions (its type may come first), or a constant.
Given = tuple[int, ...] | list[Any] | Array | None

# A value, or what it is for the sizes of a call.
Feed = Array | Callable[[Mapping[str, int]], Array]

# Of a graph all of whose nodes stay.
AS_IT_IS = "as it is"
# Before the last lines, where those before do not matter.
REST = "..."

K, N = 96, 64
USUAL: dict[str, Given] = {
    "x": ["batch", "sequence", K],
    "r": ["batch", "sequence", K],
    "w": (K,),
    "b": (N,),
}
# Sizes that a host chooses.
SIZES = {"batch": 2, "sequence": 3}
MICROSOFT = {
    "CausalConvWithState", "FastGelu", "GatedRMSNorm", "GatherBlockQuantized",
    "GatedDeltaNet", "GroupQueryAttention", "LinearAttentionGate",
    "MRotaryEmbedding", "MatMulNBits", "MultiHeadAttention", "QMoE", "QuickGelu",
    "SkipSimplifiedLayerNormalization",
}  # fmt: skip
NEWER = {
    "Attention": 23, "LinearAttention": 27, "RMSNormalization": 23, "RotaryEmbedding": 23,
    "SwiGLU": 28,
}  # fmt: skip

# The largest error that is allowed, relative to the norm of a result. At most three products come
# after each other, which round activations and scales to bfloat16, by at most 2^-9 of each:
# independent errors.
ROUNDED = 2.0**-6
# Attention in float32 on either side: (D + 16) roundings of |q| |k| / √D, which is about 6, in a
# score of D = 32 products, on both sides of the softmax.
EXACT = 2.0**-15


@dataclass(frozen=True)
class Entry:
    """A graph and what becomes of it.

    Attributes:
        name: of the entry.
        text: the graph.
        becomes: the steps and, as their type alone, the nodes that stay, in order: `doors.py`.
        why: what is said of nodes that stay, at least its beginning, by the node's first result.
        given: see the module.
        declared: dimensions of values that nodes write, as the model builder declares them.
        wanted: outputs that nodes read as well.
        unread: results that are no outputs, although nothing reads them.
        form: what P is: "" for MatMulNBits, else as --quantize names it, which only compile does.
        types: of float values that are not the entry's.
        dtype: of the other float values.
        provider: whether the execution provider makes the same of it.
        recipe: a pattern of what the recipe has, its values numbered as they come.
        alike: whether the provider's recipes are the same. It packs weights for each node.
        opens: whether ONNX Runtime opens what it becomes.
        runs: whether its results are compared.
        against: with those of ONNX Runtime, or of ONNX's own evaluator where it refuses the graph.
        rows: which (batch, tokens) of the results count, by the inputs' values; all by default.
        near: the bound of the distance to ONNX Runtime's result.
        feeds: values of inputs that are not random numbers.
        sizes: the sizes for which it runs, if not SIZES.
        since: the ONNX Runtime that has the operators.
        opset: of the model.
        keep: patterns of --keep.
    """

    name: str
    text: str
    becomes: str
    why: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, Given] = field(default_factory=dict)
    declared: Mapping[str, Sequence[int | str]] = field(default_factory=dict)
    wanted: Sequence[str] = ()
    unread: Sequence[str] = ()
    form: str = ""
    types: Mapping[str, npt.DTypeLike] = field(default_factory=dict)
    dtype: np.dtype[Any] = FLOAT32
    provider: bool = True
    recipe: str = ""
    alike: bool = True
    opens: bool = True
    runs: bool = True
    against: str = "onnxruntime"
    rows: Callable[[Mapping[str, Array]], Array] | None = None
    near: float = ROUNDED
    feeds: Mapping[str, Feed] = field(default_factory=dict)
    sizes: Sequence[Mapping[str, int]] = (SIZES,)
    since: tuple[int, int] = (1, 23)
    opset: int = 21
    keep: Sequence[str] = ()

    def quantised(self, form: str) -> Entry:
        """The entry with float weights that are to be quantised."""
        steps = {"Q4NXMatMul": "GEMM", "Q4NXGatedMLP": "GatedGEMM"} if form == "bf16" else {}
        becomes = re.sub(
            r"\bQ4NX(MatMul|GatedMLP)\b", lambda m: steps.get(m[0], m[0]), self.becomes
        )
        return replace(
            self, name=f"{self.name}, {form}", form=form, becomes=becomes, provider=False
        )


@dataclass(frozen=True)
class Node:
    """A line of a graph."""

    op: str
    inputs: tuple[str, ...]
    results: tuple[str, ...]
    attributes: Mapping[str, Any]


LINE = re.compile(
    r"^(?P<results>[^=]*?)\s*=\s*(?P<op>[\w.]+)\s*(<(?P<attributes>.*)>)?\s*\((?P<inputs>.*)\)$"
)


def read(text: str) -> list[Node]:
    """The nodes of a graph."""
    return [_node(line.strip()) for line in re.split(r"[;\n]", text) if line.strip()]


def _node(line: str) -> Node:
    found = LINE.match(line)
    assert found, line

    def names(part: str) -> tuple[str, ...]:
        return tuple(name.strip().replace("-", "") for name in part.split(",") if name.strip())

    call = ast.parse(f"f({found['attributes'] or ''})", mode="eval").body
    assert isinstance(call, ast.Call)
    given = {key.arg or "": ast.literal_eval(key.value) for key in call.keywords}
    return Node(found["op"], names(found["inputs"]), names(found["results"]), given)


def steps(*parts: str) -> str:
    """Lines, some of which are empty."""
    return "\n".join(part for part in parts if part)


class Graph:
    """An entry as a model."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.inputs: dict[str, tuple[npt.DTypeLike, list[Any] | None]] = {}
        self._kinds = USUAL | dict(entry.given)
        nodes = read(entry.text)
        self.written = [name for node in nodes for name in node.results if name]
        for node in nodes:
            self._add(node)

    def model(self) -> onnx.ModelProto:
        """With types and shapes of the inputs, and types of the outputs."""
        read_by = {name for node in self.nodes for name in node.input}
        made = [name for node in self.nodes for name in node.output if name]
        asked = [name for name in made if name not in read_by or name in self.entry.wanted]
        outputs = [name for name in asked if name not in self.entry.unread]
        values = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "graph",
            [values(name, ONNX_TYPES[np.dtype(kind)], dims)
             for name, (kind, dims) in self.inputs.items()],
            [values(name, ONNX_TYPES[np.dtype(self.entry.types[name])], None)
             if name in self.entry.types else helper.make_empty_tensor_value_info(name)
             for name in outputs],
            [_tensor(name, array) for name, array in self.constants.items()],
            value_info=[
                values(name, ONNX_TYPES[self._type(name)], self.entry.declared[name])
                for name in made if name in self.entry.declared and name not in outputs
            ],
        )  # fmt: skip
        newest = max((NEWER.get(n.op_type, 0) for n in self.nodes if not n.domain), default=0)
        return model_of(graph, max(self.entry.opset, newest))

    def feeds(self, sizes: Mapping[str, int]) -> dict[str, Array]:
        """Values for the inputs."""
        found = {}
        for name, (kind, dims) in self.inputs.items():
            if name in self.entry.feeds:
                feed = self.entry.feeds[name]
                found[name] = feed(sizes) if callable(feed) else feed
                continue
            assert dims is not None, name
            shape = [dim if isinstance(dim, int) else sizes[dim or "?"] for dim in dims]
            found[name] = self._numbers(name, shape, np.dtype(kind))
        return found

    def _numbers(self, name: str, shape: Sequence[int], kind: np.dtype[Any]) -> Array:
        rng = np.random.default_rng([len(self.entry.text), *name.encode()])
        if kind.kind in "iu":
            return rng.integers(0, 8, shape).astype(kind)
        if kind.kind == "b":
            return rng.random(shape) < 0.7
        return rng.standard_normal(shape).astype(np.float32).astype(kind)

    def _type(self, name: str) -> np.dtype[Any]:
        return np.dtype(self.entry.types.get(name, self.entry.dtype))

    def _need(self, name: str) -> None:
        """Makes an input or a constant of a value that no node writes."""
        if not name or name in self.written or name in self.inputs or name in self.constants:
            return
        assert name in self._kinds, f"{self.entry.name}: what is {name}?"
        given = self._kinds[name]
        if given is None:
            self.inputs[name] = (self._type(name), None)
        elif isinstance(given, np.ndarray | np.generic):
            self.constants[name] = np.asarray(given)
        elif isinstance(given, list):
            kind = self._type(name)
            if given and isinstance(given[0], np.dtype | type):
                kind, *given = given
            self.inputs[name] = (kind, given)
        else:
            self.constants[name] = self._numbers(name, given, self._type(name))

    def _add(self, node: Node) -> None:
        if node.op in ("P", "Q", "F"):
            self._add_product(node)
            return
        for name in node.inputs:
            self._need(name)
        op = node.op.removeprefix("ms.")
        attributes = dict(node.attributes)
        if op == "ConstantOfShape":
            attributes["value"] = onnx_tensor("", np.array([attributes["value"]], np.float32))
        own = op in MICROSOFT or op != node.op
        self.nodes.append(
            helper.make_node(op, node.inputs, node.results, name=f"/{node.results[0]}",
                             domain="com.microsoft" if own else "", **attributes)
        )  # fmt: skip

    def _add_product(self, node: Node) -> None:
        (y,), (a, *bias) = node.results, node.inputs
        given = {"n": N, "k": K} | dict(node.attributes)
        n, k = given.pop("n"), given.pop("k")
        for name in node.inputs:
            self._need(name)
        if node.op == "F" or (node.op == "P" and self.entry.form):
            weights = np.random.default_rng([n, k, *y.encode()]).standard_normal((k, n))
            self.constants[f"{y}.weight"] = (weights / np.sqrt(k)).astype(self.entry.dtype)
            product = f"{y}.product" if bias else y
            self.nodes.append(
                helper.make_node("MatMul", [a, f"{y}.weight"], [product], f"/{product}")
            )
            if bias:
                self.nodes.append(helper.make_node("Add", [product, *bias], [y], name=f"/{y}"))
            return
        bits, block = given.setdefault("bits", 4), given.setdefault("block_size", 32)
        points = given.pop("points", False)
        weights = projection_weights(
            n, k, block_size=block, bits=bits, dtype=self.entry.dtype, zero_points=points,
            prefix=y, seed=len(self.nodes),
        )  # fmt: skip
        self.constants |= weights
        names = [a, *weights, *([""] * (4 - len(weights)) if bias else []), *bias]
        self.nodes.append(
            helper.make_node("MatMulNBits", names, [y], name=f"/{y}", domain="com.microsoft", K=k,
                             N=n, **given)
        )  # fmt: skip


def _tensor(name: str, array: Array) -> onnx.TensorProto:
    if array.dtype in ONNX_TYPES:
        return onnx_tensor(name, array)
    return numpy_helper.from_array(array, name)  # of 4 bits
