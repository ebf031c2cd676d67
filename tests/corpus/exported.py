"""Attention on a KV cache, norms and Gelus, as exporters spell them out: other spellings that
`compile` recognises, and near misses, which stay with a reason."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from graphs import AS_IT_IS, EXACT, REST, Array, Entry, Given, K, steps
from masks import numbers, padded

H, KV, D = 4, 2, 16
LOWEST = np.finfo(np.float32).min
FAR = 50.0
TURN = "Transpose<perm=[0, 2, 1, 3]>"
HEADS = {"q": H, "k": KV, "v": KV}
PROJECTED = "\n".join(f"{x} = F<n={heads * D}>(x)" for x, heads in HEADS.items())
POSITIONS = """
    place = Unsqueeze(position_ids, last); floats = Cast<to=1>(place)
    angle = Mul(floats, frequencies); angles = Concat<axis=-1>(angle, angle)
    cos3 = Cos(angles); sin3 = Sin(angles); cos = Unsqueeze(cos3, n1_1); sin = Unsqueeze(sin3, n1_1)
"""
TURNED = """
    Xa = Mul(Xh, cos); Xf = Slice(Xh, n0_1, half, n3_1); Xl = Slice(Xh, half, end, n3_1)
    Xm = Neg(Xl); Xt = Concat<axis=-1>(Xm, Xf); Xb = Mul(Xt, sin); Xr = Add(Xa, Xb)
"""
REPEATED = """
    Xu = Unsqueeze(present_NAME, n2_1); Xe = Expand(Xu, group); Xw = Reshape(Xe, repeated)
"""
CACHED = """
    present_key = Concat<axis=2>(past_key, kr); present_value = Concat<axis=2>(past_value, vh)
"""
SCORES = "columns = Transpose<perm=[0, 1, 3, 2]>(kw); p = MatMul(qr, columns); s = Mul(p, scale)"
MASK = """
    lengths = Shape(attention_mask); total = Gather(lengths, n1)
    past2 = Shape<start=2, end=3>(past_key); past = Squeeze(past2); row = Range(past, total, n1)
    query = Unsqueeze(row, n1_1); key = Range(n0, total, n1); order = LessOrEqual(key, query)
    shown2 = Cast<to=9>(attention_mask); shown = Unsqueeze(shown2, middle)
    seen = And(order, shown); bias = Where(seen, null, lowest)
"""
END = f"""
    m = Add(s, bias); w = Softmax<axis=-1>(m); z = MatMul(w, vw); o = {TURN}(z)
    joined = Reshape(o, flat); y = F<n={K}, k={H * D}>(joined)
