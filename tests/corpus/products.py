"""Products and what joins them: biases, gates, norms and residuals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from graphs import Entry, K, N
from op_models import FLOAT16, FLOAT32

NORM, RMS_NORM = "SimplifiedLayerNormalization", "RMSNormalization"
SKIP_NORM = "SkipSimplifiedLayerNormalization"
# A gated MLP's activation of `gate`, and its name in a step.
ACTIVATIONS = {
    "s = Sigmoid(gate); a = Mul(gate, s)": "silu",
    "s = Sigmoid(gate); a = Mul(s, gate)": "silu",
    "a = QuickGelu<alpha=1.0>(gate)": "silu",
    "a = Gelu<approximate='tanh'>(gate)": "gelu_tanh",
    "a = FastGelu(gate)": "gelu_tanh",
}
SILU = "gate = P(x); up = P(x); s = Sigmoid(gate); a = Mul(gate, s); y = Mul(a, up)"
PARTS = "Q4NXMatMul x gate -> gate\nQ4NXMatMul x up -> up\n"
SILU_PARTS = """Activation gate -> s function=sigmoid
    Mul gate s -> a
    Mul a up -> y"""


def both_forms(entries: Iterator[Entry]) -> Iterator[Entry]:
    """Also with float weights that are quantised to bfloat16."""
    for entry in entries:
        yield entry
        yield entry.quantised("bf16")


def biases() -> Iterator[Entry]:
    name = "a bias goes into its product"
    for dtype in (FLOAT32, FLOAT16):
        for terms in ("p, b", "b, p"):
            yield Entry(f"{name}: {terms}, {dtype}", f"p = Q(x); y = Add({terms})",
                        "Q4NXMatMul x p b -> y", dtype=dtype)  # fmt: skip
    yield Entry(f"{name}, where the rows are not known", "p = Q(x); y = Add(p, b)",
                "Q4NXMatMul x p b -> y", given={"x": [None, "sequence", K]},
                runs=False)  # fmt: skip
    yield Entry("a bias of MatMulNBits is the step's", "y = Q(x, b)", "Q4NXMatMul x y b -> y")
    for shape in ((), (1,), (1, N), (1, 1, N)):
        yield Entry(f"what is added as {shape} is added outside", "p = Q(x); y = Add(p, b)",
                    "Q4NXMatMul x p -> p\nAdd p b -> y", given={"b": shape})  # fmt: skip
    yield Entry("what is no constant is added outside", "p = Q(x); y = Add(p, b)",
                "Q4NXMatMul x p -> p\nAdd p b -> y", given={"b": [N]})  # fmt: skip
    yield Entry("a second bias is added outside", "p = Q(x, b); y = Add(p, c)",
                "Q4NXMatMul x p b -> p\nAdd p c -> y", given={"c": (N,)})  # fmt: skip
    yield Entry("of two biases the first goes in", "p = Q(x); once = Add(p, b); y = Add(once, c)",
                "Q4NXMatMul x p b -> once\nAdd once c -> y", given={"c": (N,)})  # fmt: skip
    apart = "Q4NXMatMul x p -> p\nAdd p b -> y"
    yield Entry("a product that is wanted keeps its bias outside", "p = Q(x); y = Add(p, b)", apart,
                wanted=("p",))  # fmt: skip
    yield Entry("a product that others read keeps its bias outside",
                "p = Q(x); y = Add(p, b); z = Neg(p)", f"{apart}\nNeg")  # fmt: skip
    yield Entry("a product is not its own bias", "p = Q(x); y = Add(p, p)",
                "Q4NXMatMul x p -> p\nAdd p p -> y")  # fmt: skip
    yield Entry("a product is no bias of another", "p = Q(x); q = Q(r); y = Add(p, q)",
                "Q4NXMatMul x p -> p\nQ4NXMatMul r q -> q\nAdd p q -> y")  # fmt: skip
    yield Entry("a sum that comes out of a product has no bias",
                f"t = Add(x, r); n = {NORM}(t, w); y = Q(n); z = Add(t, c)",
                "Q4NXMatMul x y - w r -> y t norm_epsilon=1e-05\nAdd t c -> z",
                given={"c": (K,)})  # fmt: skip
    yield Entry("a gated MLP has no bias", f"{SILU.replace('y =', 'h =')}; y = Add(h, b)",
                "Q4NXGatedMLP x gate up -> h activation=silu\nAdd h b -> y")  # fmt: skip
    yield Entry("a factor is no bias", "p = Q(x); y = Mul(p, b)",
                "Q4NXMatMul x p -> p\nMul p b -> y")  # fmt: skip


def gated_mlps() -> Iterator[Entry]:
    for activation, name in ACTIVATIONS.items():
        for last in ("a, up", "up, a"):
            yield Entry(f"a gated MLP: {activation}, {last}",
                        f"gate = P(x); up = P(x); {activation}; y = Mul({last})",
                        f"Q4NXGatedMLP x gate up -> y activation={name}")  # fmt: skip
    for which in ("gate", "up"):
        yield Entry(f"a gated MLP with a bias of {which} stays in parts",
                    SILU.replace(f"{which} = P(x)", f"{which} = P(x, b)"),
                    f"{PARTS.replace(f'x {which} -> {which}', f'x {which} b -> {which}')}"
                    f"{SILU_PARTS}")  # fmt: skip
    for wanted in ("gate", "up", "s", "a"):
        yield Entry(f"a gated MLP whose {wanted} is wanted stays in parts", SILU,
                    PARTS + SILU_PARTS,
                    wanted=(wanted,))  # fmt: skip
        yield Entry(f"a gated MLP whose {wanted} is read stays in parts",
                    f"{SILU}; z = Neg({wanted})",
                    f"{PARTS}{SILU_PARTS}\nNeg")  # fmt: skip
    yield Entry("products of two inputs are no gated MLP", SILU.replace("up = P(x)", "up = P(r)"),
                PARTS.replace("x up", "r up") + SILU_PARTS)  # fmt: skip
    yield Entry("the sigmoid of another value is no activation",
                "gate = P(x); up = P(x); third = P(x); s = Sigmoid(third); a = Mul(gate, s)\n"
                "y = Mul(a, up)",
                f"{PARTS}Q4NXMatMul x third -> third\nActivation third -> s function=sigmoid\n"
                "Mul gate s -> a\nMul a up -> y")  # fmt: skip
    yield Entry("a gate is not its own factor",
                "gate = P(x); a = Gelu<approximate='tanh'>(gate); y = Mul(a, gate)",
                "Q4NXMatMul x gate -> gate\nActivation gate -> a function=gelu_tanh\n"
                "Mul a gate -> y")  # fmt: skip
    yield Entry("of two gated MLPs each is a step",
                f"{SILU}; g = P(r); u = P(r); c = QuickGelu<alpha=1.0>(g); z = Mul(u, c)",
                "Q4NXGatedMLP x gate up -> y activation=silu\n"
                "Q4NXGatedMLP r g u -> z activation=silu")  # fmt: skip
    yield Entry("a gated MLP takes the norm before it in",
                f"n = {NORM}<epsilon=0.25>(x, w); "
                "gate = P(n); up = P(n); a = Gelu<approximate='tanh'>(gate); y = Mul(a, up)",
                "Q4NXGatedMLP x gate up w -> y activation=gelu_tanh norm_epsilon=0.25")  # fmt: skip
    yield Entry("and the residual before that, whose sum comes out",
                f"n, -, -, t = {SKIP_NORM}<epsilon=0.25>(x, r, w); "
                f"{SILU.replace('P(x)', 'P(n)')}; z = Add(t, x); again = Neg(t)",
                "Q4NXGatedMLP x gate up w r -> y t activation=silu norm_epsilon=0.25\n"
                "Add t x -> z\nNeg")  # fmt: skip


def other_gated_mlps() -> Iterator[Entry]:
    for bits in (2, 8):
        yield Entry(f"a gated MLP of {bits} bits", SILU.replace("P(x)", f"Q<bits={bits}>(x)"),
                    f"Q4NXGatedMLP x gate up -> y activation=silu bits={bits}",
                    since=(1, 31) if bits == 2 else (1, 23))  # fmt: skip
    yield replace(next(gated_mlps()), name="a gated MLP in float16", dtype=FLOAT16)
    yield Entry("a gated MLP where the rows are not known", SILU,
                "Q4NXGatedMLP x gate up -> y activation=silu",
                given={"x": [None, None, K]}, runs=False)  # fmt: skip
    yield Entry("a gated MLP with zero points", SILU.replace("P(x)", "Q<points=True>(x)"),
                "Q4NXGatedMLP x gate up -> y activation=silu symmetric=0")  # fmt: skip
    differing = {
        "accuracy": ("accuracy_level=4", "Mul a up -> y"),
        "bits": ("bits=8", "Mul a up -> y"),
        "blocks": ("block_size=64, k=128", "Mul a up -> y"),
    }
    for what, (given, last) in differing.items():
        first = "k=128" if "k=" in given else "n=64"
        yield Entry(f"gate and up of two {what} are no gated MLP",
                    f"gate = Q<{first}>(x); up = Q<{given}>(x); s = Sigmoid(gate)\n"
                    "a = Mul(gate, s); y = Mul(a, up)",
                    f"{PARTS}{SILU_PARTS.rsplit(chr(10), 1)[0]}\n{last}",
                    given={"x": ["batch", "sequence", 128 if "k=" in given else K]},
                    near=0.03)  # fmt: skip
    for activation, function in {
        "Gelu": "gelu", "ms.Gelu": "gelu", "Sigmoid": "sigmoid",
        "QuickGelu<alpha=1.702>": "", "Tanh": "",
    }.items():  # fmt: skip
        op = activation.split("<")[0].removeprefix("ms.")
        rest = (
            f"Activation gate -> a function={function}\nMul a up -> y" if function else f"{op}\nMul"
        )
        yield Entry(f"{activation} is another activation",
                    f"gate = Q(x); up = Q(x); a = {activation}(gate); y = Mul(a, up)",
                    PARTS + rest)  # fmt: skip
    yield Entry("a FastGelu with a bias is another activation",
                "gate = Q(x); up = Q(x); a = FastGelu(gate, b); y = Mul(a, up)",
                f"{PARTS}FastGelu\nMul")  # fmt: skip


def packed(text: str = "", split: str = "axis=-1, num_outputs=2", n: int = 2 * N,
           activation: str = "s = Sigmoid(gate); a = Mul(gate, s)", results: str = "gate, up",
           inputs: str = "both") -> str:  # fmt: skip
    product = text or f"both = Q<n={n}>(x)"
    return f"{product}; {results} = Split<{split}>({inputs}); {activation}; y = Mul(a, up)"


def packed_mlps() -> Iterator[Entry]:
    whole = "Q4NXGatedMLP x both -> y activation=silu"
    for activation, name in ACTIVATIONS.items():
        yield Entry(f"gate and up in one tensor: {activation}", packed(activation=activation),
                    whole.replace("silu", name))  # fmt: skip
    for bits in (2, 8):
        yield Entry(f"gate and up in one tensor of {bits} bits",
                    packed(f"both = Q<n={2 * N}, bits={bits}>(x)"), f"{whole} bits={bits}",
                    since=(1, 31) if bits == 2 else (1, 23))  # fmt: skip
    yield Entry("gate and up in one tensor with zero points",
                packed(f"both = Q<n={2 * N}, points=True>(x)"), f"{whole} symmetric=0")  # fmt: skip
    yield Entry("halves along the third dimension", packed(split="axis=2, num_outputs=2"), whole)
    halves = {"sizes": np.array([N, N])}
    yield Entry("halves that an input gives", packed(split="axis=-1", inputs="both, sizes"), whole,
                given=halves)  # fmt: skip
    stays = "Q4NXMatMul x both -> both\nSplit\n~Sigmoid\n~Mul\n~Mul"
    for what, text, given in (
        ("along another axis", packed(split="axis=0, num_outputs=2"), {}),
        ("of two sizes", packed(split="axis=-1", inputs="both, sizes"),
         {"sizes": np.array([127, 1])}),
        ("in another order", packed(results="up, gate"), {}),
        ("in three", packed(split="axis=-1", results="gate, up, rest", inputs="both, sizes"),
         {"sizes": np.array([N, N, 0])}),
        ("that part inside a block of rows", packed(n=144), {}),
    ):  # fmt: skip
        yield Entry(f"a split {what} stays", text, stays, given=given,
                    runs="rest" not in text and "axis=0" not in text)  # fmt: skip
    yield Entry("a split whose sizes a call gives stays",
                packed(split="axis=-1", inputs="both, sizes"), stays,
                given={"sizes": [np.int64, 2]}, feeds=halves)  # fmt: skip
    yield Entry("gate and up in one tensor with a bias stay in parts",
                packed(f"both = Q<n={2 * N}>(x, c)"), stays.replace("x both ->", "x both c ->"),
                given={"c": (2 * N,)})  # fmt: skip
    for wanted in ("both", "gate", "up", "s", "a"):
        yield Entry(f"gate and up in one tensor whose {wanted} is wanted stay in parts", packed(),
                    stays, wanted=(wanted,))  # fmt: skip


def norms() -> Iterator[Entry]:
    for op in (NORM, RMS_NORM):
        for bias in ("", ", b"):
            slot = "b" if bias else "-"
            yield Entry(f"{op} goes into the product{' beside its bias' if bias else ''}",
                        f"n = {op}<epsilon=0.25>(x, w); y = P(n{bias})",
                        f"Q4NXMatMul x y {slot} w -> y norm_epsilon=0.25"
                        )  # fmt: skip
        yield Entry(f"an addition before {op} goes in with it",
                    f"t = Add(x, r); n = {op}<epsilon=0.25>(t, w); y = P(n)",
                    "Q4NXMatMul x y - w r -> y norm_epsilon=0.25")  # fmt: skip
        yield Entry(f"its sum comes out if it is wanted: {op}",
                    f"t = Add(x, r); n = {op}<epsilon=0.25>(t, w); y = P(n)",
                    "Q4NXMatMul x y - w r -> y t norm_epsilon=0.25", wanted=("t",))  # fmt: skip
        yield Entry(f"or if nodes read it, which come after the product: {op}",
                    f"t = Add(x, r); n = {op}<epsilon=0.25>(t, w); z = Neg(t); v = Abs(t)\n"
                    "y = P(n)",
                    "Q4NXMatMul x y - w r -> y t norm_epsilon=0.25\nNeg\nAbs")  # fmt: skip
    yield Entry("a norm and a residual in float16",
                f"n, -, -, t = {SKIP_NORM}<epsilon=0.25>(x, r, w); y = P(n)",
                "Q4NXMatMul x y - w r -> y t norm_epsilon=0.25", wanted=("t",), dtype=FLOAT16
                )  # fmt: skip
    yield Entry("epsilon left out is the norm's", f"n = {NORM}(x, w); y = P(n)",
                "Q4NXMatMul x y - w -> y norm_epsilon=1e-05")  # fmt: skip
    yield Entry("epsilon left out is the skip norm's, and a sum that nobody reads is not written",
                f"n = {SKIP_NORM}(x, r, w); y = P(n)",
                "Q4NXMatMul x y - w r -> y norm_epsilon=1e-12")  # fmt: skip
    skip = f"n, -, -, t = {SKIP_NORM}<epsilon=0.25>(x, r, w); y = P(n)"
    yield Entry("a sum that is an output keeps its name", skip,
                "Q4NXMatMul x y - w r -> y t norm_epsilon=0.25", wanted=("t",))  # fmt: skip


def norms_that_stay() -> Iterator[Entry]:
    alone = "RMSNorm x w -> n K=96 epsilon=0.25\n"
    plain = f"n = {NORM}<epsilon=0.25>(x, w)"
    products = [f"Q4NXMatMul n {name} -> {name}" for name in "abc"]
    yield Entry("a norm that several products read stays", f"{plain}; a = Q(n); b = Q(n); c = Q(n)",
                alone + "\n".join(products))  # fmt: skip
    yield Entry("a norm that is wanted stays", f"{plain}; y = Q(n)",
                f"{alone}Q4NXMatMul n y -> y", wanted=("n",))  # fmt: skip
    yield Entry("a norm behind a norm stays", f"{plain}; m = {NORM}<epsilon=0.25>(n, w); y = Q(m)",
                f"{alone}Q4NXMatMul n y - w -> y norm_epsilon=0.25")  # fmt: skip
    yield Entry("a norm that is added to a product stays",
                f"{plain}; p = Q<n={K}>(r); y = Add(p, n)",
                f"{alone}Q4NXMatMul r p -> p\nAdd p n -> y")  # fmt: skip
    yield Entry("a norm before a product that stays is left alone",
                f"{plain}; y = Q<block_size=16>(n)", f"{NORM}\nMatMulNBits",
                why={"y": "block_size is 16; Q4NX shares a scale among 32 in-features"},
                runs=False)  # fmt: skip
    for what, text, given in (
        ("another axis", f"n = {NORM}<axis=1>(x, v)", {"v": (3, K)}),
        ("float16 inside", f"n = {NORM}<stash_type=10>(x, w)", {}),
        ("an inverse deviation that is read", f"n, i = {NORM}(x, w)", {}),
    ):  # fmt: skip
        yield Entry(f"a norm with {what} stays", f"{text}; y = Q(n)",
                    f"{NORM}\nQ4NXMatMul n y -> y",
                    given=given, wanted=("i",), runs=False,
                    provider="axis=1" not in text)  # fmt: skip
    yield Entry("a skip norm with a bias stays", f"n = {SKIP_NORM}(x, r, w, v); y = Q(n)",
                f"{SKIP_NORM}\nQ4NXMatMul n y -> y", given={"v": (K,)})  # fmt: skip
    for shape, dims in (((3, K), f"3, {K}"), ((2, 1, K), f"2, 1, {K}")):
        yield Entry(f"a norm's weight {shape} is no row", f"n = {RMS_NORM}(x, w); y = Q(n)",
                    f"{RMS_NORM}\nQ4NXMatMul n y -> y", given={"w": shape},
                    why={"n": f"its scale is ({dims}); a step needs a scale of shape (K)"},
                    runs=False)  # fmt: skip
    yield Entry("a norm's weight of unknown size stays", f"n = {NORM}(x, w); y = Q(n)",
                f"{NORM}\nQ4NXMatMul n y -> y", given={"w": ["?"]}, runs=False,
                why={"n": "its scale is (?); a step needs a scale of shape (K)"})  # fmt: skip
    for shape in ((), (1,), (1, 1), (1, K), (1, 1, K)):
        # The provider sees the constant as it is; ONNX Runtime 1.23 does not broadcast it.
        yield Entry(f"a norm's weight {shape} is made a row", f"n = {RMS_NORM}(x, w); y = Q(n)",
                    f"Q4NXMatMul x y - w.{K} -> y norm_epsilon=1e-05",
                    given={"w": shape}, provider=False, since=(1, 24))  # fmt: skip


def residuals_that_stay() -> Iterator[Entry]:
    text = f"t = Add(x, o); n = {NORM}<epsilon=0.25>(t, w); y = Q(n)"
    last = "Q4NXMatMul t y - w -> y norm_epsilon=0.25"
    for what, given, step in (
        ("a row", (K,), "Add x o -> t"),
        ("one value", (1,), "Add x o -> t"),
        ("of unknown rows", ["batch", None, K], "Add"),
        ("broadcast", ["batch", 1, K], "Add"),
        ("of unknown rank", None, "Add"),
    ):
        for swap in (False, True):
            yield Entry(f"what is added before a norm is {what}{', first' if swap else ''}",
                        text.replace("x, o", "o, x") if swap else text, f"{step}\n{last}",
                        given={"o": given},
                        runs=given is not None and None not in list(given))  # fmt: skip
    yield Entry("a skip that may be broadcast keeps the norm",
                f"n = {SKIP_NORM}(x, r, w); y = Q(n)", f"{SKIP_NORM}\nQ4NXMatMul n y -> y",
                given={"r": [None, "sequence", K]}, runs=False)  # fmt: skip
    yield Entry("a sum of a value with itself goes in",
                f"t = Add(x, x); n = {NORM}<epsilon=0.25>(t, w); y = Q(n)",
                "Q4NXMatMul x y - w x -> y norm_epsilon=0.25")  # fmt: skip
    yield Entry("the first of two norms gives the sum that the other reads",
                f"t = Add(x, r); n = {NORM}<epsilon=0.25>(t, w); a = Q(n)\n"
                f"m = {NORM}<epsilon=0.5>(t, w); c = Q(m)",
                "Q4NXMatMul x a - w r -> a t norm_epsilon=0.25\n"
                "Q4NXMatMul t c - w -> c norm_epsilon=0.5")  # fmt: skip
    yield Entry("layers hand their sums on",
                f"s = Add(x, r); n = {NORM}<epsilon=0.25>(s, w); y = Q<n={K}>(n)\n"
                f"t = Add(s, y); m = {NORM}<epsilon=0.25>(t, w); z = Q(m)",
                "Q4NXMatMul x y - w r -> y s norm_epsilon=0.25\n"
                "Q4NXMatMul s z - w y -> z t norm_epsilon=0.25", wanted=("t",))  # fmt: skip
    yield Entry("an addition stays where its norm does",
                f"t = Add(x, r); n = {NORM}<epsilon=0.25>(t, w); a = Q(n); c = Q(n)",
                "Add x r -> t\nRMSNorm t w -> n epsilon=0.25\nQ4NXMatMul n a -> a\n"
                "Q4NXMatMul n c -> c")  # fmt: skip
    # Otherwise a product would read a value that is made of its own.
    yield Entry("a sum that a bias is made of is computed before",
                f"t = Add(x, r); m = ReduceMax<keepdims=0>(t, axes)\n"
                f"n = {NORM}<epsilon=0.25>(t, w); y = Q<n={K}>(n, m)",
                "Add\nReduceMax\nQ4NXMatMul t y m w -> y norm_epsilon=0.25",
                given={"axes": np.array([0, 1])})  # fmt: skip
    yield Entry("the sum of a norm that a bias is made of is computed before",
                f"n, -, -, t = {SKIP_NORM}<epsilon=0.25>(x, r, w)\n"
                f"m = ReduceMax<keepdims=0>(t, axes); y = Q<n={K}>(n, m)",
                f"{SKIP_NORM}\nReduceMax\nQ4NXMatMul n y m -> y",
                given={"axes": np.array([0, 1])})  # fmt: skip
    yield Entry("a bias that is computed before the sum does not matter",
                f"m = ReduceMax<keepdims=0>(v, axes); n = {SKIP_NORM}<epsilon=0.25>(x, r, w)\n"
                "y = Q(n, m)",
                "ReduceMax\nQ4NXMatMul x y m w r -> y norm_epsilon=0.25",
                given={"v": ["batch", N], "axes": np.array([0])})  # fmt: skip


ENTRIES = [
    entry
    for make in (
        biases(), both_forms(gated_mlps()), other_gated_mlps(), packed_mlps(),
        both_forms(norms()), norms_that_stay(), residuals_that_stay(),
    )
    for entry in make
]  # fmt: skip
