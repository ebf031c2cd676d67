"""The nodes between products, in the regions of these: sums, factors, functions, norms with a gate,
casts, rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from graphs import Entry, Given, K
from op_models import FLOAT16

PRODUCT = "y = Q(h)"
STEP = "Q4NXMatMul h y -> y"
# As the model builder declares what it writes.
BETWEEN = {name: ["batch", "sequence", K] for name in "abcdepth"}
OUTSIDE = "Q4NXMatMul x p -> p\n"


def before(name: str, text: str, step: str, given: Mapping[str, Given] = {}, **more: Any) -> Entry:
    """A node before a product."""
    return Entry(name, f"h = {text}; {PRODUCT}", f"{step}\n{STEP}", given=given, **more)


def elementwise() -> Iterator[Entry]:
    for op in ("Add", "Mul"):
        for what, given, claimed in (
            ("a tensor", ["batch", "sequence", K], True),
            ("a row", (K,), True),
            ("a row of more dimensions", (1, 1, K), True),
            ("one value", (1,), True),
            ("no dimension", (), True),
            ("several rows", (3, K), False),
            ("a column", (3, 1), False),
            ("a tensor of unknown rows", ["batch", "any", K], False),
        ):  # fmt: skip
            rows: dict[str, Given] = {"o": given, "x": ["batch", 3, K] if given == (3, K) else
                                      ["batch", "sequence", K]}  # fmt: skip
            for terms, step in (("x, o", f"{op} x o -> h"), ("o, x", f"{op} x o -> h")):
                step = f"{op} o x -> h" if what == "a tensor" and terms == "o, x" else step
                yield before(f"{op} of {what}: {terms}", f"{op}({terms})",
                             step if claimed else op, rows,
                             sizes=({"batch": 2, "sequence": 3, "any": 3},))  # fmt: skip
    for text, function in (
        ("Sigmoid(x)", "sigmoid"), ("Gelu(x)", "gelu"), ("ms.Gelu(x)", "gelu"),
        ("Gelu<approximate='tanh'>(x)", "gelu_tanh"), ("FastGelu(x)", "gelu_tanh"),
        ("QuickGelu<alpha=1.0>(x)", "silu"), ("QuickGelu<alpha=1.5>(x)", ""), ("Tanh(x)", ""),
    ):  # fmt: skip
        op = text.split("(")[0].split("<")[0].removeprefix("ms.")
        step = f"Activation x -> h function={function}" if function else op
        yield before(f"{text} before a product", text, step)
        if function and "QuickGelu" not in text:
            yield before(f"{text} of float16", text, step, dtype=FLOAT16)
    yield Entry("what reads no product stays", "y = Add(x, r); z = Sigmoid(x)", "Add\nSigmoid")


def gated_norms() -> Iterator[Entry]:
    for activation in ("silu", "swish", "sigmoid"):
        for k in (32, K):
            own = "sigmoid" if activation == "sigmoid" else "silu"
            yield before(f"a norm of {k} with {activation} of a gate",
                         f"GatedRMSNorm<epsilon=0.25, activation='{activation}'>(x, g, r)",
                         f"GatedRMSNorm x g r -> h activation={own} epsilon=0.25", {"g": (k,)},
                         since=(1, 32))  # fmt: skip
    yield before("a norm whose gate has unknown rows", "GatedRMSNorm(x, w, r)", "GatedRMSNorm",
                 {"r": [None, None, K]}, since=(1, 32), runs=False)  # fmt: skip


def moved() -> Iterator[Entry]:
    ids: dict[str, Given] = {"ids": [np.int64, "batch", "sequence"], "table": (20, K)}
    yield before("rows of a table", "Gather(table, ids)", "Gather table ids -> h", ids)
    yield before("rows by int32", "Gather<axis=0>(table, ids)", "Gather table ids -> h",
                 ids | {"ids": [np.int32, "batch", "sequence"]})  # fmt: skip
    yield before("columns of a table", "Gather<axis=1>(table, ids)", "Gather",
                 ids | {"table": (K, 20), "ids": [np.int64, K]})  # fmt: skip
    yield before("rows of what a call gives", "Gather(table, ids)", "Gather",
                 ids | {"table": [20, K]})  # fmt: skip
    # 0 is no dimension to copy: its rows are none, and not those of x.
    yield Entry("rows that a Reshape takes away",
                "e = Reshape<allowzero=1>(x, none); a = Add(e, x)\n"
                f"h = SimplifiedLayerNormalization(a, w); {PRODUCT}",
                "Reshape\nAdd\nQ4NXMatMul a y - w -> y norm_epsilon=1e-05",
                given={"none": np.array([0, 0, K])}, opens=False)  # fmt: skip
    one: dict[str, Given] = {"ids": [np.int64, "batch", 1, 1]}
    last = {"feeds": {"ids": np.array([[[2]], [[0]]])}}
    yield before("a row of each batch row", "GatherND<batch_dims=1>(x, ids)",
                 "SelectRows x ids -> h", one, **last)  # fmt: skip
    yield before("a row of the first batch row", "GatherND(x, ids)", "GatherND",
                 {"ids": [np.int64, "batch", "sequence", 2]},
                 feeds={"ids": np.zeros((2, 3, 2), np.int64)})  # fmt: skip
    casts = "t = Cast<to=10>(p); h = Cast<to=1>(t)"
    yield Entry("casts between products", f"p = Q<n={K}>(x); {casts}; {PRODUCT}",
                f"{OUTSIDE}Cast p -> t dtype=10\nCast t -> h dtype=1\n{STEP}")  # fmt: skip
    # ONNX Runtime may drop all of them.
    yield Entry("casts behind another node stay with it",
                f"p = Q<n={K}>(x); q = Sqrt(p); {casts.replace('(p)', '(q)')}; {PRODUCT}",
                f"Q4NXMatMul x p -> p\nSqrt\nCast\nCast\n{STEP}", runs=False)  # fmt: skip


def regions() -> Iterator[Entry]:
    yield Entry("another node cuts a region in two",
                f"p = Q<n={K}>(x); t = Tanh(p); h = Add(t, p); {PRODUCT}",
                f"{OUTSIDE}Tanh\nAdd t p -> h\n{STEP}", declared=BETWEEN)  # fmt: skip
    yield Entry("two towers do not wait for each other",
                f"a = Q<n={K}>(x); b = Tanh(a); c = Q(b); d = Q<n={K}>(r); e = Tanh(d); f = Q(e)",
                "Q4NXMatMul x a -> a\nTanh\nQ4NXMatMul b c -> c\nQ4NXMatMul r d -> d\nTanh\n"
                "Q4NXMatMul e f -> f")  # fmt: skip
    yield Entry("what is around several nodes",
                f"a = Q<n={K}>(x); b = Sigmoid(a); c = Add(b, a); d = Tanh(c); e = Add(d, c)\n"
                "f = Q(e)",
                "Q4NXMatMul x a -> a\nActivation a -> b function=sigmoid\nAdd b a -> c\nTanh\n"
                "Add d c -> e\nQ4NXMatMul e f -> f", declared=BETWEEN)  # fmt: skip


ENTRIES = [*elementwise(), *gated_norms(), *moved(), *regions()]