"""
PLAIN = steps(
    PROJECTED, *(f"{x}4 = Reshape({x}, to_{x}); {x}h = {TURN}({x}4)" for x in HEADS), POSITIONS,
    TURNED.replace("X", "q"), TURNED.replace("X", "k"), CACHED, MASK,
    REPEATED.replace("X", "k").replace("NAME", "key"),
    REPEATED.replace("X", "v").replace("NAME", "value"), SCORES, END,
)  # fmt: skip
GIVEN: dict[str, Given] = {
    "x": ["batch", "tokens", K],
    "attention_mask": [np.int64, "batch", "total"],
    "position_ids": [np.int64, "batch", "tokens"],
    "past_key": ["batch", KV, "past", D],
    "past_value": ["batch", KV, "past", D],
    "frequencies": np.geomspace(1, 0.01, D // 2).astype(np.float32),
    **{f"to_{x}": np.array([0, 0, heads, D]) for x, heads in HEADS.items()},
    **numbers(
        n0=0, n1=1, n0_1=[0], n1_1=[1], n2_1=[2], n3_1=[3], last=[-1], middle=[1, 2],
        half=[D // 2], end=[2**63 - 1], group=[1, 1, H // KV, 1, 1], repeated=[0, H, -1, D],
        flat=[0, 0, H * D], scale=np.float32(D**-0.5), null=np.float32(0),
        lowest=np.float32(LOWEST), low=np.float32(-FAR), high=np.float32(FAR),
        cap=np.float32(3), norm=np.linspace(0.5, 1.5, D, dtype=np.float32), window=6,
    ),
}  # fmt: skip
# Padded prompts, a token and a later part.
SIZES = tuple(
    {"batch": 3, "tokens": tokens, "past": past, "total": past + tokens}
    for tokens, past in ((8, 0), (1, 8), (3, 6))
)


def behind(name: str, op: str, text: str = PLAIN) -> str:
    """The graph with `op` of a value, `{}`, wherever that value was read."""
    first, _, last = op.replace("{}", f"{name}_").rpartition("; ")
    lines = steps(first, f"{name} = {last}")
    changed, times = re.subn(rf"\b{name} = ([^;\n]*)", rf"{name}_ = \1\n{lines}", text)
    assert times == 1, name
    return changed


def instead(old: str, new: str, text: str = PLAIN) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


def positions(sizes: Mapping[str, int]) -> Array:
    found: Array = np.maximum(padded(sizes).cumsum(1) - 1, 0)[:, -sizes["tokens"] :]
    return found


def of(what: str, text: str, becomes: str, given: Mapping[str, Given], **more: Any) -> Entry:
    found: dict[str, Any] = {
        "provider": False, "near": EXACT, "sizes": SIZES,
        "wanted": ("present_key", "present_value"),
        "feeds": {"attention_mask": padded, "position_ids": positions},
        "rows": lambda feeds: feeds["attention_mask"][:, -feeds["x"].shape[1] :] != 0,
    }  # fmt: skip
    return Entry(f"exported attention: {what}", text, becomes, given=GIVEN | dict(given),
                 **found | more)  # fmt: skip


def table(shown: Array) -> dict[str, Given]:
    return numbers(table=shown[None, None], axes=[2, 3])


def band(window: int) -> Array:
    distance = np.arange(400)[:, None] - np.arange(400)
    shown: Array = (distance >= 0) & (distance < window)
    return shown


# Like GPT-Neo.
BY_TABLE = """past1 = Unsqueeze(past, n0_1); total1 = Unsqueeze(total, n0_1)
    starts = Concat<axis=0>(past1, n0_1); ends = Concat<axis=0>(total1, total1)
    part = Slice(table, starts, ends, axes); Where(part, {}, lowest)"""
NORM = "SimplifiedLayerNormalization<axis=-1, epsilon=1e-06>({}, norm)"
PACKED = f"qkv = F<n={(H + 2 * KV) * D}>(x)"


def local(oldest: str) -> str:
    return instead("seen = And(order, shown)", f"{oldest}\nnear = Greater(key, oldest)\n"
                   "windowed = And(order, near); seen = And(windowed, shown)")  # fmt: skip


def recognised() -> Iterator[Entry]:
    def found(what: str, text: str, reach: int = -1, cap: int = 0, last: str = "MatMul",
              **given: Any) -> Entry:  # fmt: skip
        flow = f"FlowAttention local_window_size={reach} softcap={cap} scale=0.25 causal=1 " \
               "do_rotary=1 rotary_interleaved=0"  # fmt: skip
        return of(what, text, f"{REST}\n{flow}\n{last}", numbers(**given))

    yield found("as it is", PLAIN)
    yield found("one projection", instead(PROJECTED, f"{PACKED}; q, k, v = Split<axis=-1>(qkv, "
                "parts)"), parts=[H * D, KV * D, KV * D])  # fmt: skip
    yield found("a soft cap", behind("s", "c = Div({}, cap); t = Tanh(c); Mul(t, cap)"), cap=3)
    for window in (1, 6, 100_000):
        yield found(f"a window of {window}", local("oldest = Sub(query, window)"), window,
                    window=window)  # fmt: skip
    for what, oldest, given in (
        ("computed", "wide = Mul(tens, tens); oldest = Sub(query, wide)", {"tens": 10}),
        ("negative", "oldest = Add(query, window)", {"window": -100}),
        ("of three numbers", "old = Sub(query, a); older = Sub(old, b); oldest = Sub(older, b)",
         {"a": 40, "b": 30}),
    ):  # fmt: skip
        yield found(f"a window that is {what}", local(oldest), 100, **given)
    for window in (6, 300, 400):
        yield found(f"a window of {window} in a table", behind("s", BY_TABLE),
                    window if window < 400 else -1, **table(band(window)))  # fmt: skip
    yield found("a floor of scores, as in OPT", behind("m", "Max({}, lowest)"))
    yield found("limits behind a projection, as in OLMo", behind("q", "Clip({}, low, high)"))
    yield found("a norm before the last projection, as in BitNet",
                behind("joined", NORM.replace("norm)", "wide)")),
                last="RMSNorm joined_ wide -> joined epsilon=1e-06\nMatMul",
                wide=np.linspace(0.5, 1.5, H * D, dtype=np.float32))  # fmt: skip


FACTORS = """eras = Div(position_ids, era); more = Add(eras, n1); grown = Cast<to=1>(more)
    factors = Unsqueeze(grown, outer); Mul({}, factors)"""
# log(keys) / log(length) for more keys than `length`, else 1 (arXiv:2202.12172).
GROWING = """count = Shape<start=1, end=2>(attention_mask); long = Cast<to=1>(count)
    over = Greater(COMPARED, length); log = Log(long); ratio = Div(log, base)
    growing = Where(over, ratio, one32); Mul({}, growing)"""


def near_misses() -> Iterator[Entry]:
    def left(what: str, text: str, why: str, softmax: str = "w", **given: Any) -> Entry:
        kinds = {name: value if isinstance(value, list | tuple) and name in INPUTS
                 else np.asarray(value) for name, value in given.items()}  # fmt: skip
        return of(what, text, AS_IT_IS, kinds, why={softmax: why}, runs=False, opens=False)

    scores = "its scores are combined with "
    a_mask = "its mask is not that of an attention with 4/2 heads of 16, scale 0.25"
    a_result = "its result is not that of an attention with "
    values = "its mask or its scores depend on the values of 'position_ids'; those of"
    yield left("another scale for a head", behind("s", "Mul({}, scales)"),
               "its scores are not 0.25053 · query · key of 4 heads: head 2 is off by",
               scales=np.float32([1, 1, 1.01, 1]).reshape(1, 4, 1, 1))  # fmt: skip
    yield left("slopes for distances (ALiBi)",
               behind("s", "far = Cast<to=1>(key); slope = Mul(far, slopes); Add({}, slope)"),
               f"{scores}'slope', which is not a mask",
               slopes=np.float32([0.5, 0.25, 0.125, 0.0625]).reshape(4, 1, 1))  # fmt: skip
    yield left("distances beyond 500",
               behind("s", "far = Sub(key, total); beyond = Add(far, n500); cut = Min(beyond, n0)\n"
                      "slope = Cast<to=1>(cut); Add({}, slope)"),
               f"{scores}'slope', which is not a mask", n500=500)  # fmt: skip
    yield left("a mask of floats from outside", behind("s", "Add({}, outside)"),
               "it reads the graph input 'outside', which attention does not take",
               outside=["batch", 1, "tokens", "total"])  # fmt: skip
    yield left("tokens of types, as in Gemma 3",
               behind("bias", "image = Equal(types, n1); wide = Unsqueeze(image, outer)\n"
                      "floats1 = Cast<to=1>(wide); Mul({}, floats1)"),
               "it reads the graph input 'types', which attention does not take",
               types=[np.int64, "batch", "tokens"], outer=[1, 3])  # fmt: skip
    yield left("a mask that looks for a token",
               behind("bias", "equal = Equal(input_ids, n1); kept = Not(equal)\n"
                      "wide = Unsqueeze(kept, outer); floats1 = Cast<to=1>(wide); "
                      "Mul({}, floats1)"), values.replace("position", "input"),
               input_ids=[np.int64, "batch", "tokens"], outer=[1, 3])  # fmt: skip
    yield left("causal order by position_ids",
               instead("LessOrEqual(key, query)", "LessOrEqual(key, places)",
                       instead("order =", "places = Unsqueeze(position_ids, outer); order =")),
               values, outer=[1, 3])  # fmt: skip
    yield left("its own key is hidden", instead("LessOrEqual(", "Less("), a_mask)
    yield left("padding is no matter", instead("And(order", "Or(order"), a_mask)
    for name, why in (("qr", "query and key are combined with "), ("s", values)):
        yield left(f"a factor of {name} that grows with the position", behind(name, FACTORS), why,
                   era=8192, outer=[1, 3])  # fmt: skip
    hole = band(400)
    hole[390, 7] = False
    yield left("a hole in a table", behind("s", BY_TABLE),
               "its mask reads the table 'table' (1, 1, 400, 400), which is neither causal order ",
               **table(hole))  # fmt: skip
    cut = PLAIN
    for name, axis in (("kw", "n2_1"), ("vw", "n2_1"), ("bias", "n3_1")):
        cut = behind(name, f"Slice({{}}, begin, end, {axis})", cut)
    yield left("the last 300 keys", cut, "of ", begin=[-300])
    for name, length, compared in (("s", np.int64(2048), "count"), ("qr", np.int64(32768), "count"),
                                   ("s", np.float32(32768), "long")):  # fmt: skip
        yield left(f"a factor of {name} that grows with the logarithm of {compared}",
                   behind(name, GROWING.replace("COMPARED", compared)),
                   f"{scores}'growing', which depends on the length", length=length,
                   base=np.float32(np.log(length)), one32=np.float32(1))  # fmt: skip
    yield left("halved values", behind("vw", "Mul({}, half32)"), a_result, half32=np.float32(0.5))
    yield left("softmax over queries", instead("Softmax<axis=-1>", "Softmax<axis=-2>"), a_result)
    yield left("keys that are not rotated",
               instead(TURNED.replace("X", "k"), "", instead("(past_key, kr)", "(past_key, kh)")),
               "its scores are not ")  # fmt: skip
    narrow = {f"to_{x}": [0, 0, heads, 12] for x, heads in HEADS.items()}
    cache = ["batch", KV, "past", 12]
    yield left("heads of 12 channels", PLAIN.replace("=64>", "=48>").replace("=32>", "=24>"),
               "heads have 12 channels; expected a multiple of 8", **narrow, half=[6],
               frequencies=np.ones(6, np.float32), repeated=[0, H, -1, 12], flat=[0, 0, 48],
               past_key=cache, past_value=cache)  # fmt: skip
    # What aie.FlowAttention does not have.
    for what, op, why in (
        ("layer norms", NORM.replace("Simplified", ""),
         "LayerNormalization '/q4' on the path of its query is a layer norm; aie.FlowAttention "),
        ("layer norms that are spelled out", "mean_q = ReduceMean({}, last); Sub({}, mean_q)",
         "ReduceMean '/mean_q' on the path of its query belongs to a norm other than"),
        ("a norm of the query alone", NORM,
         "it has 1 norms of the query and 0 of the key ('/q4'); aie.FlowAttention has one of each"),
    ):  # fmt: skip
        text = behind("q4", op)
        if "alone" not in what:
            text = behind("k4", op.replace("mean_q", "mean_k"), text)
        yield left(what, text, why)
    yield left(
        "norms after the rotation, as in HunYuan",
        behind("kr", NORM, behind("qr", NORM)),
        "the norm '/qr' comes after the rotation; aie.FlowAttention's come before it",
    )
    sinks = "wide = Shape<end=3>({}); one_more = Concat<axis=0>(wide, n1_1)\n" \
            "sinks = Expand(sink, one_more); Concat<axis=-1>({}, sinks)"  # fmt: skip
    yield left("sinks, as in GPT-OSS",
               behind("w", "Slice({}, n0_1, last, n3_1)", behind("m", sinks)),
               "Concat '/m' on the path of its scores joins them with 'sinks', as attention sinks "
               "are; aie.FlowAttention takes those only", "w_",
               sink=np.linspace(0, 1, H, dtype=np.float32).reshape(1, H, 1, 1))  # fmt: skip
    grouped = instead(PROJECTED, f"{PACKED}; g = Reshape(qkv, groups)\n"
                      "q, k, v = Split<axis=3>(g, parts)")  # fmt: skip
    yield left("heads side by side, as in Falcon", grouped,
               "its projection has query, key and value of each key-value head side by side; "
               "expected all queries, then all keys", groups=[0, 0, KV, H // KV + 2, D],
               parts=[H // KV, 1, 1])  # fmt: skip
    yield left("values first",
               instead(PROJECTED, f"{PACKED}; v, k, q = Split<axis=-1>(qkv, parts)"),
               "its projection has query, key and value in another order; expected all queries",
               parts=[KV * D, KV * D, H * D])  # fmt: skip
    yield left("a Gemm of rows, as in GPT-2",
               instead("q = F<n=64>(x)",
                       "lead = Shape<end=2>(x); back = Concat<axis=0>(lead, last)\n"
                       "rows = Reshape(x, matrix); gemm = Gemm(rows, weights)\n"
                       "q = Reshape(gemm, back)"),
               "its projection '/gemm' is a Gemm of flattened rows; expected MatMul or MatMulNBits",
               matrix=[-1, K], weights=np.ones((K, H * D), np.float32))  # fmt: skip
    yield left("a table for fewer keys than a prompt has", behind("s", "Add({}, short)"),
               "it cannot be run apart from the model: Add '/s' fails (",
               short=np.zeros((1, 1, 1, 3), np.float32))  # fmt: skip
    # What acts only on numbers far from a probe's.
    for name, path in (("qh", "query"), ("kr", "key"), ("v4", "value"), ("ke", "keys"),
                       ("p", "scores"), ("z", "result")):  # fmt: skip
        yield left(
            f"a Clip of {path}",
            behind(name, "Clip({}, low, high)"),
            f"Clip '/{name}' on the path of its {path} ",
        )
    for op, name in (
        ("big = Greater({}, high); Where(big, high, {})", "Greater '/big'"),
        ("Max({}, low)", "Max '/kr'"),
        (f"Shrink<lambd={FAR}, bias={FAR}>({{}})", "Shrink '/kr'"),
        ("half16 = Cast<to=10>({}); Cast<to=1>(half16)", "Cast '/half16'"),
    ):
        yield left(f"{name} of the key", behind("kr", op), f"{name} on the path of its key ")


INPUTS = {"outside", "types", "input_ids", "past_key", "past_value"}

# --- norms and Gelus ------------------------------------------------------------------------------

OWN_NORM = """
    squares = Pow(x, two); mean = ReduceMean(squares, last); more = Add(mean, epsilon)
    root = Sqrt(more); normed = Div(x, root); h = Mul(w, normed); y = Q(h)
