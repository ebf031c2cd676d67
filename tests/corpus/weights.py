"""Weights in any form, and the embeddings that share them: MatMulNBits, GatherBlockQuantized,
DequantizeLinear, float matrices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
from builder_nodes import projection_weights
from graphs import AS_IT_IS, ROUNDED, Array, Entry, Given, K, N, steps
from op_models import BFLOAT16, FLOAT16, FLOAT32

ROWS: list[Any] = ["batch", "sequence", K]
TWO_BITS = (1, 31)  # ONNX Runtime's own MatMulNBits


def form(bits: int, block: int, symmetric: bool) -> str:
    """What a step says of the smallest form."""
    own = "" if bits == 4 else f" bits={bits}"
    if block == 32 and not symmetric:
        return f"{own} format=1 symmetric=0"
    return f"{own} format=2 group={block} minima={int(not symmetric)} symmetric={int(symmetric)}"


def projections() -> Iterator[Entry]:
    for bits in (4, 8, 2):
        for block in (32, 64, 128, 256):
            for points in (False, True):
                k, near = (K, ROUNDED) if block == 32 else (512, ROUNDED)
                yield Entry(f"a projection of {bits} bits in blocks of {block}, {points=}",
                            f"y = Q<bits={bits}, block_size={block}, k={k}, points={points}>(x, b)",
                            f"Q4NXMatMul x y b -> y{form(bits, block, not points)}",
                            given={"x": ["batch", "sequence", k]}, near=near,
                            since=TWO_BITS if bits == 2 else (1, 23))  # fmt: skip
    for dtype in (FLOAT16, BFLOAT16):
        yield Entry(f"a projection in {dtype}", "y = Q(x)", "Q4NXMatMul x y -> y accuracy_level=0",
                    dtype=dtype, runs=dtype == FLOAT16)  # fmt: skip
    # int8 activations, two steps of 1/127 of the largest of 32: independent errors.
    yield Entry("accuracy_level is the step's", "y = Q<accuracy_level=4>(x)",
                "Q4NXMatMul x y -> y accuracy_level=4", near=0.03)  # fmt: skip
    for dtype in (FLOAT32, FLOAT16):
        for points in (FLOAT32, FLOAT16):
            arrays = projection_weights(N, K, dtype=dtype, zero_points=points)
            yield Entry(f"zero points of {points} beside scales of {dtype}", OF("proj.zero_points"),
                        "Q4NXMatMul x proj -> y symmetric=0", given=arrays,
                        dtype=dtype)  # fmt: skip
    flat = {n: w.reshape(-1) if "B" not in n else w
            for n, w in projection_weights(N, K, zero_points=True).items()}  # fmt: skip
    yield Entry("scales and zero points in one dimension", OF("proj.zero_points"),
                "Q4NXMatMul x proj -> y symmetric=0", given=flat)  # fmt: skip


def OF(points: str = "-", *more: str, **given: int) -> str:
    """A MatMulNBits of x and of `projection_weights`."""
    attributes = {"K": K, "N": N, "bits": 4, "block_size": 32} | given
    text = ", ".join(f"{name}={value}" for name, value in attributes.items())
    return f"y = MatMulNBits<{text}>({', '.join(['x', 'proj.B', 'proj.scales', points, *more])})"


def projections_that_stay() -> Iterator[Entry]:
    plain = projection_weights(N, K)
    pointed = projection_weights(N, K, zero_points=True)
    points = "proj.zero_points"

    def of_bits(bits: int, **given: Any) -> dict[str, Array]:
        return projection_weights(N, K, bits=bits, **given)

    a_call = "B, scales or zero_points are not constant"
    for text, given, why in (
        (OF(bits=1), plain, "weights have 1 bits; Q2NX holds 2, Q4NX 4 and Q8NX 8"),
        (OF(block_size=16), projection_weights(N, K, block_size=16),
         "block_size is 16; Q4NX shares a scale among 32 in-features and cannot hold it"),
        (OF(block_size=16, bits=8), projection_weights(N, K, block_size=16, bits=8),
         "block_size is 16; Q8NX shares a scale among 32 in-features and cannot hold it"),
        (OF(block_size=512), projection_weights(N, K, block_size=512),
         "block_size is 512; expected 32, 64, 128 or 256"),
        (OF(points, bits=8), of_bits(8, zero_points=FLOAT32),
         "zero_points are FLOAT; with 8 bits they must be UINT8"),
        (OF("-", "g"), plain | {"g": np.arange(K, dtype=np.int32) // 32},
         "g_idx permutes the groups"),
        (OF(), plain | {"proj.B": [np.uint8, N, 3, 16]}, a_call),
        (OF(), plain | {"proj.scales": [N, 3]}, a_call),
        (OF(points), pointed | {points: [np.uint8, N, 2]}, a_call),
        (OF(weight_prepacked=1), plain, "weight_prepacked=1 is a CUDA layout"),
        (OF(points), pointed | {points: np.zeros((N, 3), np.int32)},
         "zero_points are INT32; expected UINT8, FLOAT, FLOAT16 or BFLOAT16"),
    ):  # fmt: skip
        yield Entry(f"{why}: {text}, {sorted(n for n in given if isinstance(given[n], list))}",
                    text,
                    AS_IT_IS, why={"y": why}, given=given, runs=False, opens=False,
                    provider="INT32" not in why, since=(1, 31))  # fmt: skip


def malformed() -> Iterator[Entry]:
    """What `compile` refuses with an error, the provider leaves."""
    plain, pointed = projection_weights(N, K), projection_weights(N, K, zero_points=True)
    for given, why in (
        (plain | {"proj.B": np.zeros((N, 2, 16), np.uint8)},
         "its B is (64, 2, 16); expected (64, 3, 16)"),
        (plain | {"proj.scales": np.ones((63, 3), np.float32)},
         "its scales is (63, 3); expected (64, 3)"),
        (pointed | {"proj.zero_points": np.zeros((N, 1), np.float16)},
         "its zero_points is (64, 1); expected"),
        (pointed | {"proj.zero_points": np.zeros((N, 3), np.uint8)},
         "its zero_points is (64, 3); expected"),
        (projection_weights(N, K, bits=8) | {"proj.zero_points": np.zeros((N, 2), np.uint8)},
         "its zero_points is (64, 2); expected (64, 3)"),
    ):  # fmt: skip
        bits = {"bits": 8} if given["proj.B"].shape[-1] == 32 else {}
        points = "proj.zero_points" if "proj.zero_points" in given else "-"
        yield Entry(why, OF(points, **bits), "", why={"y": why}, given=given)


# --- embeddings -----------------------------------------------------------------------------------


def tied(*, n: int = N, k: int = K, bits: int = 4, block: int = 32, points: bool = False,
         of: str = "head.B", gather: str = "", point: str = "", reshaped: list[int] | None = None
         ) -> tuple[str, dict[str, Given]]:  # fmt: skip
    """h = rows of the weights of y's projection, and what they are."""
    arrays = projection_weights(
        n, k, bits=bits, block_size=block, zero_points=points, prefix="head"
    )
    blocks = -(-k // block)
    names = ", ".join(list(arrays)[1:])
    given: dict[str, Given] = {
        **arrays,
        "sizes": np.array(reshaped or [n, blocks * block * bits // 8]),
        "ids": [np.int64, "batch", "sequence"],
        "other": arrays["head.B"] ^ 1,
        "points": np.full((n, -(-blocks * bits // 8)), 0x33, np.uint8),
    }
    own = f"bits={bits}, block_size={block}, gather_axis=0, quantize_axis=1"
    text = (
        f"data = Reshape({of}, sizes)\n"
        f"h = GatherBlockQuantized<{gather or own}>(data, ids, {point or names})\n"
        f"y = MatMulNBits<K={k}, N={n}, bits={bits}, block_size={block}>(h, head.B, {names})"
    )
    return text, given


def embeddings() -> Iterator[Entry]:
    for bits in (4, 8, 2):
        for points in (False, True):
            text, given = tied(bits=bits, points=points)
            stated = form(bits, 32, not points)
            yield Entry(f"an embedding shares the projection's {bits} bits, {points=}", text,
                        f"Q4NXGather head ids -> h{stated.rsplit(' symmetric', 1)[0]} dtype=1\n"
                        f"Q4NXMatMul h head -> y{stated}", given=given,
                        since=TWO_BITS if points or bits == 2 else (1, 23))  # fmt: skip
    whole = "Q4NXGather head ids -> h dtype=1\nQ4NXMatMul h head -> y"
    for reshaped in ([N, -1], [-1, 48], [0, 48]):
        if reshaped == [0, 48]:
            continue  # 0 copies a dimension: the codes then have three
        text, given = tied(reshaped=reshaped)
        yield Entry(f"an embedding reshaped to {reshaped}", text, whole, given=given)
    text, given = tied(k=80)
    yield Entry(
        "an embedding of rows that are no whole blocks stays",
        text,
        "Reshape\nGatherBlockQuantized\nQ4NXMatMul h head -> y",
        given=given,
        why={"h": "K=80 is not a multiple of block_size=32"},
        provider=False,
        opens=False,
    )
    loose = "its weights are not tied to a MatMulNBits; the CPU EP gathers them as they are"
    untied = "bits=4, block_size={}, gather_axis=0, quantize_axis=1"
    stays = "the projection that it is tied to stays on the CPU EP: "
    # ONNX Runtime refuses those of `False` before it asks the provider.
    for what, (text, given), why, asked in (
        ("of its own", tied(of="other"), loose, True),
        ("in other blocks", tied(gather=untied.format(64)), loose, False),
        ("with other zero points", tied(points=True, point="head.scales, points"), loose, True),
        ("without the zero points", tied(points=True, point="head.scales"), loose, True),
        ("of one bit", tied(bits=1, gather=untied.format(32)), f"{stays}weights have 1 bits",
         False),
        ("in blocks of 16", tied(block=16, gather=untied.format(16)),
         f"{stays}block_size is 16", True),
        ("that has no whole blocks", tied(k=80), "K=80 is not a multiple of block_size=32", False),
        ("that is reshaped", tied(reshaped=[2 * N, 24]),
         "its data is reshaped to something other than 64 rows", False),
        ("of other bits", tied(bits=8, gather=untied.format(32)),
         "its codes have 4 bits, but those of the projection have 8", False),
    ):  # fmt: skip
        product = "MatMulNBits" if why.startswith(stays) else "Q4NXMatMul h head -> y"
        yield Entry(f"an embedding {what} stays", text,
                    steps("Reshape", "GatherBlockQuantized", product), why={"h": why}, given=given,
                    runs=False, opens=False, provider=asked)  # fmt: skip


def shared() -> Iterator[Entry]:
    """Products that read the same codes in another way."""
    arrays = projection_weights(N, 128, block_size=64)
    first = f"y = MatMulNBits<K=128, N={N}, bits=4, block_size=64>(x, proj.B, proj.scales)"
    for what, k, bits, block, scales in (
        ("other scales", 128, 4, 64, "more"),
        ("as 64 codes of 8 bits", 64, 8, 32, "proj.scales"),
        ("fewer in-features", 100, 4, 64, "proj.scales"),
    ):
        second = (
            f"z = MatMulNBits<K={k}, N={N}, bits={bits}, block_size={block}>(v, proj.B, {scales})"
        )
        yield Entry(f"codes that another product reads with {what}", steps(first, second),
                    "Q4NXMatMul x proj -> y\nQ4NXMatMul v * -> z",
                    given={**arrays, "more": arrays["proj.scales"] * np.float32(2),
                           "x": ["batch", 128], "v": ["batch", k]})  # fmt: skip
    taken = projection_weights(N, K) | {"proj.B_q4nx": np.ones((2, N), np.float32)}
    yield Entry("a tensor that has the name of a packed one stays",
                f"{OF()}; z = Add(y, proj.B_q4nx)", "Q4NXMatMul x * -> y\nAdd y proj -> z",
                given={**taken, "x": [2, K]})  # fmt: skip


# --- DequantizeLinear -----------------------------------------------------------------------------

CODE_TYPES = {"int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4, "int8": np.int8}


def codes(kind: str, shape: tuple[int, ...], seed: int = 1) -> Array:
    low, high = (0, 16) if kind == "uint4" else (-8, 8)
    drawn = np.random.default_rng([seed, *shape]).integers(low, high, shape)
    return drawn.astype(CODE_TYPES[kind])


def dequantised(
    *, kind: str = "int4", block: int = 32, points: bool = False, turned: bool = False,
    op: str = "MatMul", scales: str = "blocks", axis: int | None = None, k: int = K, n: int = N,
    given: str = "", dtype: np.dtype[Any] = FLOAT32,
) -> tuple[str, dict[str, Given]]:  # fmt: skip
    """x or ids through `op` with codes (K, N), or `turned` (N, K)."""
    blocks = -(-k // block)
    shape, each = ((n, k), (n, blocks)) if turned else ((k, n), (blocks, n))
    each = {"blocks": each, "columns": (n,), "one": ()}[scales]
    # Scales of 4 bits, so that packing changes nothing.
    drawn = np.random.default_rng([k, n]).integers(1, 16, each).astype(dtype) / dtype.type(64)
    along = int(turned)
    attributes = f"axis={(along if scales == 'blocks' else 1 - along) if axis is None else axis}"
    attributes += f", block_size={block}" if scales == "blocks" else ""
    names = "codes, scales" + (", points" if points else "")
    lines = [f"m = DequantizeLinear<{attributes}>({names})"]
    matrix = "m"
    if turned and op == "MatMul":
        lines.append("t = Transpose<perm=[1, 0]>(m)")
        matrix = "t"
    if op == "Gather":
        lines.append(f"y = Gather<{given or 'axis=0'}>(m, ids)")
    elif op == "Gemm":
        lines.append(f"y = Gemm<transB={int(turned)}{', ' + given if given else ''}>(x, m, b)")
    else:
        lines.append(f"y = MatMul(x, {matrix})")
    made: dict[str, Given] = {
        "codes": codes(kind, shape), "scales": np.asarray(drawn), "points": codes(kind, each, 2),
        "ids": [np.int64, "batch", "sequence"], "x": ["batch", k], "b": (n,),
    }  # fmt: skip
    return steps(*lines), made


def dequantisations() -> Iterator[Entry]:
    def of(name: str, becomes: str, options: Mapping[str, Any], **more: Any) -> Entry:
        text, given = dequantised(**options)
        dtype = options.get("dtype", FLOAT32)
        return Entry(f"{name}: {options}", text, becomes, given=given, provider=False, dtype=dtype,
                     **{"since": (1, 24)} | more)  # fmt: skip

    for kind in ("int4", "uint4"):
        for points in (False, True):
            for turned in (False, True):
                symmetric = int(kind == "int4" and not points)
                yield of("blocks that are dequantised",
                         f"Q4NXMatMul x codes -> y symmetric={symmetric}",
                         {"kind": kind, "points": points, "turned": turned})  # fmt: skip
    for block in (64, 128, 256):
        yield of("other blocks", f"Q4NXMatMul x codes -> y group={block}",
                 {"block": block, "k": 512})  # fmt: skip
    for scales in ("columns", "one"):
        for points in (False, True):
            for turned in (False, True):
                yield of("without blocks", "Q4NXMatMul x codes -> y",
                         {"scales": scales, "points": points, "turned": turned},
                         since=(1, 31))  # fmt: skip
    for turned in (False, True):
        yield of("a Gemm", "Q4NXMatMul x codes b -> y", {"op": "Gemm", "turned": turned})
    yield of("in float16", "Q4NXMatMul x codes -> y", {"dtype": FLOAT16})
    yield of(
        "rows of a table", "Q4NXGather codes ids -> y dtype=1", {"op": "Gather", "turned": True}
    )
    for options, why in (
        ({"kind": "int8"}, "weights are INT8; Q4NX holds INT4 and UINT4"),
        ({"block": 16}, "block_size is 16; Q4NX shares a scale among 32 in-features"),
        ({"k": 64, "axis": 1}, "its blocks lie along the out-features"),
        ({"k": 64, "scales": "columns", "axis": 0}, "it has a scale for each in-feature"),
        ({"op": "Gemm", "given": "alpha=2.0"}, "alpha, beta or transA is not at its default"),
        ({"op": "Gather"}, "its blocks lie along the out-features"),
        ({"op": "Gather", "turned": True, "given": "axis=1"}, "it gathers columns"),
    ):  # fmt: skip
        yield replace(of("what stays", AS_IT_IS, options), why={"y": why}, runs=False, opens=False)
    text, given = dequantised(op="Gather", turned=True)
    yield Entry("a dequantised table that is a projection too",
                f"{text}; t = Transpose<perm=[1, 0]>(m); z = MatMul(y, t)",
                "Q4NXGather codes ids -> y dtype=1\nQ4NXMatMul y codes -> z", given=given,
                provider=False,
                since=(1, 24), wanted=("y",))  # fmt: skip
    text, given = dequantised()
    yield Entry("a dequantised product and its bias", f"{text}; z = Add(y, b)",
                "Q4NXMatMul x codes b -> z", given=given, provider=False, since=(1, 24),
                declared={"y": ["batch", N]})  # fmt: skip


# --- float matrices -------------------------------------------------------------------------------

# The RMS error of normally distributed weights in a form is below this.
LOST = {"q4nx": 0.09, "q2nx": 0.4, "q8nx": 0.008, "bf16": 2.0**-8}


def floats() -> Iterator[Entry]:
    matrix = np.random.default_rng(5).standard_normal((K, N)).astype(np.float32) / np.float32(10)
    flat: dict[str, Given] = {"x": ["batch", K], "m": matrix, "t": matrix.T.copy(), "b": (N,)}

    def of(
        name: str, text: str, becomes: str, given: Mapping[str, Given] = {}, **more: Any
    ) -> Entry:
        return Entry(name, text, becomes, given=flat | dict(given), provider=False, **more)

    for kind, lost in LOST.items():
        near = {"near": lost + ROUNDED}
        for name, text, becomes in (
            ("a product", "y = MatMul(x, m)", "Q4NXMatMul x m -> y"),
            ("behind a Transpose", "u = Transpose<perm=[1, 0]>(t); y = MatMul(x, u)",
             "Q4NXMatMul x t -> y"),
            ("behind an Identity", "u = Identity(m); y = MatMul(x, u)", "Q4NXMatMul x m -> y"),
            ("a Gemm", "y = Gemm(x, m)", "Q4NXMatMul x m -> y"),
            ("a turned Gemm with a bias", "y = Gemm<transB=1>(x, t, b)", "Q4NXMatMul x t b -> y"),
            ("a product and its bias", "p = MatMul(x, m); y = Add(b, p)", "Q4NXMatMul x m b -> y"),
        ):  # fmt: skip
            yield of(f"{name} of floats", text, becomes, **near).quantised(kind)
    for name, text, becomes, given in (
        ("a row that is added otherwise", "p = MatMul(x, m); y = Add(p, b)",
         "Q4NXMatMul x m -> p\nAdd p b -> y", {"b": (1, N)}),
        ("both orientations of one matrix", "u = Transpose<perm=[1, 0]>(m); p = MatMul(x, m)\n"
         "y = MatMul(p, u)", "Q4NXMatMul x * -> p\nQ4NXMatMul p * -> y", {}),
    ):  # fmt: skip
        yield of(name, text, becomes, given).quantised("bf16")
    small = "less than 32 either way is mostly padding"
    fits = "its C is not a constant vector of N"
    for text, given, why in (
        ("y = MatMul(x, m)", {"x": ["batch", 31], "m": (31, N)}, f"K=31 N=64: {small}"),
        ("y = MatMul(x, m)", {"m": (K, 8)}, f"K=96 N=8: {small}"),
        ("y = Gemm<transA=1>(x, m)", {"x": [K, "batch"]},
         "transA is not 0: its activations are transposed"),
        ("y = Gemm<alpha=0.5>(x, m)", {}, "alpha=0.5 beta=1 must both be 1"),
        ("y = Gemm<beta=2.0>(x, m, b)", {}, "alpha=1 beta=2 must both be 1"),
        ("y = Gemm(x, m, b)", {"b": (1, N)}, fits),
        ("y = Gemm(x, m, b)", {"b": [N]}, fits),
        ("y = MatMul(x, m)", {"x": [2, 2, K], "m": (2, K, N)},
         "its weights have 3 dimensions; expected (K, N)"),
        ("y = MatMul(x, m)", {"m": [K, N]},
         "its second input is not a constant, so there are no weights"),
    ):  # fmt: skip
        for kind in ("q4nx", "bf16"):
            yield replace(of(f"{why}: {text} {given.get('b', '')}", text, AS_IT_IS,
                             given).quantised(kind),
                          why={"y": why},
                          runs=False)  # fmt: skip
    unasked = "its weights are FLOAT: compile --quantize q4nx or bf16 replaces it"
    yield of("unasked the report says what could be done", "y = MatMul(x, m)", AS_IT_IS,
             why={"y": unasked}, runs=False)  # fmt: skip
    yield of("names that match a pattern are kept", "y = MatMul(x, m); z = Gemm(x, m)",
             "MatMul\nQ4NXMatMul x m -> z", why={"y": "kept by --keep '/y*'"}, keep=("/y*",),
             near=LOST["q4nx"] + ROUNDED).quantised("q4nx")  # fmt: skip
    tied_text = "h = Gather(t, ids); p = Transpose<perm=[1, 0]>(t); y = MatMul(x, p)"
    yield replace(of("rows of a matrix of floats stay so", tied_text, "Gather\nQ4NXMatMul x t -> y",
                     {"ids": [np.int64, "batch"]}).quantised("q4nx"),
                  why={"h": "its rows are FLOAT and stay so"},
                  near=LOST["q4nx"] + ROUNDED)  # fmt: skip


ENTRIES = [
    *projections(), *projections_that_stay(), *embeddings(), *shared(), *dequantisations(),
    *floats(),
]  # fmt: skip
MALFORMED = list(malformed())
