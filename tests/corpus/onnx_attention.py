"""ONNX's Attention, MultiHeadAttention, and attention without a cache that an exporter spelled out:
`compile` alone reads these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from graphs import AS_IT_IS, EXACT, REST, Entry, Given, steps
from op_models import FLOAT16

H, KV, D = 4, 2, 8
MICROSOFT_OF = {"": "", "com.microsoft": "ms."}
SPLIT: dict[str, Given] = {
    "Q": ["batch", H, "queries", D],
    "K": ["batch", KV, "keys", D],
    "V": ["batch", KV, "keys", D],
    "past_key": ["batch", KV, "past", D],
    "past_value": ["batch", KV, "past", D],
}
JOINED = SPLIT | {
    "Q": ["batch", "queries", H * D],
    "K": ["batch", "keys", KV * D],
    "V": ["batch", "keys", KV * D],
}
COUNTS = f"q_num_heads={H}, kv_num_heads={KV}"
CACHE = "-, past_key, past_value"


def sizes(
    *tokens: int, past: int = 0, keys: int = 0, batch: int = 2
) -> tuple[Mapping[str, int], ...]:
    return tuple(
        {"batch": batch, "queries": n, "keys": keys or n, "past": past, "total": past + (keys or n)}
        for n in tokens
    )


def entry(
    name: str, text: str, becomes: str, given: Mapping[str, Given] = {}, **more: Any
) -> Entry:
    found = {"near": EXACT, "sizes": sizes(5), "provider": False, "since": (1, 31)} | more
    return Entry(name, text, becomes, given=SPLIT | dict(given), **found)


def attention(inputs: str = "Q, K, V", given: str = "", results: str = "Y") -> str:
    return f"{results} = Attention<{given}>({inputs})"


PRESENTS = "Y, present_key, present_value"
TURNED = "Transpose\nReshape\n"


PLAIN = "causal=0 local_window_size=-1 scale=0 softcap=0"


def around(inputs: str, results: str) -> str:
    """With what stands around the attention of (batch, heads, tokens, channels)."""
    own = f"FlowAttention {inputs} -> {results or '* * *'} {PLAIN}"
    return f"{TURNED * 3}{own}\nReshape\nTranspose"


def layouts() -> Iterator[Entry]:
    plain = "local_window_size=-1 scale=0 softcap=0"
    for causal in (0, 1):
        given = f"causal={causal} {plain}"
        for cached in (False, True):
            inputs, results = (f"Q, K, V, {CACHE}", PRESENTS) if cached else ("Q, K, V", "Y")
            of = [*sizes(1, 5, 70, past=0), *(sizes(1, 5, past=1) + sizes(1, 70, past=300)
                                              if cached else ())]  # fmt: skip
            cache = " past_key past_value" if cached else ""
            yield entry(f"tokens, causal={causal}, {cached=}",
                        attention(inputs, f"{COUNTS}, is_causal={causal}", results),
                        f"FlowAttention Q K V{cache} -> "
                        f"{results.replace(',', '') if cached else 'Y * *'} {given}", JOINED,
                        sizes=of, opset=24)  # fmt: skip
            yield entry(f"heads, causal={causal}, {cached=}",
                        attention(inputs, f"is_causal={causal}", results),
                        around(f"* * *{cache}", "* present_key present_value" if cached else "")
                        .replace("causal=0", f"causal={causal}"), sizes=of)  # fmt: skip
        yield entry(f"keys of another sequence, causal={causal}",
                    attention(given=f"{COUNTS}, is_causal={causal}"),
                    f"FlowAttention Q K V -> Y * * {given}", JOINED,
                    sizes=[*sizes(5, keys=40), *sizes(40, keys=5), *sizes(1, keys=9)])  # fmt: skip
    causal = "is_causal=1"
    yield entry("presents without a past", attention("Q, K, V", f"{COUNTS}, {causal}", PRESENTS),
                f"FlowAttention Q K V -> {PRESENTS.replace(',', '')} causal=1 {plain}",
                JOINED)  # fmt: skip
    yield entry("a past whose present nobody wants",
                attention(f"Q, K, V, {CACHE}", f"{COUNTS}, {causal}"),
                f"FlowAttention Q K V past_key past_value -> Y * * causal=1 {plain}", JOINED,
                sizes=sizes(5, past=20), against="onnx")  # fmt: skip
    yield entry("ONNX's in float16",
                attention(f"Q, K, V, {CACHE}", f"{COUNTS}, {causal}", PRESENTS),
                "FlowAttention float32_products=1 scale=0", JOINED, sizes=sizes(5, past=20),
                dtype=FLOAT16, near=2.0**-8)  # fmt: skip
    for name, value in (("scale", 0.7), ("softcap", 2.0), ("softmax_precision", 1)):
        own = plain.replace(f"{name}=0", f"{name}={value:g}")
        yield entry(f"ONNX's with {name}", attention(given=f"{COUNTS}, {causal}, {name}={value}"),
                    f"FlowAttention causal=1 {own}", JOINED)  # fmt: skip


# --- masks ----------------------------------------------------------------------------------------


def of_mask(shape: tuple[int, ...], kind: str, seed: int = 3) -> Any:
    """Hides two fifths of the keys, and all of the third query's."""
    rng = np.random.default_rng(seed)
    shown = rng.random(shape) < 0.6
    if shape[-2] > 2:
        shown[..., 2, :] = False
    floats = np.where(shown, rng.standard_normal(shape), -np.inf).astype(np.float32)
    return shown if kind == "bool" else floats


