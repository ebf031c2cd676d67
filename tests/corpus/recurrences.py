"""What hybrid models have instead of attention: short convolutions and linear attention, each with
a state, and the nodes around them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from graphs import Entry, Given, K, steps

SINCE = (1, 32)
SWAP = "Transpose<perm=[0, 2, 1]>"
CHANNELS = ["batch", K, "sequence"]
KERNEL: dict[str, Given] = {"kernel": (K, 1, 4), "bias": (K,), "past": ["batch", K, 3]}


def convolutions() -> Iterator[Entry]:
    for name, attributes, inputs, step in (
        ("with all", "activation='silu'", "t, kernel, bias, past",
         "kernel bias past -> c s activation=silu"),
        ("without bias", "activation='none'", "t, kernel, -, past",
         "kernel - past -> c s activation=none"),
        ("without a past", "activation='swish'", "t, kernel", "kernel -> c s activation=silu"),
    ):  # fmt: skip
        yield Entry(
            f"a convolution {name}",
            f"p = Q<n={K}>(x); t = {SWAP}(p); c, s = CausalConvWithState<{attributes}>({inputs})\n"
            f"h = {SWAP}(c); y = Q(h)",
            steps("Q4NXMatMul x p -> p", "Transpose p -> t", f"CausalConv t {step} taps=4",
                  "Transpose c -> h", "Q4NXMatMul h y -> y"),
            given=KERNEL, declared={"t": CHANNELS, "c": CHANNELS},
            sizes=({"batch": 2, "sequence": 5}, {"batch": 1, "sequence": 1}), since=SINCE,
        )  # fmt: skip
    # As the model builder writes LFM2.
    three = {"split": np.array([K, K, K])}
    yield Entry(
        "a convolution between gates",
        f"p = Q<n={3 * K}>(x); t = {SWAP}(p); b, g, u = Split<axis=1>(t, split); m = Mul(b, u)\n"
        f"c, s = CausalConvWithState(m, kernel, -, past); d = Mul(g, c); h = {SWAP}(d); y = Q(h)",
        steps("Q4NXMatMul x p -> p", "Transpose p -> t",
              f"Split t -> b g u axis=1 sizes={K},{K},{K}",
              "Mul b u -> m", "CausalConv m kernel - past -> c s activation=none taps=4",
              "Mul g c -> d", "Transpose d -> h", "Q4NXMatMul h y -> y"),
        given=KERNEL | three, since=SINCE, alike=False,  # ONNX Runtime moves a Transpose
        declared={"t": ["batch", 3 * K, "sequence"]} | dict.fromkeys("bgumcd", CHANNELS),
        sizes=({"batch": 2, "sequence": 5}, {"batch": 1, "sequence": 1}),
    )  # fmt: skip
    yield Entry(
        "a convolution with holes stays",
        f"p = Q<n={K}>(x); t = {SWAP}(p)\n"
        f"c, s = CausalConvWithState<dilation=2>(t, kernel, -, past)\n"
        f"h = {SWAP}(c); y = Q(h)",
        "Q4NXMatMul x p -> p\nTranspose\nCausalConvWithState\nTranspose\nQ4NXMatMul h y -> y",
        {"c": "its dilation is 2; a step has 1"}, given=KERNEL | {"past": ["batch", K, 6]},
        declared={"t": CHANNELS, "c": CHANNELS}, since=SINCE,
    )  # fmt: skip


# Two heads of queries and keys, four of values, of 32 dimensions.
HEADS = {"q_num_heads": 2, "kv_num_heads": 4}
ATTENTION = ", ".join(f"{name}={count}" for name, count in HEADS.items())
PRODUCTS = "q = Q<n=64>(x); k = Q<n=64>(x); v = Q<n=128>(x)"
PRODUCED = "Q4NXMatMul x q -> q\nQ4NXMatMul x k -> k\nQ4NXMatMul x v -> v"
SHAPES = {
    "l": ["batch", "sequence", 128],
    "q2": ["batch", "sequence", 64], "u": ["batch", "sequence", 64],
    "d": ["batch", "sequence", 4], "e": ["batch", "sequence", 4],
    **{name: ["batch", "sequence", 2, 32] for name in ("q0", "q1", "k0", "k1")},
}  # fmt: skip
STATE: dict[str, Given] = {"past": ["batch", 4, 32, 32]}


def attention() -> Iterator[Entry]:
    # As the model builder writes Qwen3.5: what reads a value twice has a name with a digit.
    sizes: Mapping[str, Given] = {
        "heads": np.array([0, 0, 2, 32]), "flat": np.array([0, 0, 64]),
        "factor": np.float32(0.25), "dt": (4,), "rate": (4,), **STATE,
    }  # fmt: skip
    unit = (
        "{0}0 = Reshape({0}, heads); {0}1 = LpNormalization<axis=-1>({0}0)\n"
        "{1} = Reshape({0}1, flat)"
    )
    yield Entry(
        "linear attention on vectors of length one",
        f"{PRODUCTS}; a = F<n=4>(x); b = F<n=4>(x)\n"
        f"{unit.format('q', 'q2')}; {unit.format('k', 'u')}\n"
        "m = Mul(q2, factor); d, e = LinearAttentionGate(a, dt, rate, b)\n"
        f"l, s = ms.LinearAttention<{ATTENTION}, scale=1.0>(m, u, v, past, d, e); y = Q<k=128>(l)",
        steps(PRODUCED, "NarrowMatMul x * -> a", "NarrowMatMul x * -> b",
              "Reshape q -> q0 sizes=0,0,2,32", "Activation q0 -> q1 function=unit",
              "Reshape q1 -> q2 sizes=0,0,64", "Reshape k -> k0 sizes=0,0,2,32",
              "Activation k0 -> k1 function=unit", "Reshape k1 -> u sizes=0,0,64",
              "Mul q2 factor -> m", "LinearAttentionGate a dt rate b -> d e",
              "LinearAttention m u v past d e -> l s scale=1", "Q4NXMatMul l y -> y"),
        given=sizes, declared=SHAPES, since=SINCE,
        sizes=({"batch": 2, "sequence": 5}, {"batch": 1, "sequence": 1}),
    )  # fmt: skip
    for rule, gates, read in (
        ("linear", "", ""),
        ("gated", ", d", " d"),
        ("delta", ", -, e", " - e"),
    ):
        given: dict[str, Given] = {
            **STATE, "d": ["batch", "sequence", 4], "e": ["batch", "sequence", 1]
        }  # fmt: skip
        small = {  # a large update would grow from token to token
            "e": lambda sizes: np.full((sizes["batch"], sizes["sequence"], 1), 0.01, np.float32),
            "d": lambda sizes: np.full((sizes["batch"], sizes["sequence"], 4), -0.5, np.float32),
        }  # fmt: skip
        yield Entry(
            f"linear attention by the rule {rule}",
            f"{PRODUCTS}; l, s = ms.LinearAttention<{ATTENTION}, update_rule='{rule}'>"
            f"(q, k, v, past{gates}); y = Q<k=128>(l)",
            steps(PRODUCED, f"LinearAttention q k v past{read} -> l s scale=0",
                  "Q4NXMatMul l y -> y"),
            given=given, declared=SHAPES, feeds=small, since=SINCE,
        )  # fmt: skip
    yield Entry(
        "linear attention of several states stays",
        f"{PRODUCTS}; l, s = ms.LinearAttention<{ATTENTION}, update_rule='linear', state_window=2>"
        "(q, k, v, past); y = Q<k=128>(l)",
        steps(PRODUCED, "LinearAttention", "Q4NXMatMul l y -> y"),
        {"l": "its state_window is 2; a step has 0"},
        given={"past": [2, "batch", 4, 32, 32]}, declared=SHAPES, since=SINCE, opens=False,
    )  # fmt: skip


def delta_nets() -> Iterator[Entry]:
    # As the model builder writes Qwen3.5 for CUDA, with linear_attn_op.
    two = {"batch": 2, "sequence": 5}
    given: dict[str, Given] = {
        "heads": np.array([0, 0, 2, 32]), "more": np.array([0, 0, 4, 32]),
        "flat": np.array([0, 0, 128]), "rate": (4,), "dt": (4,), **STATE,
        "counts": [np.int32, 3], "long": ["batch", "sequence", 4, 32],
    }  # fmt: skip
    made = (
        f"{PRODUCTS}; a = F<n=4>(x); b = F<n=4>(x); q0 = Reshape(q, heads)\n"
        "k0 = Reshape(k, heads); v0 = Reshape(v, more)\n"
    )
    node = (
        "l0, s = GatedDeltaNet<gate_activation='qwen', beta_activation='sigmoid', qk_l2_norm=1>"
        "(q0, k0, v0, -, a, b, past, rate, dt)"
    )
    end = "\nl = Reshape(l0, flat); y = Q<k=128>(l)"
    declared = SHAPES | {
        "v0": ["batch", "sequence", 4, 32], "l0": ["batch", "sequence", 4, 32],
        "a": ["batch", "sequence", 4], "b": ["batch", "sequence", 4],
    }  # fmt: skip
    before = (PRODUCED, "NarrowMatMul x * -> a", "NarrowMatMul x * -> b", "Reshape", "Reshape",
              "Reshape")  # fmt: skip
    yield Entry(
        "a gated delta net", made + node + end,
        steps(*before, "GatedDeltaNet q0 k0 v0 past a b rate dt -> l0 s gate=softplus scale=0 "
              "sigmoid=1 unit=1", "Reshape", "Q4NXMatMul l y -> y"),
        given=given, declared=declared, since=SINCE, sizes=(two, {"batch": 1, "sequence": 1}),
    )  # fmt: skip
    wide = ("past", "rate", "dt", "s", "a1", "b1")
    yield Entry(
        "a gated delta net in float16",
        f"{made}a1 = Cast<to=1>(a); b1 = Cast<to=1>(b)\n{node.replace(' a, b,', ' a1, b1,')}{end}",
        steps(*before, "Cast a -> a1 dtype=1", "Cast b -> b1 dtype=1",
              "GatedDeltaNet q0 k0 v0 past a1 b1 rate dt -> l0 s gate=softplus scale=0 sigmoid=1 "
              "unit=1", "Reshape", "Q4NXMatMul l y -> y"),
        given=given, declared=declared | {"a1": declared["a"], "b1": declared["b"]}, since=SINCE,
        dtype=np.dtype(np.float16), types=dict.fromkeys(wide, np.float32), sizes=(two,),
    )  # fmt: skip
    for name, of, to, why in (
        ("of another update", "<gate", "<update_rule='mean', gate", "its update_rule is mean"),
        ("of packed sequences", "v0, -,", "v0, counts,", "its sequences have lengths of their own"),
        ("of one tensor", "q0, k0, v0,", "q0, -, -,", "its query holds keys and values too"),
        ("that captures", "<gate", "<state_update_capacity=2, gate",
         "its state_update_capacity is 2"),
        ("without a decay", " a, b,", " -, b,", "its decay and beta are not those that gated_del"),
        ("without a rate", "past, rate", "past, -", "its decay, a_log or dt_bias is missing"),
    ):  # fmt: skip
        yield Entry(
            f"a gated delta net {name} stays", made + node.replace(of, to) + end,
            "...\nGatedDeltaNet\nReshape\nQ4NXMatMul l y -> y", {"l0": why}, given=given,
            declared=declared, since=SINCE, opens=False,
        )  # fmt: skip


# What ONNX Runtime 1.32 has kernels of for other devices only.
ELSEWHERE = (
    "ConvStateReplay", "GatedDeltaNetStateReplay", "Mamba2Verify", "MatMulNBitsMlp",
    "MatMulNBitsQLoRA", "MatMulNBitsQkv", "PagedAttention", "RMSNormRotary", "SparsePagedAttention",
    "SpeculativePrefixCommit",
)  # fmt: skip


def others() -> Iterator[Entry]:
    """What ONNX Runtime 1.32 has besides."""
    yield Entry("a gated MLP by SwiGLU", "g = Q(x); u = Q(x); h = SwiGLU(g, u); y = Q<k=64>(h)",
                "Q4NXGatedMLP x g u -> h activation=silu\nQ4NXMatMul h y -> y", runs=False,
                since=SINCE)  # fmt: skip
    yield Entry("SwiGLU of what no product gives", "h = SwiGLU(x, r); y = Q(h)",
                "SwiGLU x r -> h\nQ4NXMatMul h y -> y", runs=False, since=SINCE)  # fmt: skip
    yield Entry("SwiGLU of another slope", "h = SwiGLU<alpha=1.5>(x, r); y = Q(h)",
                "SwiGLU\nQ4NXMatMul h y -> y", {"h": "its alpha is 1.5; a step has 1"}, since=SINCE,
                opens=False)  # fmt: skip
    yield Entry("a wider product of floats stays", "h = F<n=65>(x); y = Q<k=65>(h)",
                "MatMul\nQ4NXMatMul h y -> y", since=SINCE)  # fmt: skip
    yield Entry("a convolution of packed sequences stays",
                "h = ms.VarlenCausalConvWithState(x, w, b); y = Q(h)",
                "VarlenCausalConvWithState\nQ4NXMatMul h y -> y",
                {"h": "its sequences have lengths of their own"}, since=SINCE,
                opens=False)  # fmt: skip
    for op in ELSEWHERE:
        yield Entry(f"{op} stays", f"h = ms.{op}(x); y = Q(h)", f"{op}\nQ4NXMatMul h y -> y",
                    {"h": f"ONNX Runtime has no {op} on the CPU"}, since=SINCE,
                    opens=False)  # fmt: skip


ENTRIES = [*convolutions(), *attention(), *delta_nets(), *others()]