"""
OWN_GELU = """
    cube = Pow(x, three); part = Mul(cube, c); sum = Add(x, part); inner = Mul(sum, s)
    tanh = Tanh(inner); more = Add(tanh, one32); half = Mul(x, h5); h = Mul(half, more); y = Q(h)
"""
SMALL: dict[str, Given] = numbers(
    two=np.float32(2), three=np.float32(3), one32=np.float32(1), c=np.float32(0.044715),
    s=np.float32(np.sqrt(2 / np.pi)), h5=np.float32(0.5), epsilon=np.float32(1e-6), last=[-1],
    low=np.float32(-FAR), high=np.float32(FAR),
)  # fmt: skip


def far(sizes: Mapping[str, int]) -> Array:
    x = np.random.default_rng(1).standard_normal((sizes["batch"], sizes["sequence"], K))
    return (FAR * x).astype(np.float32)


def spelled(
    what: str, text: str, becomes: str, given: Mapping[str, Given] = {}, **more: Any
) -> Entry:
    last = "Q4NXMatMul h y -> y" if becomes in (AS_IT_IS, "Clip") else ""
    becomes = f"{REST}\n{'Clip' if becomes == 'Clip' else 'Mul'}\n{last}" if last else becomes
    found = {"feeds": {"x": far}, "provider": False} | more
    return Entry(f"exported: {what}", text, becomes, given=SMALL | dict(given), **found)


def norms_and_gelus() -> Iterator[Entry]:
    norm = "Q4NXMatMul x y - w -> y norm_epsilon=1e-06"
    gelu = "Activation x -> h function=gelu_tanh\nQ4NXMatMul h y -> y"
    yield spelled("a norm", OWN_NORM, norm)
    yield spelled("a Gelu", OWN_GELU, gelu)
    for own, places in ((OWN_NORM, ("squares", "mean", "root", "normed")),
                        (OWN_GELU, ("cube", "inner", "half"))):  # fmt: skip
        for name in places:
            yield spelled(f"a Clip of {name}", behind(name, "Clip({}, low, high)", own), AS_IT_IS)
        yield spelled(
            f"a Clip behind {own.split()[0]}", behind("h", "Clip({}, low, high)", own), "Clip"
        )
    yield spelled("another power", OWN_NORM, AS_IT_IS, numbers(two=np.float32(2.01)))
    yield spelled("another constant", OWN_GELU, AS_IT_IS, numbers(c=np.float32(0.0448)))
    square = instead("Pow(x, two)", "Mul(x, x)", OWN_NORM)
    three, four = ["b", "s", K], ["b", 4, "s", K]
    for opset in (13, 18):
        for axis, dims, becomes in (
            (-1, three, norm), (2, three, norm), (3, four, norm), (-1, four, norm),
            (1, ["s", K], norm), (1, three, AS_IT_IS), (-2, three, AS_IT_IS), (2, four, AS_IT_IS),
            (2, None, AS_IT_IS),
        ):  # fmt: skip
            mean = "(squares, last)"
            text = instead(mean, mean if opset == 18 else f"<axes=[{axis}]>(squares)", square)
            yield spelled(f"a norm over {axis} of {dims}, {opset}", text, becomes,
                          numbers(last=[axis]) | {"x": dims}, opset=opset, runs=False,
                          declared={"squares": dims} if dims else {})  # fmt: skip


ENTRIES = [*recognised(), *near_misses(), *norms_and_gelus()]