def masked(shape: tuple[int, ...], kind: str, given: str) -> str:
    causal, cap = int("is_causal=1" in given), 2 if "softcap" in given else 0
    return steps(
        "Where" if kind == "bool" else "", "Unsqueeze" if len(shape) < 4 else "",
        f"FlowAttention Q K V past_key past_value - - - - - * -> {PRESENTS.replace(',', '')} "
        f"causal={causal} local_window_size=-1 scale=0 softcap={cap}",
    )  # fmt: skip


def masks() -> Iterator[Entry]:
    past = {"sizes": sizes(5, past=20)}
    for shape in ((5, 25), (2, 1, 5, 25), (1, 1, 5, 25), (2, 4, 5, 25), (1, 4, 5, 25), (4, 5, 25),
                  (1, 5, 25)):  # fmt: skip
        for kind in ("bool", "float"):
            mask = of_mask(shape, kind)
            for given in ("is_causal=0", "is_causal=1, softcap=2.0"):
                yield entry(f"a mask {shape} of {kind}, {given}",
                            attention("Q, K, V, mask, past_key, past_value", f"{COUNTS}, {given}",
                                      PRESENTS),
                            masked(shape, kind, given),
                            JOINED | {"mask": [mask.dtype.type, *shape]}, feeds={"mask": mask},
                            **past)  # fmt: skip
    for shape in ((2, 1, 1, 25), (1, 1, 1, 25), (2, 4, 1, 25), (1, 25)):
        for kind in ("bool", "float"):
            mask = of_mask(shape, kind, 4)
            # ONNX Runtime refuses one query of a mask for all: it is given one for each.
            yield entry(f"a mask {shape} of {kind} for all queries",
                        attention("Q, K, V, mask, past_key, past_value", f"{COUNTS}, is_causal=0",
                                  PRESENTS),
                        masked(shape, kind, "is_causal=0"),
                        JOINED | {"mask": [mask.dtype.type, *shape]}, feeds={"mask": mask},
                        against="onnx", **past)  # fmt: skip
    for counts in ((4, 9), (9, 9), (0, 3), (1, 2)):
        for given, attributes in ((SPLIT, ""), (JOINED, COUNTS)):
            yield entry(f"valid keys of a cache outside: {counts} {attributes}",
                        attention("Q, K, V, -, -, -, nonpad", attributes),
                        steps("Shape\nGather\nRange\nUnsqueeze\nLess\nCast",
                              f"FlowAttention Q K V{' -' * 13} * -> Y * * {PLAIN}" if attributes
                              else around(f"* * *{' -' * 13} *", "")),
                        given | {"nonpad": [np.int64, "batch"]}, feeds={"nonpad": np.array(counts)},
                        sizes=sizes(3, keys=9), opset=24)  # fmt: skip
    lowest = np.zeros((5, 5), np.float32)
    lowest[1] = np.finfo(np.float32).min
    # ONNX's evaluator does this; ONNX Runtime gives zeros.
    yield entry("a query masked by the lowest float takes the mean", attention("Q, K, V, mask"),
                steps("Unsqueeze", around("* * * - - - - - - - *", "")),
                {"mask": ["queries", "keys"]}, feeds={"mask": lowest}, against="onnx")  # fmt: skip
    for given, seen in (
        ("left_window_size=3, is_causal=1", "causal=1 local_window_size=4"),
        ("left_window_size=0, right_window_size=0", "causal=1 local_window_size=1"),
        ("left_window_size=3, right_window_size=2, is_causal=1", "causal=1 local_window_size=4"),
        ("right_window_size=0", "causal=1 local_window_size=-1"),
    ):
        for cached in (False, True):
            yield entry(f"a window of opset 25: {given}, {cached=}",
                        attention(f"Q, K, V, {CACHE}" if cached else "Q, K, V",
                                  f"{COUNTS}, {given}",
                                  PRESENTS if cached else "Y"),
                        f"FlowAttention {seen} scale=0 softcap=0", JOINED, opset=25,
                        sizes=sizes(5, past=20 if cached else 0), against="onnx")  # fmt: skip


