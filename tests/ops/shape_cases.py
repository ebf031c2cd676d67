"""Small models, one or more for each operator that either door claims, and their mutations: a
tensor with one dimension more or fewer, with two exchanged, or longer or shorter in one.

A projection stands beside or behind what is no projection itself, as only such graphs are claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from builder_nodes import matmul_nbits, projection_weights
from expert_models import Experts, experts_model, feeds_of
from onnx import TensorProto, helper, numpy_helper
from op_models import FLOAT32, NUMPY_TYPES, ORT_VERSION, Array, model_of

MICROSOFT = "com.microsoft"
BATCH, TOKENS, PAST = 3, 5, 7
K, N = 96, 40
HEADS, KV_HEADS, DIM = 4, 2, 16
NAMED = {BATCH: "batch", TOKENS: "tokens", PAST: "past", PAST + TOKENS: "total"}


@dataclass(frozen=True)
class Case:
    """Nodes and their tensors.

    Attributes:
        name: of the case.
        nodes: in order.
        feeds: graph inputs.
        constants: initializers. Those in `free` may also be graph inputs.
        results: the graph's outputs.
        claimed: the operators of which no node may be left.
        quantize: the form of float weights, for `compile`; such weights are not the provider's.
        by_provider: whether it claims them too.
        since: the ONNX Runtime that has the operators, and an error for every wrong shape.
        free: see `constants`.
    """

    name: str
    nodes: tuple[onnx.NodeProto, ...]
    feeds: Mapping[str, Array]
    constants: Mapping[str, Array]
    results: tuple[str, ...] = ("y",)
    claimed: tuple[str, ...] = ()
    quantize: str | None = None
    by_provider: bool = True
    since: tuple[int, int] = (1, 23)
    free: tuple[str, ...] = ()

    @property
    def unchanged(self) -> frozenset[str]:
        """Weights of projections that stand beside what the case is about."""
        about = self.name.startswith("MatMulNBits")
        return frozenset() if about else frozenset(name for name in self.constants if "." in name)

    @property
    def tensors(self) -> dict[str, Array]:
        return {**self.feeds, **self.constants}

    def having(self, name: str, tensor: Array) -> Case:
        """The case with another tensor."""
        if name in self.feeds:
            return replace(self, feeds={**self.feeds, name: tensor})
        return replace(self, constants={**self.constants, name: tensor})

    def freed(self) -> Case:
        """The case with `free` constants as graph inputs."""
        given = {name: self.constants[name] for name in self.free}
        kept = {name: x for name, x in self.constants.items() if name not in self.free}
        return replace(self, feeds={**self.feeds, **given}, constants=kept)

    def model(self, *, known: bool) -> onnx.ModelProto:
        """With the shapes of its inputs, or with names for those dimensions that hosts choose."""
        inputs = []
        for name, x in self.feeds.items():
            dims: list[int | str] = list(x.shape)
            if not known and name not in self.free:
                dims = [NAMED.get(dim, dim) for dim in x.shape]
            inputs.append(helper.make_tensor_value_info(name, _onnx_type(x), dims))
        outputs = [helper.make_empty_tensor_value_info(name) for name in self.results]
        constants = [numpy_helper.from_array(x, name) for name, x in self.constants.items()]
        graph = helper.make_graph(list(self.nodes), "graph", inputs, outputs, constants)
        return model_of(graph, opset=23)


def _onnx_type(x: Array) -> int:
    kinds = {dtype: kind for kind, dtype in NUMPY_TYPES.items()}
    return kinds[x.dtype]


def mutations(x: Array) -> Iterator[tuple[str, Array]]:
    """The tensor in other shapes, most with the same elements."""
    yield "one dimension more", x[None]
    if x.ndim > 1:
        yield "one dimension fewer", x.reshape(-1, *x.shape[2:])
    elif x.size == 1:
        yield "no dimension", x.reshape(())
    for a, b in pairwise(range(x.ndim)):
        if x.shape[a] != x.shape[b]:
            yield f"{a} and {b} exchanged", np.ascontiguousarray(np.swapaxes(x, a, b))
    for axis in range(x.ndim):
        yield f"longer in {axis}", np.concatenate([x, np.take(x, [0], axis)], axis)
        if x.shape[axis] > 1:
            yield f"shorter in {axis}", np.delete(x, -1, axis)
        if x.shape[axis] > 2:
            yield f"one in {axis}", np.take(x, [0], axis)


# --- the cases ------------------------------------------------------------------------------------


def _rng(name: str) -> np.random.Generator:
    return np.random.default_rng(list(name.encode()))


def floats(name: str, *shape: int) -> Array:
    return _rng(name).standard_normal(shape).astype(np.float32)


def node(op: str, inputs: Sequence[str], *outputs: str, domain: str = "", **given: Any) -> Any:
    return helper.make_node(
        op, list(inputs), list(outputs), f"to_{outputs[0]}", domain=domain, **given
    )


def projection(a: str, y: str, n: int = N, k: int = K, prefix: str = "proj", **given: Any) -> Any:
    """A MatMulNBits of `a` and its weights."""
    weights = projection_weights(n, k, prefix=prefix)
    made = matmul_nbits(a, y, weights, n, k, name=f"{prefix}.matmul", accuracy_level=0, **given)
    return made, weights


def products() -> Iterator[Case]:
    x = floats("x", BATCH, TOKENS, K)
    kinds: dict[str, tuple[int, bool | np.dtype[Any]]] = {
        "4 bits": (4, False), "4 bits, zero points": (4, True), "4 bits, float": (4, FLOAT32),
        "8 bits": (8, True), "2 bits": (2, True),
    }  # fmt: skip
    for name, (bits, points) in kinds.items():
        if bits == 2 and ORT_VERSION < (1, 31):
            continue
        weights = projection_weights(N, K, bits=bits, zero_points=points)
        names = ["", "bias"] if points is not False else ["", "", "bias"]
        made = matmul_nbits("x", "y", weights, N, K, bits=bits, inputs=names, accuracy_level=0)
        yield Case(f"MatMulNBits {name}", (made,), {"x": x}, {**weights, "bias": floats("bias", N)},
                   claimed=("MatMulNBits",), free=("bias",))  # fmt: skip
    flat = {name: w.reshape(-1) if "B" not in name else w
            for name, w in projection_weights(N, K, zero_points=True).items()}  # fmt: skip
    made = matmul_nbits("x", "y", flat, N, K, accuracy_level=0)
    yield Case("MatMulNBits flat", (made,), {"x": x}, flat, claimed=("MatMulNBits",))


def dequantised() -> Iterator[Case]:
    rng = _rng("dequantised")
    x = floats("x", BATCH, TOKENS, K)
    codes = rng.integers(-8, 8, (K, N))
    four = codes.astype(ml_dtypes.int4)
    given = {
        "scales": np.abs(floats("scales", K // 32, N)) + 0.1,
        "points": rng.integers(-8, 8, (K // 32, N)).astype(ml_dtypes.int4),
    }
    dequantize = node("DequantizeLinear", ["codes", "scales", "points"], "w", axis=0, block_size=32)
    yield Case("DequantizeLinear MatMul", (dequantize, node("MatMul", ["x", "w"], "y")), {"x": x},
               {"codes": four, **given}, claimed=("DequantizeLinear", "MatMul"),
               by_provider=False)  # fmt: skip
    rows = x.reshape(-1, K)
    yield Case("DequantizeLinear Gemm", (dequantize, node("Gemm", ["x", "w", "bias"], "y")),
               {"x": rows}, {"codes": four, **given, "bias": floats("bias", N)},
               claimed=("DequantizeLinear", "Gemm"), by_provider=False)  # fmt: skip
    by_row = {"scales": given["scales"].T.copy(), "points": given["points"].T.copy()}
    table = node("DequantizeLinear", ["codes", "scales", "points"], "w", axis=1, block_size=32)
    yield Case("DequantizeLinear Gather", (table, node("Gather", ["w", "ids"], "y")),
               {"ids": _rng("ids").integers(0, 20, (BATCH, TOKENS))},
               {"codes": four.T.copy(), **by_row},
               claimed=("DequantizeLinear", "Gather"), by_provider=False)  # fmt: skip
    one = node("DequantizeLinear", ["codes", "scales", "points"], "w", axis=1)
    yield Case("DequantizeLinear without blocks", (one, node("MatMul", ["x", "w"], "y")), {"x": x},
               {"codes": four, "scales": given["scales"][0], "points": given["points"][0]},
               claimed=("DequantizeLinear", "MatMul"), by_provider=False)  # fmt: skip
    w = floats("w", K, N)
    yield Case("MatMul", (node("MatMul", ["x", "w"], "y"),), {"x": x}, {"w": w},
               claimed=("MatMul",), quantize="bf16", by_provider=False)  # fmt: skip
    yield Case("Gemm", (node("Gemm", ["x", "w", "bias"], "y", transB=1),), {"x": rows},
               {"w": w.T.copy(), "bias": floats("bias", N)}, claimed=("Gemm",), quantize="bf16",
               by_provider=False)  # fmt: skip


def embeddings() -> Iterator[Case]:
    ids = _rng("ids").integers(0, 20, (BATCH, TOKENS))
    k = 64
    made, weights = projection("x", "y", k=k)
    gather = node("GatherBlockQuantized", ["codes", "ids", "proj.scales"], "rows", bits=4,
                  domain=MICROSOFT, block_size=32, quantize_axis=1, gather_axis=0)  # fmt: skip
    sizes = {"sizes": np.array([N, k // 2])}
    reshape = node("Reshape", ["proj.B", "sizes"], "codes")
    feeds = {"x": floats("x", BATCH, TOKENS, k), "ids": ids}
    yield Case("GatherBlockQuantized Reshape", (reshape, gather, made), feeds, {**weights, **sizes},
               ("rows", "y"), claimed=("GatherBlockQuantized", "MatMulNBits"))  # fmt: skip
    made, weights = projection("rows", "y", k=k)
    yield Case("Gather", (node("Gather", ["table", "ids"], "rows"), made), {"ids": ids},
               {**weights, "table": floats("table", 20, k)}, claimed=("Gather",))  # fmt: skip
    made, weights = projection("rows", "y", k=k)
    yield Case("GatherND", (node("GatherND", ["x", "last"], "rows", batch_dims=1), made),
               {"x": feeds["x"], "last": np.array([1, 2, 4]).reshape(BATCH, 1, 1)}, weights,
               claimed=("GatherND",))  # fmt: skip


def vectors() -> Iterator[Case]:
    x, weight = floats("x", BATCH, TOKENS, K), floats("weight", K)
    skip = floats("skip", BATCH, TOKENS, K)

    def case(name: str, nodes: Sequence[Any], feeds: Mapping[str, Array],
             constants: Mapping[str, Array], claimed: tuple[str, ...], *,
             results: tuple[str, ...] = ("y",),
             since: tuple[int, int] = (1, 23)) -> Case:  # fmt: skip
        made, weights = projection("a", "y")
        return Case(name, (*nodes, made), feeds, {**weights, **constants}, results, claimed,
                    since=since, free=tuple(constants))  # fmt: skip

    for op in ("SimplifiedLayerNormalization", "RMSNormalization"):
        yield case(op, [node(op, ["x", "weight"], "a", axis=-1)], {"x": x}, {"weight": weight},
                   (op,))  # fmt: skip
    op = "SkipSimplifiedLayerNormalization"
    names, outs = ["x", "skip", "weight"], ["a", "", "", "sum"]
    yield case(op, [node(op, names, *outs, domain=MICROSOFT)], {"x": x, "skip": skip},
               {"weight": weight}, (op,), results=("y", "sum"))  # fmt: skip
    yield case(f"{op} with bias", [node(op, [*names, "bias"], *outs, domain=MICROSOFT)],
               {"x": x, "skip": skip}, {"weight": weight, "bias": floats("bias", K)}, (),
               results=("y", "sum"))  # fmt: skip
    op = "GatedRMSNorm"
    yield case(op, [node(op, ["x", "weight", "gate"], "a", domain=MICROSOFT)],
               {"x": x, "gate": skip}, {"weight": weight[: K // 3]}, (op,),
               since=(1, 32))  # fmt: skip
    for op in ("Add", "Mul"):
        yield case(op, [node(op, ["x", "skip"], "a")], {"x": x, "skip": skip}, {}, (op,))
        yield case(
            f"{op} row", [node(op, ["x", "weight"], "a")], {"x": x}, {"weight": weight}, (op,)
        )
        yield case(f"{op} one value", [node(op, ["x", "weight"], "a")], {"x": x},
                   {"weight": weight[:1]}, (op,))  # fmt: skip
    for op in ("Sigmoid", "Gelu"):
        yield case(op, [node(op, ["x"], "a")], {"x": x}, {}, (op,))
    for op in ("Gelu", "FastGelu", "QuickGelu"):
        given = {"alpha": 1.0} if op == "QuickGelu" else {}
        yield case(f"{op} of Microsoft", [node(op, ["x"], "a", domain=MICROSOFT, **given)],
                   {"x": x}, {}, (op,))  # fmt: skip
    casts = [node("Cast", ["x"], "half", to=TensorProto.FLOAT16),
             node("Cast", ["half"], "a", to=TensorProto.FLOAT)]  # fmt: skip
    yield case("Cast", casts, {"x": x}, {}, ())
    # What a projection takes in: a bias, a residual and the norm after it, a gated MLP.
    first, weights = projection("x", "p")
    yield Case("Add after MatMulNBits", (first, node("Add", ["p", "bias"], "y")), {"x": x},
               {**weights, "bias": floats("bias", N)}, claimed=("Add",),
               free=("bias",))  # fmt: skip
    first, weights = projection("x", "p", n=K, prefix="first")
    second, more = projection("a", "y", prefix="second")
    norm = node("SimplifiedLayerNormalization", ["sum", "weight"], "a", axis=-1)
    yield Case("Add and norm", (first, node("Add", ["p", "skip"], "sum"), norm, second),
               {"x": x, "skip": skip}, {**weights, **more, "weight": weight}, ("y", "sum"),
               free=("weight",))  # fmt: skip
    gate, weights = projection("x", "gate", prefix="gate")
    up, more = projection("x", "up", prefix="up")
    silu = node("Mul", ["gate", "s"], "silu")
    yield Case("gated", (gate, up, node("Sigmoid", ["gate"], "s"), silu,
                         node("Mul", ["silu", "up"], "y")), {"x": x}, {**weights, **more},
               claimed=("Sigmoid", "Mul"))  # fmt: skip


def experts() -> Iterator[Case]:
    if ORT_VERSION < (1, 31):
        return
    for name, case in {
        "QMoE": Experts(zero_points=True, biases=True, router_weights=True),
        "QMoE rows": Experts(block_size=0, zero_points=True, activation="silu", fusion=0),
    }.items():
        model = experts_model(case)
        constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        yield Case(name, tuple(model.graph.node), feeds_of(case, TOKENS), constants,
                   claimed=("QMoE",))  # fmt: skip


def grouped(batch: int, tokens: int) -> Iterator[Case]:
    """GroupQueryAttention. ONNX Runtime's takes several tokens after a past for one batch row."""
    op, channels, kv, total = "GroupQueryAttention", HEADS * DIM, KV_HEADS * DIM, PAST + tokens
    past = {name: floats(name, batch, KV_HEADS, PAST, DIM) for name in ("past_key", "past_value")}
    lengths = {
        "seqlens_k": np.full(batch, total - 1, np.int32),
        "total": np.array([total], np.int32),
    }
    angles = {"cos": floats("cos", 32, DIM // 2), "sin": floats("sin", 32, DIM // 2)}
    given = {"num_heads": HEADS, "kv_num_heads": KV_HEADS, "domain": MICROSOFT}
    results = ("y", "present_key", "present_value")
    base = ["past_key", "past_value", "seqlens_k", "total"]
    packed = floats("qkv", batch, tokens, channels + 2 * kv)
    yield Case(f"{op} {batch} packed",
               (node(op, ["q", "", "", *base, "cos", "sin"], *results, do_rotary=1, **given),),
               {"q": packed, **past, **lengths}, angles, results, claimed=(op,),
               free=("cos", "sin"))  # fmt: skip
    if batch > 1:
        return
    apart = {
        "q": floats("q", batch, tokens, channels),
        "k": floats("k", batch, tokens, kv),
        "v": floats("v", batch, tokens, kv),
    }
    ids = {"ids": np.tile(np.arange(PAST, total), (batch, 1))}
    yield Case(f"{op} {batch} bias",
               (node(op, ["q", "k", "v", *base, "cos", "sin", "ids", "bias", "sink"], *results,
                     do_rotary=1, **given),),
               {**apart, **past, **lengths, **ids,
                "bias": floats("bias", batch, HEADS, tokens, total)},
               {**angles, "sink": floats("sink", HEADS)}, results, claimed=(op,),
               free=("sink",))  # fmt: skip
    rng = _rng("codes")
    codes = {n: rng.integers(-99, 99, x.shape, np.int8) for n, x in past.items()}
    for kind, shape in (("PER_CHANNEL", (1, KV_HEADS, 1, DIM)), ("PER_TENSOR", (1,))):
        scales = {n: np.abs(floats(n, *shape)) / 64 + np.float32(0.01) for n in ("ks", "vs")}
        yield Case(f"{op} {batch} int8 {kind}",
                   (node(op, ["q", "k", "v", *base, *[""] * 5, "ks", "vs"], *results,
                         kv_cache_bit_width=8, k_quant_type=kind, v_quant_type=kind, **given),),
                   {**apart, **codes, **lengths}, scales, results, claimed=(op,), since=(1, 28),
                   free=("ks", "vs"))  # fmt: skip


def attention() -> Iterator[Case]:
    channels, kv, total = HEADS * DIM, KV_HEADS * DIM, PAST + TOKENS
    yield from grouped(1, TOKENS)
    yield from grouped(BATCH, 1)
    results = ("y", "present_key", "present_value")
    past = {name: floats(name, BATCH, KV_HEADS, PAST, DIM) for name in ("past_key", "past_value")}
    apart = {
        "q": floats("q", BATCH, TOKENS, channels),
        "k": floats("k", BATCH, TOKENS, kv),
        "v": floats("v", BATCH, TOKENS, kv),
    }
    angles = {"cos": floats("cos", 32, DIM // 2), "sin": floats("sin", 32, DIM // 2)}
    same = {n: floats(n, BATCH, TOKENS, channels) for n in ("q", "k", "v")}
    op = "MultiHeadAttention"
    yield Case(op, (node(op, ["q", "k", "v", "bias", "", "scores"], "y", num_heads=HEADS,
                         domain=MICROSOFT),),
               {**same, "scores": floats("scores", BATCH, HEADS, TOKENS, TOKENS)},
               {"bias": floats("bias", 3 * channels)}, claimed=(op,),
               by_provider=False)  # fmt: skip
    op = "Attention"
    standard = {"q_num_heads": HEADS, "kv_num_heads": KV_HEADS}
    yield Case(op, (node(op, ["q", "k", "v", "mask", "past_key", "past_value"], *results,
                         **standard),),
               {**apart, **past, "mask": floats("mask", BATCH, HEADS, TOKENS, total)}, {}, results,
               claimed=(op,), by_provider=False)  # fmt: skip
    split = {name: floats(name, BATCH, heads, TOKENS, DIM)
             for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))}  # fmt: skip
    for domain, names in (("", ["cos", "sin", "ids"]), (MICROSOFT, ["ids", "cos", "sin"])):
        rotary = {"interleaved": 0} if not domain else {}
        turns = tuple(
            helper.make_node("RotaryEmbedding", [a, *names], [f"{a}r"], f"turn_{a}", domain=domain,
                             **rotary) for a in ("q", "k")
        )  # fmt: skip
        positions = {"ids": np.tile(np.arange(TOKENS), (BATCH, 1))}
        yield Case(f"RotaryEmbedding '{domain}'",
                   (*turns, node(op, ["qr", "kr", "v"], "y", is_causal=1)), {**split, **positions},
                   angles, claimed=(op, "RotaryEmbedding"), by_provider=False)  # fmt: skip


def cases() -> list[Case]:
    makers: list[Callable[[], Iterator[Case]]] = [
        products, dequantised, embeddings, vectors, experts, attention,
    ]  # fmt: skip
    return [case for make in makers for case in make() if case.since <= ORT_VERSION]
