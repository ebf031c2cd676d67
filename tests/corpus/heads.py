"""GroupQueryAttention, and the norms, rotations and the Split before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from graphs import EXACT, Entry, Given, steps
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema
from op_models import FLOAT16

HEADS, KV_HEADS, DIM = 4, 2, 32
# Earlier ONNX Runtimes infer no types of a node's later outputs.
TYPED = (1, 28)
# The ONNX Runtime whose schema takes a cache of another type than the queries.
OTHER_CACHE = (1, 27)
CHANNELS, KV_CHANNELS = HEADS * DIM, KV_HEADS * DIM
COUNTS = f"num_heads={HEADS}, kv_num_heads={KV_HEADS}"
NORM, RMS_NORM = "SimplifiedLayerNormalization", "RMSNormalization"
ANGLES = np.outer(np.arange(64), np.geomspace(1, 0.01, DIM // 2)).astype(np.float32)
CACHE: list[Any] = ["batch", KV_HEADS, "past", DIM]
GIVEN: dict[str, Given] = {
    "q": ["batch", "sequence", CHANNELS],
    "k": ["batch", "sequence", KV_CHANNELS],
    "v": ["batch", "sequence", KV_CHANNELS],
    "qkv": ["batch", "sequence", CHANNELS + 2 * KV_CHANNELS],
    "past_key": CACHE,
    "past_value": CACHE,
    "seqlens": [np.int32, "batch"],
    "total": [np.int32, 1],
    "cos": np.cos(ANGLES),
    "sin": np.sin(ANGLES),
    "ids": [np.int64, "batch", "sequence"],
    "bias": ["batch", HEADS, "sequence", "total"],
    "sink": (HEADS,),
    "sizes": np.array([CHANNELS, KV_CHANNELS, KV_CHANNELS]),
    "q.weight": (DIM,),
    "k.weight": (DIM,),
    "v.weight": (DIM,),
}
DECLARED = {
    f"{name}{end}": ["batch", "sequence", width]
    for name, width in (("q", CHANNELS), ("k", KV_CHANNELS), ("v", KV_CHANNELS))
    for end in ("", "3", "r")
}
# A first prompt, a token and a later part. ONNX Runtime takes a part for one batch row.
SIZES = (
    {"batch": 1, "sequence": 9, "past": 0, "total": 9},
    {"batch": 2, "sequence": 1, "past": 9, "total": 10},
    {"batch": 1, "sequence": 4, "past": 5, "total": 9},
)
BASE = "past_key, past_value, seqlens, total"
TABLES = "cos, sin"
READS = "past_key past_value seqlens total"
SCHEMAS = {schema.name: schema for schema in get_all_operator_schema()}
HAS_MIXED = "MRotaryEmbedding" in SCHEMAS


def lengths(sizes: Mapping[str, int]) -> Any:
    return np.full(sizes["batch"], sizes["past"] + sizes["sequence"] - 1, np.int32)


def gqa(
    query: str = "q, k, v", *more: str, given: str = "do_rotary=1", counts: str = COUNTS
) -> str:
    inputs = ", ".join([query, BASE, *([TABLES] if "do_rotary=1" in given else []), *more])
    return f"y, present_key, present_value = GroupQueryAttention<{counts}, {given}>({inputs})"


def entry(
    name: str, text: str, becomes: str, *, given: Mapping[str, Given] = {}, **more: Any
) -> Entry:
    feeds = {"seqlens": lengths, "total": lambda s: np.array([s["past"] + s["sequence"]], np.int32)}
    more["feeds"] = feeds | more.get("feeds", {})
    more["declared"] = DECLARED | more.get("declared", {})
    return Entry(
        name, text, becomes, given=GIVEN | dict(given), **{"near": EXACT, "sizes": SIZES} | more
    )


def reads(query: str = "q k v", *, rotary: bool = True, positions: str = "", norms: str = "",
          values: str = "") -> str:  # fmt: skip
    """Inputs of a FlowAttention."""
    found = [query, READS, "cos sin" if rotary else "- -", positions or "-"]
    if norms or values:
        found += ["-"] * 4 + [norms or "- -"]
        found += ["-", values] if values else []
    text = " ".join(found)
    while text.endswith(" -"):
        text = text[:-2]
    return text


def flow(inputs: str, *given: str) -> str:
    return f"FlowAttention {inputs} -> y present_key present_value {' '.join(given)}"


# --- norms of heads -------------------------------------------------------------------------------


def normed(name: str, source: str = "", *, op: str = NORM, epsilon: float = 1e-6,
           per_head: int = DIM,
           result: str = "") -> str:  # fmt: skip
    """name3, each head of which is normalised."""
    return (
        f"{name}1 = Reshape({source or name}, to{per_head})\n"
        f"{name}2 = {op}<epsilon={epsilon}>({name}1, {name}.weight)\n"
        f"{result or f'{name}3'} = Reshape({name}2, flat_{name})"
    )


def sizes_of(per_head: int = DIM) -> dict[str, Given]:
    flat = {f"flat_{name}": np.array([0, -1, width])
            for name,
            width in (("q", CHANNELS), ("k", KV_CHANNELS), ("v", KV_CHANNELS))}  # fmt: skip
    return {f"to{per_head}": np.array([0, -1, per_head]), **flat}


SPLIT = "q, k, v = Split<axis=-1>(qkv, sizes)"
QK = gqa("q3, k3, v")


def norms() -> Iterator[Entry]:
    for op in (NORM, RMS_NORM):
        for packed in (True, False):
            text = steps(SPLIT if packed else "", normed("q", op=op, epsilon=0.001),
                         normed("k", op=op, epsilon=0.001), QK)  # fmt: skip
            query = "qkv - -" if packed else "q k v"
            yield entry(f"{op} of {'packed ' if packed else ''}heads goes into attention", text,
                        flow(reads(query, norms="q.weight k.weight"), "do_rotary=1",
                             "qk_norm_epsilon=0.001"), given=sizes_of(),
                        since=(1, 24))  # fmt: skip
    both, one = steps(normed("q"), normed("k")), f"Reshape\n~{NORM}\nReshape"
    for what, text, given, wanted in (
        ("with two epsilons", steps(normed("q"), normed("k", epsilon=0.001), QK), sizes_of(), ()),
        ("of half a head", steps(normed("q", per_head=16), normed("k", per_head=16), QK),
         sizes_of(16) | {"q.weight": (16,), "k.weight": (16,)}, ()),
        ("of two heads at once", steps(normed("q", per_head=64), normed("k", per_head=64), QK),
         sizes_of(64) | {"q.weight": (64,), "k.weight": (64,)}, ()),
        *((f"whose {part} is wanted", steps(both, QK), sizes_of(), (part,))
          for part in ("q1", "q2", "q3", "k1", "k2", "k3")),
        ("with a node on the way", steps(normed("q", result="q4"), "q3 = Neg(q4)", normed("k"), QK),
         sizes_of(), ()),
    ):  # fmt: skip
        own = steps(one, "Neg" if "Neg" in text else "", one, flow(reads("q3 k3 v"), "do_rotary=1"))
        yield entry(f"a norm {what} stays", text, own, given=given, wanted=wanted, since=TYPED)
    for name, query in (("q", "q3, k, v"), ("k", "q, k3, v")):
        yield entry(f"a norm of {name} alone stays", steps(normed(name), gqa(query)),
                    steps(one, flow(reads(query.replace(",", "")), "do_rotary=1")),
                    given=sizes_of())  # fmt: skip
    skipped = "{0}2 = SkipSimplifiedLayerNormalization({0}1, {0}1, {0}.weight)"
    by_skip = both
    for name in "qk":
        plain = f"{name}2 = {NORM}<epsilon=1e-06>({name}1, {name}.weight)"
        assert plain in by_skip
        by_skip = by_skip.replace(plain, skipped.format(name))
    whole = flow(reads(norms="q.weight k.weight"), "do_rotary=1")
    three = steps(one, one, flow(reads("q3 k3 v"), "do_rotary=1"))
    yield entry("a norm of a sum stays", steps(by_skip, QK),
                three.replace(NORM, "SkipSimplifiedLayerNormalization"), given=sizes_of(),
                alike=False,  # ONNX Runtime knows the shape of its result
                runs=False)  # fmt: skip
    yield entry("a norm with a weight that a call gives stays", steps(both, QK), three,
                given=sizes_of() | {"q.weight": [DIM]})  # fmt: skip
    yield entry("norms of unknown rows stay", steps(both, QK), three,
                given=sizes_of() | {"q": [None, "sequence", CHANNELS]}, runs=False,
                declared={"q3": [None, "sequence", CHANNELS]}, provider=False)  # fmt: skip
    # mobius-onnx declares numbers as names.
    named = {f"{x}{i}": ["batch", "sequence", str(n), DIM]
             for x, n in (("q", HEADS), ("k", KV_HEADS)) for i in (1, 2)}  # fmt: skip
    named |= {f"{x}3": ["batch", "sequence", str(n * DIM)]
              for x, n in (("q", HEADS), ("k", KV_HEADS))}  # fmt: skip
    yield entry("numbers that are declared as names are computed", steps(both, QK), whole,
                given=sizes_of() | {"to32": np.array([0, 0, -1, DIM]),
                                    **{f"flat_{x}": np.array([0, 0, -1]) for x in "qk"}},
                declared=named)  # fmt: skip
    if "q_norm_weight" in {value.name for value in SCHEMAS["GroupQueryAttention"].inputs}:
        text = steps(both, gqa("q3, k3, v", "-, -, -, -, -, own, own"))
        yield entry("an attention that has norms of heads takes no other", text,
                    steps(one, one, flow(reads("q3 k3 v", norms="own own"), "do_rotary=1")),
                    given=sizes_of() | {"own": (DIM,)}, runs=False)  # fmt: skip
    yield entry("a Split whose parts are wanted stays", steps(SPLIT, gqa()),
                steps("Split", flow(reads(), "do_rotary=1")), wanted=("v",))  # fmt: skip
    yield entry("a Split along the third dimension goes in", steps(SPLIT.replace("-1", "2"), gqa()),
                flow(reads("qkv - -"), "do_rotary=1"))  # fmt: skip
    yield entry("a Split in another order stays",
                steps("k, q, v = Split<axis=-1>(qkv, sizes)", gqa()),
                steps("Split", flow(reads(), "do_rotary=1")),
                given={"sizes": np.array([KV_CHANNELS, CHANNELS, KV_CHANNELS])})  # fmt: skip


# --- rotations ------------------------------------------------------------------------------------

PLAIN = "do_rotary=0"


def turned(name: str, source: str = "", *, op: str = "ms.RotaryEmbedding", given: str = "",
           ids: str = "ids", tables: str = TABLES, result: str = "") -> str:  # fmt: skip
    heads = HEADS if name == "q" else KV_HEADS
    given = given.replace("HEADS", f"num_heads={heads}")
    inputs = f"{tables}, {ids}" if op == "RotaryEmbedding" else f"{ids}, {tables}"
    return f"{result or f'{name}r'} = {op}<{given}>({source or name}, {inputs})"


def rotated(*, ends: str = "qr, kr, v", **given: Any) -> str:
    return steps(turned("q", **given), turned("k", **given), gqa(ends, given=PLAIN))


def narrow(width: int) -> dict[str, Given]:
    return {"cos": np.cos(ANGLES[:, :width]), "sin": np.sin(ANGLES[:, :width])}


UNTURNED = flow(reads("qr kr v", rotary=False), PLAIN)


def rotations() -> Iterator[Entry]:
    alone = flow(reads(positions="ids"), "do_rotary=1", "position_axes=1")
    at = {"feeds": {"ids": lambda s: np.random.default_rng(1).integers(
        0, 64, (s["batch"], s["sequence"]))}}  # fmt: skip
    yield entry("rotations go into attention", rotated(), alone, **at)
    yield entry("of a packed tensor", steps(SPLIT, rotated()), alone.replace("q k v", "qkv - -"),
                **at)  # fmt: skip
    yield entry("of neighbouring channels", rotated(given="interleaved=1"),
                f"{alone} rotary_interleaved=1", **at)  # fmt: skip
    yield entry("of a part of each head", rotated(given="HEADS, rotary_embedding_dim=16"), alone,
                given=narrow(8), **at)  # fmt: skip
    yield entry("by ONNX's operator", rotated(op="RotaryEmbedding", given="HEADS"), alone,
                since=(1, 24), **at)  # fmt: skip
    everything = steps(
        SPLIT, normed("q", epsilon=0.25), normed("k", epsilon=0.25), turned("q", "q3"),
        turned("k", "k3"), normed("v", epsilon=0.25), gqa("qr, kr, v3", given=PLAIN),
    )  # fmt: skip
    whole = flow(reads("qkv - -", positions="ids", norms="q.weight k.weight", values="v.weight"),
                 "do_rotary=1", "position_axes=1", "qk_norm_epsilon=0.25")  # fmt: skip
    yield entry("everything of Gemma 4 goes in", everything, whole, given=sizes_of(), **at)
    yield entry("norms after the rotation stay after it",
                steps(turned("q"), turned("k"), normed("q", "qr", epsilon=0.25),
                      normed("k", "kr", epsilon=0.25), gqa("q3, k3, v", given=PLAIN)),
                flow(reads(positions="ids", norms="q.weight k.weight"), "do_rotary=1",
                     "norm_after_rotary=1", "position_axes=1", "qk_norm_epsilon=0.25"),
                given=sizes_of(), **at)  # fmt: skip
    yield entry("values with a norm of another epsilon keep it",
                everything.replace("v2 = SimplifiedLayerNormalization<epsilon=0.25>",
                                   "v2 = SimplifiedLayerNormalization<epsilon=0.5>"),
                steps("Split", "Reshape", f"~{NORM}", "Reshape",
                      flow(reads("q k v3", positions="ids", norms="q.weight k.weight"),
                           "do_rotary=1", "position_axes=1", "qk_norm_epsilon=0.25")),
                given=sizes_of(), **at)  # fmt: skip
    if HAS_MIXED:
        three = {"feeds": {"ids": lambda s: np.random.default_rng(1).integers(
            0, 64, (3, s["batch"], s["sequence"]))}}  # fmt: skip
        axes: dict[str, Given] = {"ids": [np.int64, 3, "batch", "sequence"]}
        for sections, layout, width in (([4, 7, 5], 1, 16), ([6, 5, 5], 0, 16), ([4, 2, 2], 0, 8)):
            part = "" if width == 16 else ", rotary_embedding_dim=16"
            turn = f" mrope_interleaved={layout}" if layout else ""
            yield entry(f"the positions of M-RoPE, in {sections}",
                        rotated(op="MRotaryEmbedding", given=f"HEADS, mrope_section={sections}, "
                                f"mrope_layout={layout}{part}"),
                        flow(reads(positions="ids"),
                             f"do_rotary=1 mrope_height={sections[1]} mrope_width={sections[2]}"
                             f"{turn} position_axes=3"),
                        given=axes | narrow(width), **three)  # fmt: skip
        for what, given in (("short", "[4, 7, 4]"), ("negative", "[20, -7, 3]")):
            yield entry(f"{what} sections", rotated(
                op="MRotaryEmbedding", given=f"HEADS, mrope_section={given}"),
                steps(*2 * ["MRotaryEmbedding"], UNTURNED), given=axes, runs=False,
                **three)  # fmt: skip
    for name, query in (("q", "qr, k, v"), ("k", "q, kr, v")):
        yield entry(f"a rotation of {name} alone stays",
                    steps(turned(name), gqa(query, given=PLAIN)),
                    steps("RotaryEmbedding", UNTURNED.replace("qr kr v", query.replace(",", ""))),
                    **at)  # fmt: skip
    for what, text, given in (
        ("by other positions", steps(turned("q"), turned("k", ids="other"),
                                     gqa("qr, kr, v", given=PLAIN)),
         {"other": [np.int64, "batch", "sequence"]}),
        ("of other pairs", steps(turned("q"), turned("k", given="interleaved=1"),
                                 gqa("qr, kr, v", given=PLAIN)), {}),
        ("of packed batches", rotated(given="is_packed_batching=1"), {}),
        ("by an offset", rotated(), {"ids": [np.int64, 1]}),
        ("of unknown positions", rotated(), {"ids": None}),
        ("of half a head", rotated(), narrow(8)),
        ("with a narrow table", rotated(given="HEADS"), narrow(8)),
        ("of other heads", rotated(given="num_heads=1"), {}),
    ):  # fmt: skip
        yield entry(f"a rotation {what} stays", text, steps(*2 * ["RotaryEmbedding"], UNTURNED),
                    given=given, runs=False, types={"ids": np.int64})  # fmt: skip
    yield entry("an attention rotates once",
                steps(turned("q"), turned("k"), gqa("qr, kr, v")),
                steps(*2 * ["RotaryEmbedding"], flow(reads("qr kr v"), "do_rotary=1")),
                **at)  # fmt: skip
    for wanted in ("qr", "kr"):
        yield entry(f"rotations of which {wanted} is wanted stay", rotated(),
                    steps(*2 * ["RotaryEmbedding"], UNTURNED), wanted=(wanted,), since=TYPED,
                    **at)  # fmt: skip


# --- the attention itself -------------------------------------------------------------------------


def quantised(bits: int = 8, keys: str = "PER_TENSOR", values: str = "PER_TENSOR") -> str:
    return f"do_rotary=1, kv_cache_bit_width={bits}, k_quant_type='{keys}', v_quant_type='{values}'"


def codes(bits: int, kind: type[np.generic] | None = None) -> dict[str, Given]:
    kind = kind or (np.int8 if bits == 8 else np.uint8)
    cache: Given = [kind, "batch", KV_HEADS, "past", DIM * bits // 8]
    one = np.full(1, 0.02, np.float32)
    each = np.linspace(0.01, 0.03, KV_CHANNELS, dtype=np.float32).reshape(1, KV_HEADS, 1, DIM)
    return {"past_key": cache, "past_value": cache, "one": one, "each": each}


def of_codes(bits: int) -> dict[str, Any]:
    return dict.fromkeys(("present_key", "present_value"), np.int8 if bits == 8 else np.uint8)


SCALES = "-, -, -, one, one"


HALF: dict[str, Given] = {"cos": np.float16(np.cos(ANGLES)), "sin": np.float16(np.sin(ANGLES))}


def attentions() -> Iterator[Entry]:
    plain = flow(reads(), "do_rotary=1")
    yield entry("an attention", gqa(), plain)
    yield entry("of packed queries, keys and values", gqa("qkv, -, -"),
                plain.replace("q k v", "qkv - -"))  # fmt: skip
    yield entry("in float16", gqa(), f"{plain} float32_products=1", dtype=FLOAT16, near=2.0**-8,
                given=HALF)  # fmt: skip
    for given in ("scale=0.25", "softcap=30.0", "local_window_size=4", "rotary_interleaved=1",
                  "smooth_softmax=1"):  # fmt: skip
        name, value = given.split("=")
        yield entry(f"with {name}", gqa(given=f"do_rotary=1, {given}"),
                    f"{plain} {name}={float(value):g}", since=(1, 24))  # fmt: skip
    yield entry("with attributes at their defaults",
                gqa(given="do_rotary=1, softcap=0.0, local_window_size=-1, rotary_interleaved=0, "
                    "smooth_softmax=-1"),
                f"{plain} local_window_size=-1 rotary_interleaved=0 smooth_softmax=-1 softcap=0"
                )  # fmt: skip
    yield entry("with positions, a bias and sinks", gqa("q, k, v", "ids", "bias", "sink"),
                flow(f"{reads(positions='ids')} bias sink", "do_rotary=1"),
                feeds={"ids": lambda s: np.tile(np.arange(s["past"], s["total"]), (s["batch"], 1))}
                )  # fmt: skip
    first = {"past_key, past_value": "-, -"}
    for bits in (0, 8, 4):
        text = gqa("qkv, -, -", SCALES, given=quantised(bits)) if bits else gqa("qkv, -, -")
        for old, new in first.items():
            text = text.replace(old, new)
        kinds = f"k_quant_type=PER_TENSOR kv_cache_bit_width={bits} v_quant_type=PER_TENSOR"
        becomes = flow("qkv - - - - seqlens total cos sin" + (" - - - one one" if bits else ""),
                       "do_rotary=1", f"float32_products=1 {kinds}" if bits else "")  # fmt: skip
        yield entry(f"without a past, of {bits} bits", text, becomes, given=codes(bits or 8),
                    types=of_codes(bits) if bits else {}, runs=False, opens=not bits)  # fmt: skip
    yield entry("of an empty score output", gqa().replace("present_value =", "present_value, - ="),
                plain, since=(1, 31))  # fmt: skip
    for bits in (8, 4):
        yield entry(f"on a cache of {bits} bits", gqa("qkv, -, -", SCALES, given=quantised(bits)),
                    flow(reads("qkv - -") + " - - - one one",
                         "do_rotary=1 float32_products=1 k_quant_type=PER_TENSOR "
                         f"kv_cache_bit_width={bits} v_quant_type=PER_TENSOR"),
                    given=codes(bits), since=(1, 28), near=2.0**-6,
                    types=of_codes(bits))  # fmt: skip
        yield entry(f"with other scales for keys than for values of {bits} bits",
                    gqa("qkv, -, -", "-, -, -, each, one", given=quantised(bits, "PER_CHANNEL")),
                    flow(reads("qkv - -") + " - - - each one",
                         "do_rotary=1 float32_products=1 k_quant_type=PER_CHANNEL "
                         f"kv_cache_bit_width={bits} v_quant_type=PER_TENSOR"),
                    given=codes(bits), runs=False, since=OTHER_CACHE,
                    types=of_codes(bits))  # fmt: skip
    narrower = {f"past_{x}": [np.float16, *CACHE] for x in ("key", "value")}
    wide = {"given": narrower, "runs": False, "since": OTHER_CACHE,
            "types": dict.fromkeys(("present_key", "present_value"), np.float16)}  # fmt: skip
    yield entry("of float on a cache of float16", gqa(), f"{plain} float32_products=1", **wide)
    yield entry("behind a product, which rounds already", "q = Q<n=128>(x); " + gqa(),
                f"Q4NXMatMul x q -> q\n{plain}", **wide)  # fmt: skip
    inputs = "q2, none, none, present_key, present_value, seqlens, total, cos, sin"
    second = f"z, again_key, again_value = GroupQueryAttention<{COUNTS}, do_rotary=1>({inputs})"
    again = "FlowAttention q2 none none present_key present_value seqlens total cos sin -> z"
    for what, none, unread in (
        ("with rows of none", ["batch", 0, KV_CHANNELS], ()),
        ("whose present nobody reads", ["batch", 0, KV_CHANNELS], ("again_key", "again_value")),
        ("with no rows as a constant", (1, 0, KV_CHANNELS), ("again_key", "again_value")),
    ):
        yield entry(f"an attention on another's cache {what}", steps(gqa(), second),
                    f"{plain}\n{again} again_key again_value do_rotary=1",
                    given={"q2": GIVEN["q"], "none": none}, wanted=("present_key", "present_value"),
                    unread=unread, recipe=r"step .* /z(\n.*)*\nwrites \d+\n" if unread else "",
                    since=(1, 29),
                    sizes=SIZES[::2] if isinstance(none, tuple) else SIZES)  # fmt: skip


def left() -> Iterator[Entry]:
    both = "its outputs present_key and present_value go together"
    missing = "outputs present_key and present_value are missing"
    kinds = "k_quant_type=PER_TENSOR with v_quant_type=NONE; expected PER_TENSOR or PER_CHANNEL for"
    for number, (text, why, given) in enumerate((
        (gqa("q, k, v", SCALES), "kv_cache_bit_width, k_scale or v_scale is given without", codes(8)
         | {"past_key": CACHE, "past_value": CACHE}),
        (gqa(), "its KV cache is UINT8; expected FLOAT, FLOAT16 or", codes(8, np.uint8)),
        (gqa("q, k, v", SCALES, given=quantised(2)), "kv_cache_bit_width=2; expected 8 or 4",
         codes(8)),
        (gqa(given=quantised()), "its KV cache is quantised, but k_scale or v_scale is missing",
         codes(8)),
        (gqa("q, k, v", SCALES, given=quantised()),
         "its KV cache is UINT8; expected INT8 for kv_cache_bit_width=8", codes(8, np.uint8)),
        (gqa("q, k, v", SCALES, given=quantised(8, "PER_TENSOR", "NONE")), kinds, codes(8)),
        (gqa(given="do_rotary=1, qk_output=1").replace("present_value =", "present_value, qk ="),
         "output_qk asks for the score matrix", {}),
        (gqa().replace("present_value =", "present_value, qk ="), "output_qk asks", {}),
        (gqa("q, k, v", "-, -, -, -, -, -, -, new"), "query_seqlens pads chunks of a prompt",
         {"new": [np.int32, "batch"]}),
        (gqa(given="do_rotary=1, k_norm_epsilon=1e-5"), "q_norm_epsilon and k_norm_epsilon", {}),
        (gqa(counts="num_heads=3, kv_num_heads=2"), "num_heads=3 is not a multiple of", {}),
        (gqa(given="do_rotary=1, causal=0, local_window_size=4"),
         "a window without causal attention", {}),
        (gqa().replace(", present_key, present_value =", " ="), missing, {}),
        (gqa().replace("present_value =", "- ="), both, {}),
        (gqa("qkv, -, -"), "heads have 12 channels; expected a multiple of 8",
         {"qkv": ["batch", "sequence", 96], "past_key": ["batch", 2, "past", 12],
          "past_value": ["batch", 2, "past", 12]}),
        (gqa("qkv, -, -"), "heads have 12 channels; expected a multiple of 8",
         {"qkv": ["batch", "sequence", 96], "past_key": ["batch", 2, "past", None],
          "past_value": ["batch", 2, "past", None]}),
        (gqa("qkv, -, -"), "the number of channels of a head is not known before it runs",
         {"qkv": ["batch", "sequence", "channels"], "past_key": ["batch", 2, "past", None],
          "past_value": ["batch", 2, "past", None]}),
        (gqa("q, k, v", "-", "bias"), "its attention_bias is",
         {"bias": ["batch", 3, "sequence", "t"]}),
        (gqa("q, k, v", "-", "bias"), "its attention_bias is", {"bias": [HEADS, "sequence", "t"]}),
        (gqa("q, k, v", "-", "-", "sink"), "its head_sink is (3); expected (4)", {"sink": (3,)}),
        (gqa(), "its cos_cache is", {"cos": np.ones((64, 8, 2), np.float32)}),
        (gqa(), "its sin_cache is (64, 8); expected (64, 16)", narrow(8) | {"cos": GIVEN["cos"]}),
        (gqa(), "its past_value is", {"past_value": ["batch", 2, "past", 16]}),
        (gqa("q, k, v"), "its value is", {"v": ["batch", "sequence", 32]}),
    )):  # fmt: skip
        yield entry(f"{number}, {why}", text, "GroupQueryAttention",
                    why={"y": why}, given=given, runs=False,
                    since=(1, 32) if "query_seqlens" in why or "norm_epsilon" in why else (1, 31),
                    opens="window without" not in why and "output_qk" not in why,
                    provider=why != "output_qk asks")  # fmt: skip


ENTRIES = [*norms(), *rotations(), *attentions(), *left()]