# --- what stands around an attention --------------------------------------------------------------

ANGLES = np.arange(50)[:, None] * 10000.0 ** (-np.arange(D // 2) / (D // 2))
LAYER: dict[str, Given] = {
    **{name: ["batch", "tokens", heads * D] for name, heads in (("q", H), ("k", KV), ("v", KV))},
    **{
        f"shape_{name}": np.array([0, 0, heads, D])
        for name, heads in (("q", H), ("k", KV), ("v", KV))
    },
    "shape_out": np.array([0, 0, H * D]),
    "past_key": SPLIT["past_key"],
    "past_value": SPLIT["past_value"],
    "cos": np.cos(ANGLES).astype(np.float32),
    "sin": np.sin(ANGLES).astype(np.float32),
    "ids": [np.int64, "batch", "tokens"],
    "two": np.array([2]),
    "one": np.array([1]),
    "group": np.array([1, 1, H // KV, 1, 1]),
    "tiled": np.array([1, H // KV, 1, 1, 1]),
    "repeated": np.array([0, H, -1, D]),
    "q.norm": np.linspace(0.5, 1.5, D, dtype=np.float32),
    "k.norm": np.linspace(1.5, 0.5, D, dtype=np.float32),
}
TURN = "Transpose<perm=[0, 2, 1, 3]>"


def turned(name: str, domain: str, given: str = "") -> str:
    """nr, the rotation of nh."""
    inputs = {"": "cos, sin, ids", "ms.": "ids, cos, sin", "rows": "cos_rows, sin_rows"}[domain]
    return f"{name}r = {domain.replace('rows', '')}RotaryEmbedding<{given}>({name}h, {inputs})"


def layer(*, rotary: str | None = None, given: str = "", normed: str = "", appended: bool = False,
          repeat: str = "", causal: int = 0, mask: str = "") -> str:  # fmt: skip
    """q, k, v (batch, tokens, channels) through norms, a rotation, a cache and an Attention."""
    lines, ends = [], {}
    for name in "qkv":
        lines.append(f"{name}t = Reshape({name}, shape_{name})")
        norm = f"RMSNormalization<epsilon=0.0001>({{}}, {name}.norm)"
        if normed and name != "v":
            first, second = (norm.format(f"{name}t"), f"{TURN}({name}n)")
            if normed == "heads":
                first, second = f"{TURN}({name}t)", norm.format(f"{name}n")
            lines += [f"{name}n = {first}", f"{name}h = {second}"]
        else:
            lines.append(f"{name}h = {TURN}({name}t)")
        ends[name] = f"{name}h"
        if rotary is not None and name != "v":
            heads = f"num_heads={H if name == 'q' else KV}"
            lines.append(turned(name, rotary, given.replace("HEADS", heads)))
            ends[name] = f"{name}r"
    for name, part in (("k", "key"), ("v", "value")) if appended else ():
        lines.append(f"present_{part} = Concat<axis=-2>(past_{part}, {ends[name]})")
        ends[name] = f"present_{part}"
    for name in "kv" if repeat else "":
        axis = "two" if repeat == "group" else "one"
        lines += [f"{name}u = Unsqueeze({ends[name]}, {axis})",
                  f"{name}e = Expand({name}u, {repeat})",
                  f"{name}w = Reshape({name}e, repeated)"]  # fmt: skip
        ends[name] = f"{name}w"
    lines += [f"y = Attention<is_causal={causal}>({', '.join(ends.values())}{mask})",
              f"yt = {TURN}(y)", "out = Reshape(yt, shape_out)"]  # fmt: skip
    return steps(*lines)


def of_layer(*tokens: int, past: int = 0, batch: int = 2) -> tuple[Mapping[str, int], ...]:
    return tuple({"batch": batch, "tokens": n, "past": past, "total": past + n} for n in tokens)


def in_layer(
    name: str, text: str, becomes: str, given: Mapping[str, Given] = {}, **more: Any
) -> Entry:
    ids = {"ids": lambda s: np.random.default_rng(9).integers(0, 50, (s["batch"], s["tokens"]))}
    more["feeds"] = ids | more.get("feeds", {})
    cached = {"wanted": ("present_key", "present_value")} if "past_key" in text else {}
    return entry(
        name, text, becomes, LAYER | dict(given), **{"sizes": of_layer(1, 6)} | cached | more
    )


def layers() -> Iterator[Entry]:
    alone = f"FlowAttention q k v -> out * * {PLAIN}"
    yield in_layer("transposes and reshapes around it go", layer(), alone)
    with_ids = alone.replace("q k v", "q k v - - - - cos sin ids") + " do_rotary=1"
    of_ids = f"{with_ids} position_axes=1 rotary_interleaved=0"
    cached = "FlowAttention q k v past_key past_value -> out present_key present_value " + PLAIN
    of = {"sizes": (*of_layer(1, 6), *of_layer(1, 6, past=20))}
    yield in_layer("a cache that a Concat extends", layer(appended=True), cached, **of)
    yield in_layer("and a rotation", layer(appended=True, rotary=""),
                   of_ids.replace("v - -", "v past_key past_value").replace(
                       "out * *", "out present_key present_value"), **of)  # fmt: skip
    for rotary, width in (("", D), ("ms.", D), ("", 4), ("ms.", 4)):
        for interleaved in (0, 1):
            part = f", rotary_embedding_dim={width}, HEADS" if width != D else ""
            tables = {n: LAYER[n][:, : width // 2] for n in ("cos", "sin")}  # type: ignore[index]
            yield in_layer(f"a rotation by {rotary}RotaryEmbedding, {interleaved=}, {width=}",
                           layer(rotary=rotary, given=f"interleaved={interleaved}{part}"),
                           of_ids.replace("interleaved=0", f"interleaved={interleaved}"),
                           tables)  # fmt: skip
    rows = {name: ["batch", "tokens", D // 2] for name in ("cos_rows", "sin_rows")}
    after = f"FlowAttention {{}} -> out * * {PLAIN} do_rotary=1 rotary_interleaved=0"
    yield in_layer("angles of each token", layer(rotary="rows"),
                   steps(*2 * ["Reshape"], "Shape\nReduceProd\nRange\nReshape",
                         after.format("q k v - - - - * * *")), rows)  # fmt: skip
    # Whatever is at its default is left out of an attention that a fusion wrote.
    norms = (f"FlowAttention q k v{' -' * 11} q.norm k.norm -> out * * causal=0 scale=0 "
             "qk_norm_epsilon=0.0001")  # fmt: skip
    for place in ("tokens", "heads"):
        yield in_layer(f"norms of heads, {place}", layer(normed=place), norms)
        for rotary in ("", "ms."):
            yield in_layer(f"norms of heads, {place}, and a rotation by {rotary}RotaryEmbedding",
                           layer(normed=place, rotary=rotary),
                           norms.replace(" - - - - - - - - - - - ", " - - - - cos sin ids - - - - ")
                           + " do_rotary=1 position_axes=1")  # fmt: skip
    for past in (False, True):
        text = layer(appended=past, repeat="group")
        yield in_layer(f"heads that are repeated for their group, {past=}", text,
                       cached if past else alone, **of if past else {})  # fmt: skip
    rows_of = "Transpose\nReshape\n"
    before = "Reshape\nTranspose\n"
    # Of one batch row, the heads may be where its batch was.
    moved = "Xu = Unsqueeze(X, zero); Xe = Expand(Xu, group); Xw = Reshape(Xe, repeated)"
    moved = steps(*(moved.replace("X", x) for x in "KV"), attention("Q, Kw, Vw"))
    yield entry("heads in the place of the batch are no repetition", moved,
                f"{REST}\nFlowAttention {PLAIN} kv_num_heads=4\nReshape\nTranspose",
                {"zero": np.array([0]), "group": LAYER["group"], "repeated": LAYER["repeated"],
                 "Q": [1, H, "queries", D], "K": [KV, 1, "keys", D], "V": [KV, 1, "keys", D]},
                sizes=sizes(5, batch=1))  # fmt: skip
    yield in_layer("heads in another order are no repetition", layer(repeat="tiled"),
                   before * 2 + "Unsqueeze\nExpand\nReshape\n" * 2 + rows_of * 2
                   + alone.replace("q k v", "q * *") + " kv_num_heads=4")  # fmt: skip
    yield in_layer("with causality an extended cache is keys like others",
                   layer(appended=True, causal=1),
                   before * 2 + "Concat\nConcat\n" + rows_of * 2
                   + alone.replace("q k v", "q * *").replace("causal=0", "causal=1"),
                   **of)  # fmt: skip
    yield in_layer("a norm that something else reads stays", layer(normed="heads"),
                   f"{before}~RMSNormalization\nReshape\n{rows_of}~RMSNormalization\nReshape\n"
                   + alone.replace("q k v", "* * v"), wanted=("qh",))  # fmt: skip
    stay = f"{before}RotaryEmbedding\n" * 2 + rows_of * 2 + alone.replace("q k v", "* * v")
    others = "others read the rotated value as well"
    yield in_layer("rotations that others read stay", layer(rotary=""), stay, wanted=("kr",),
                   why={"kr": others, "qr": others})  # fmt: skip
    for given, why in (
        ("interleaved=1", "queries and keys are rotated differently"),
        ("scale=2.0", "scale or is_packed_batching is not at its default"),
    ):
        text = layer(rotary="ms.").replace(
            "kr = ms.RotaryEmbedding<>", f"kr = ms.RotaryEmbedding<{given}>"
        )
        yield in_layer(f"rotations stay: {why}", text, stay, why={"kr": why, "qr": why},
                       runs="scale" not in given)  # fmt: skip


def more_layers() -> Iterator[Entry]:
    shown = np.array([[True] * 6, [False] * 2 + [True] * 4])[:, None, None]
    keys: dict[str, Given] = {"mask": [bool, "batch", 1, 1, "tokens"]}
    own = f"FlowAttention q k v{' -' * 13} * -> out * * {PLAIN}"
    # So that no time goes into left padding.
    yield in_layer("a mask of keys alone hides keys", layer(mask=", mask"),
                   steps("Squeeze", "Cast", own), keys, feeds={"mask": shown}, against="onnx",
                   sizes=of_layer(6))  # fmt: skip
    # Exporters compute the same angles for queries and for keys.
    twice = layer(rotary="rows")
    for name in "qk":
        twice = twice.replace(f"RotaryEmbedding<>({name}h, cos_rows, sin_rows)",
                              f"RotaryEmbedding<>({name}h, {name}c, {name}s)")  # fmt: skip
    angles = "; ".join(f"{n}c = Neg(cos_rows); {n}s = Neg(sin_rows)" for n in "qk")
    rows: dict[str, Given] = {n: ["batch", "tokens", D // 2] for n in ("cos_rows", "sin_rows")}
    yield in_layer("angles that are computed twice are one", steps(angles, twice),
                   f"{REST}\nFlowAttention {PLAIN} do_rotary=1 rotary_interleaved=0", rows,
                   declared={f"{n}{x}": ["batch", "tokens", D // 2] for n in "qk"
                             for x in "cs"})  # fmt: skip
    both = steps(attention("Q, K, V, mask", results="hidden"),
                 attention("hidden, K, V, mask", results="Y"))  # fmt: skip
    yield entry("a mask is converted once for all layers", both,
                f"Where\nUnsqueeze\n{TURNED * 3}FlowAttention {PLAIN}\nFlowAttention {PLAIN}\n"
                "Reshape\nTranspose",
                {"mask": [bool, "queries", "keys"]})  # fmt: skip
    cannot = ("the attention cannot do it: that needs queries and keys that are rotated alike and "
              "read by it alone, tables of known width and one position for each token, "
              "(batch, sequence)")  # fmt: skip
    turns = [f"{x}r = ms.RotaryEmbedding<>({x}, ids, cos, sin)" for x in "QKV"]
    gqa = ("Y, pk, pv = GroupQueryAttention<num_heads=4, kv_num_heads=2>(Qr, Kr, V, -, -, lengths, "
           "total)")  # fmt: skip
    yield entry("rotations before other nodes stay",
                steps(*turns, gqa,
                      "other = Neg(Vr); alone = ms.RotaryEmbedding<>(V, ids, cos, sin)"),
                f"{REST}\nNeg\nRotaryEmbedding",
                JOINED | {"cos": np.ones((50, D // 2), np.float32), "ids": [np.int64, 2, 5],
                          "sin": np.ones((50, D // 2), np.float32), "lengths": [np.int32, 2],
                          "total": [np.int32, 1], "cos2": (1,)},
                why={"Qr": cannot, "Kr": cannot, "Vr": "it feeds Neg, not an Attention",
                     "alone": "its result is an output of the graph, and no Attention's input"},
                runs=False, opens=False)  # fmt: skip


def joined_rotations() -> Iterator[Entry]:
    for domain, angles in (("", "cos, sin, ids"), ("ms.", "ids, cos, sin")):
        text = steps(
            *(f"{x}r = {domain}RotaryEmbedding<num_heads={heads}>({x}, {angles})"
              for x, heads in (("Q", H), ("K", KV))),
            attention("Qr, Kr, V, -, past_key, past_value", f"{COUNTS}, is_causal=1", PRESENTS),
        )  # fmt: skip
        yield entry(f"rotations of joined heads by {domain}RotaryEmbedding", text,
                    "FlowAttention Q K V past_key past_value - - cos sin ids -> Y present_key "
                    f"present_value {PLAIN.replace('causal=0', 'causal=1')} do_rotary=1 "
                    "position_axes=1 rotary_interleaved=0",
                    JOINED | {"cos": LAYER["cos"], "sin": LAYER["sin"],
                              "ids": [np.int64, "batch", "queries"],
                              "K": ["batch", "queries", KV * D], "V": ["batch", "queries", KV * D]},
                    feeds={"ids": np.random.default_rng(9).integers(0, 50, (2, 5))},
                    sizes=sizes(5, past=4))  # fmt: skip


# --- what stays -----------------------------------------------------------------------------------


def left() -> Iterator[Entry]:
    for given, inputs, attributes, why in (
        ({}, "Q, K, V", "softmax_precision=11",
         "softmax_precision is DOUBLE; FlowAttention's is FLOAT"),
        ({}, "Q, K, V", "left_window_size=2",
         "a window that reaches later keys, or without causality"),
        ({}, "Q, K, V, -, -, -, nonpad", "is_causal=1",
         "nonpad_kv_seqlen with is_causal=1 places the queries of each batch row elsewhere"),
        ({"mask": [bool, "queries", "keys"]}, "Q, K, V, mask, -, -, nonpad", "",
         "with nonpad_kv_seqlen, attn_mask may be shorter than the keys"),
        ({"mask": [bool, "keys"]}, "Q, K, V, mask", "",
         "attn_mask has 1 dimensions; expected 2 to 4"),
        ({"V": ["batch", KV, "keys", 16]}, "Q, K, V", "",
         "heads of V have 16 channels, those of Q 8; expected as many"),
        ({n: ["batch", H, "queries", 12] for n in "QKV"}, "Q, K, V", "",
         "heads have 12 channels; expected a multiple of 8"),
        ({"Q": ["batch", H, "queries", "dim"]}, "Q, K, V", "",
         "the number of heads or their dimension is not known before it runs"),
    ):  # fmt: skip
        yield entry(why, attention(inputs, attributes), "Attention",
                    given | {"nonpad": [np.int64, 2]},
                    why={"Y": why}, opset=25 if "window" in attributes else 24, runs=False,
                    opens=False)  # fmt: skip
    why = "output_qk asks for the score matrix, which chunked attention never"
    yield entry(why, attention(results="Y, -, -, scores"), "Attention", why={"Y": why}, runs=False,
                opens=False)  # fmt: skip


# --- MultiHeadAttention ---------------------------------------------------------------------------

VISION: dict[str, Given] = {name: ["batch", "tokens", 3 * 72] for name in ("q", "k", "v")}


def mha(inputs: str = "q, k, v", given: str = "", results: str = "y") -> str:
    return f"{results} = MultiHeadAttention<num_heads=3{given}>({inputs})"


def towers() -> Iterator[Entry]:
    of = {"sizes": of_layer(1, 40, 300), "near": EXACT}
    plain = "causal=0 scale=0"
    for dim in (8, 64, 72, 80):
        tokens: dict[str, Given] = {name: ["batch", "tokens", 3 * dim] for name in "qkv"}
        yield entry(f"a layer of a vision tower with heads of {dim}", mha(),
                    f"FlowAttention q k v -> y * * {plain}", tokens, **of)  # fmt: skip
        yield entry(f"and a bias, with heads of {dim}", mha("q, k, v, bias"),
                    "Add q * -> *\nAdd k * -> *\nAdd v * -> *\n"
                    f"FlowAttention * * * -> y * * {plain}",
                    tokens | {"bias": (9 * dim,)}, **of)  # fmt: skip
    other = {"k": ["batch", "keys", 216], "v": ["batch", "keys", 216]}
    yield entry("keys of another sequence than a tower's", mha(), f"FlowAttention {plain}",
                VISION | other,
                sizes=[{"batch": 2, "tokens": 40, "keys": n} for n in (7, 90)])  # fmt: skip
    yield entry("presents, a scale and causality",
                mha("q, k, v", ", unidirectional=1, scale=0.2", "y, present_key, present_value"),
                "FlowAttention q k v -> y present_key present_value causal=1 scale=0.2",
                VISION, **of)  # fmt: skip
    for shape in ((1, 1, 40, 40), (2, 3, 40, 40), (1, 3, 40, 40), (2, 1, 40, 40)):
        yield entry(f"a bias {shape} of scores", mha("q, k, v, -, -, scores"),
                    f"FlowAttention q k v - - - - - - - scores -> y * * {plain}",
                    VISION | {"scores": list(shape)}, sizes=of_layer(40))  # fmt: skip
    products = steps(*(f"{name} = Q<n=96>(x)" for name in "qkv"), mha("q, k, v, bias"))
    yield entry("its bias goes into the products", products,
                "Q4NXMatMul x q * -> *\nQ4NXMatMul x k * -> *\nQ4NXMatMul x v * -> *\n"
                f"FlowAttention * * * -> y * * {plain}",
                {"x": ["batch", "tokens", 96], "bias": (288,)}, sizes=of_layer(6), near=2.0**-6,
                declared={n: ["batch", "tokens", 96] for n in "qkv"})  # fmt: skip
    for given, text, why in (
        ({"mask": [np.int32, "batch", "tokens"]}, mha("q, k, v, -, mask"),
         "key_padding_mask adds mask_filter"),
        ({"past": ["batch", 3, "past", 72]},
         mha("q, k, v, -, -, -, past, past", results="y, pk, pv"), "it has a past"),
        ({}, mha(results="y, pk, pv, qk"), "output_qk asks for the score matrix"),
        ({"v": ["batch", "tokens", 192]}, mha(), "value has 192 channels, query 216; expected"),
        ({"bias": [648]}, mha("q, k, v, bias"), "its bias is not a constant (648)"),
        ({n: ["batch", "tokens", 36] for n in "qkv"}, mha(), "heads have 12 channels; expected a"),
        ({"q": ["batch", "rows", 216]}, mha(given=", unidirectional=1"),
         "unidirectional=1 with keys that may be more or fewer than the queries"),
        ({"q": ["batch", "tokens", 3, 3, 72]}, mha("q"),
         "query, key and value are not known to be"),
        ({"scores": ["batch", 3, 1, "tokens"]}, mha("q, k, v, -, -, scores"),
         "attention_bias has one query for all"),
    ):  # fmt: skip
        yield entry(why, text, "MultiHeadAttention", VISION | given, why={"y": why}, runs=False,
                    opens=False)  # fmt: skip


# --- spelled out ----------------------------------------------------------------------------------

CUT: dict[str, Given] = VISION | {
    "shape": np.array([0, 0, 3, 72]),
    "joined": np.array([0, 0, 216]),
    "scale": np.float32([72**-0.5]),
    "a": np.float32(0.3),
    "b": np.float32([[0.4]]),
    "c": np.float32(2.5),
}


def spelled(scores: str = "p = MatMul(qh, kh); s = Mul(p, scale)", last: str = "s",
            softmax: str = "w = Softmax<axis=-1>({}); z = MatMul(w, vh)", values: str = "v",
            first: str = "") -> str:  # fmt: skip
    return steps(
        first,
        "qt = Reshape(q, shape); qh = Transpose<perm=[0, 2, 1, 3]>(qt)",
        "kt = Reshape(k, shape); kh = Transpose<perm=[0, 2, 3, 1]>(kt)",
        f"vt = Reshape({values}, shape); vh = Transpose<perm=[0, 2, 1, 3]>(vt)",
        scores, softmax.format(last), "o = Transpose<perm=[0, 2, 1, 3]>(z); y = Reshape(o, joined)",
    )  # fmt: skip


def eager() -> Iterator[Entry]:
    found = "FlowAttention q k v -> y * * causal=0 scale={:.6g}"
    of = {"sizes": of_layer(40)}
    for scores, last, factor in (
        ("qs = Mul(qh, a); p = MatMul(qs, kh)", "p", 0.3),
        ("ks = Mul(b, kh); p = MatMul(qh, ks)", "p", 0.4),
        (
            "qs = Mul(qh, a); ks = Mul(b, kh); p = MatMul(qs, ks)",
            "p",
            np.float32(0.3) * np.float32(0.4),
        ),
        ("p = MatMul(qh, kh); s = Div(p, c)", "s", 0.4),
        ("p = MatMul(qh, kh); s = Mul(p, c)", "s", 2.5),
    ):
        yield entry(f"a scale: {scores}", spelled(scores, last), found.format(factor), CUT, **of)
    masked = spelled("p = MatMul(qh, kh); t = Mul(p, scale); s = Add(mask, t)")
    plain = found.format(72**-0.5)
    for dims in (("tokens", "tokens"), (1, "tokens"), (1, 1, "tokens", "tokens")):
        shape = [40 if dim == "tokens" else 1 for dim in dims]
        mask = np.random.default_rng(1).integers(0, 2, shape) * np.float32(-1e9)
        mask[..., 0] = 0  # every query sees a key
        yield entry(f"a mask {dims} becomes a bias", masked,
                    steps("Unsqueeze" if len(dims) < 4 else "",
                          plain.replace("k v", "k v - - - - - - - *")),
                    CUT | {"mask": list(dims)}, feeds={"mask": mask.astype(np.float32)},
                    **of)  # fmt: skip
    yield entry("a softmax in double is recognised",
                spelled("p = MatMul(qh, kh); t = Mul(p, scale); s = Cast<to=11>(t)",
                        softmax="d = Softmax<axis=-1>({}); w = Cast<to=1>(d); z = MatMul(w, vh)"),
                plain, CUT, **of)  # fmt: skip
    heads = "its scores read no KV cache"
    for what, text, given, why in (
        ("of another axis", spelled(softmax="w = Softmax<axis=2>({}); z = MatMul(w, vh)"), {},
         "its axis is 2; expected the last"),
        ("with heads of 20", spelled(), {"shape": np.array([0, 0, 3, 20]),
                                         **{n: ["batch", "tokens", 60] for n in "qkv"}},
         "heads have 20 channels; expected a multiple of 8"),
        ("with a mask of one column", masked, {"mask": ["tokens", 1]},
         "its mask is not known to have a column for each key"),
        ("with a mask of one dimension", masked, {"mask": ["tokens"]},
         "its mask is [tokens]; expected two to four dimensions"),
        ("with one key for a batch", spelled(), {"k": [1, "tokens", 216]},
         "query and key have different batches"),
        ("with one value for a batch", spelled(), {"v": [1, "tokens", 216]},
         "query and value have different batches"),
        ("with one query for a batch", spelled(), {"q": [1, "tokens", 216]},
         "query and key have different batches"),
        ("with a mask of more rows", masked,
         {"q": ["batch", 1, 216], "mask": [1, 1, "rows", "tokens"]},
         "its mask has more rows, heads or batches than the scores that it is added to"),
        ("with a mask of more batches", masked,
         {"mask": ["masks", 1, "tokens", "tokens"], **{n: [1, "tokens", 216] for n in "qkv"}},
         "its mask has more rows, heads or batches than the scores that it is added to"),
        *((f"with a scale of {x}", spelled(), {"scale": np.float32([x])},
           f"its scores are multiplied by {x:g}") for x in (0, np.inf, np.nan)),
        ("of scores through Tanh", spelled("p = MatMul(qh, kh); s = Tanh(p)"), {}, heads),
        ("of scores times others", spelled("p = MatMul(qh, kh); s = Mul(p, mask)"),
         {"mask": ["tokens", "tokens"]}, heads),
        ("in half precision", spelled(
            "p = MatMul(qh, kh); s = Cast<to=10>(p)",
            softmax="d = Softmax<axis=-1>({}); w = Cast<to=1>(d); z = MatMul(w, vh)"), {}, heads),
        ("of whole numbers", spelled(
            softmax="d = Softmax<axis=-1>({}); e = Cast<to=3>(d); w = Cast<to=1>(e)\n"
            "z = MatMul(w, vh)"), {}, heads),
        ("of values of another type", spelled(
            values="half",
            softmax="d = Softmax<axis=-1>({}); w = Cast<to=10>(d); z = MatMul(w, vh)",
            first="half = Cast<to=10>(v)"), {}, "query is FLOAT and value FLOAT16"),
    ):  # fmt: skip
        softmaxed = "d" if "d = Softmax" in text else "w"
        yield entry(f"attention {what} stays", text, AS_IT_IS, CUT | given, why={softmaxed: why},
                    runs=False,
                    opens=False)  # fmt: skip
    yield entry("attention whose probabilities are wanted stays", spelled(), AS_IT_IS, CUT,
                why={"w": heads}, wanted=("w",), **of)  # fmt: skip


ENTRIES = [
    *layouts(), *masks(), *layers(), *more_layers(), *joined_rotations(), *left(), *towers(),
    *eager(),
]  # fmt: skip
