"""Masks that a model computes before ONNX's Attention: which are read, and which are used as they
are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from graphs import REST, Array, Entry, Given, steps
from onnx_attention import in_layer, layer

# Columns of keys, and rows of queries after a past, as exporters count both.
LENGTHS = """
    total = Shape<start=1, end=2>(attention_mask); new = Shape<start=1, end=2>(q)
    total0 = Squeeze(total); new0 = Squeeze(new); past0 = Sub(total0, new0)
    key = Range(n0, total0, n1); row = Range(past0, total0, n1); query = Unsqueeze(row, last)
    causal = LessOrEqual(key, query)
    shown2 = Cast<to=9>(attention_mask); shown = Unsqueeze(shown2, middle)
"""
NUMBERS: dict[str, Given] = {
    "n0": np.int64(0), "n1": np.int64(1), "last": np.array([-1]), "middle": np.array([1, 2]),
    "attention_mask": [np.int64, "batch", "total"], "null": np.float32(0), "zero1": np.array([0]),
}  # fmt: skip
CAUSAL = "mask = And(causal, shown)"
FLOATS = "both = And(causal, shown); mask = Where(both, null, lowest)"
LOCAL = "near = Greater(key, oldest); local = And(causal, near); mask = And(local, shown)"


def padded(sizes: Mapping[str, int]) -> Array:
    """(batch, total): rows of no padding, of some, and of one token."""
    padding = np.array([0, 2, sizes["total"] - 1])[:, None]
    return (np.arange(sizes["total"]) >= padding).astype(np.int64)


def tokens(feeds: Mapping[str, Array]) -> Array:
    """The queries that are no padding."""
    shown: Array = feeds["attention_mask"][:, -feeds["q"].shape[1] :] != 0
    return shown


def numbers(**given: Any) -> dict[str, Given]:
    return {name: np.asarray(value) for name, value in given.items()}


def masked(
    name: str, text: str, seen: str, *, past: int | None = None, count: tuple[int, ...] = (7,),
    given: Mapping[str, Given] = {}, normed: str = "", **more: Any,
) -> Entry:  # fmt: skip
    """`seen`: the window, "" for none of them, or "mask" for one that is used as it is."""
    cache = past is not None
    graph = layer(appended=cache, mask=", mask", normed=normed)
    inputs = "q k v past_key past_value" if cache else "q k v - -"
    results = "present_key present_value" if cache else "* *"
    norms = "q.norm k.norm" if normed else "- -"
    becomes = (
        f"FlowAttention {inputs}{' -' * 9} {norms} attention_mask -> out {results} causal=1 "
        f"local_window_size={seen or -1} scale=0 softcap=0"
    )
    if normed:
        becomes = becomes.replace(" local_window_size=-1", "").replace(" softcap=0", "").replace(
            " causal=1", "") + " qk_norm_epsilon=0.0001"  # fmt: skip
    if seen == "mask":
        becomes = f"{REST}\nFlowAttention {inputs}{' -' * 5} * -> out {results} causal=0 " \
                  "local_window_size=-1 scale=0 softcap=0"  # fmt: skip
    sizes = [{"batch": 3, "tokens": n, "past": past or 0, "total": (past or 0) + n} for n in count]
    more["feeds"] = {"attention_mask": padded} | more.get("feeds", {})
    return in_layer(f"{name}{'' if past is None else f', {past=}'}", steps(LENGTHS, text, graph),
                    becomes, NUMBERS | dict(given), sizes=sizes, rows=tokens,
                    unread=("causal",), **more)  # fmt: skip


def read() -> Iterator[Entry]:
    for past in (None, 4):
        yield masked("causal order and padding", CAUSAL, "", past=past, count=(1, 7))
        for lowest in (-1e9, np.finfo(np.float32).min):
            yield masked(f"as floats of {lowest:.3g}", FLOATS, "", past=past, count=(1, 7),
                         given=numbers(lowest=np.float32(lowest)))  # fmt: skip
        yield masked("a large window", f"oldest = Sub(query, size); {LOCAL}", "100000", past=past,
                     given=numbers(size=100_000))  # fmt: skip
    for past in (None, 4, 40):
        yield masked("a window", f"oldest = Sub(query, size); {LOCAL}", "6", past=past,
                     given=numbers(size=6))  # fmt: skip
    for what, text, given in (
        ("negative", "oldest = Add(query, size)", numbers(size=-100)),
        ("int32",
         "query32 = Cast<to=6>(query); key32 = Cast<to=6>(key); oldest = Sub(query32, size)",
         numbers(size=np.int32(100))),
        ("float", "query1 = Cast<to=1>(query); key1 = Cast<to=1>(key); oldest = Sub(query1, size)",
         numbers(size=np.float32(99.5))),
        ("product", "size = Mul(ten, ten); oldest = Sub(query, size)", numbers(ten=10)),
        ("three", "older = Sub(query, a); old = Sub(older, c); oldest = Sub(old, c)",
         numbers(a=40, c=30)),
    ):  # fmt: skip
        key = {"int32": "key32", "float": "key1"}.get(what, "key")
        for past in (None, 150):
            yield masked(f"a window that is {what}",
                         f"{text}; {LOCAL.replace('Greater(key', f'Greater({key}')}", "100",
                         past=past, given=given)  # fmt: skip
    triangle = (
        "square = Concat<axis=0>(total, total); ones = Expand(n1, square)\n"
        "lower = Trilu<upper=0>(ones, below); rows = Gather(lower, row); far = Cast<to=9>(rows)\n"
        "near = Not(far); local = And(causal, near); mask = And(local, shown)"
    )
    for past in (None, 150):
        yield masked("a window that is a triangle", triangle, "100", past=past,
                     given=numbers(below=-100))  # fmt: skip
        for window in (100, 250, 256):
            yield masked(f"a window of {window} in a table", TABLE,
                         "" if window == 256 else str(window), past=past,
                         given=table(band(256, window)))  # fmt: skip
    yield masked("and norms of heads", CAUSAL, "", normed="tokens")


# As in GPT-2 and GPT-Neo.
TABLE = """
    past1 = Unsqueeze(past0, zero1); rows = Slice(table, past1, total, rows_axis)
    near = Slice(rows, zero1, total, columns_axis); mask = And(near, shown)
"""


def table(array: Array) -> dict[str, Given]:
    return numbers(table=array, rows_axis=[2], columns_axis=[3])


def band(size: int, window: int) -> Array:
    distance = np.arange(size)[:, None] - np.arange(size)
    shown: Array = ((distance >= 0) & (distance < window))[None, None]
    return shown


def as_they_are() -> Iterator[Entry]:
    hole = band(256, 100)
    hole[0, 0, 200, 3] = True
    yield masked("a table that is no window", TABLE, "mask", past=200, given=table(hole))
    # Windows of 700,000 and of 5 keys, made of two numbers that no run is long enough for; and 50
    # blocks of 200, in whole blocks.
    for text, given in (
        ("older = Sub(query, a); oldest = Sub(older, c)", numbers(a=500_000, c=200_000)),
        ("older = Sub(query, a); oldest = Add(older, c)", numbers(a=500_005, c=500_000)),
        ("blocks = Div(query, a); block = Sub(blocks, c); oldest = Mul(block, a)",
         numbers(a=200, c=50)),
    ):  # fmt: skip
        yield masked(f"a window that no run shows: {text}", f"{text}; {LOCAL}", "mask", given=given)
    for text, given in (
        ("later = GreaterOrEqual(key, query); mask = And(later, shown)", {}),
        ("before = Less(key, query); mask = And(before, shown)", {}),
        ("mask = Or(causal, shown)", {}),
        # A prefix whose tokens see each other.
        ("early = Less(key, three); wide = Or(causal, early); mask = And(wide, shown)",
         numbers(three=3)),
        # Distances that are added to scores (ALiBi).
        ("distance = Sub(key, query); far = Cast<to=1>(distance); mask = Mul(far, one32)",
         numbers(one32=np.float32(1))),
        (FLOATS, numbers(lowest=np.float32(-5))),
    ):  # fmt: skip
        yield masked(f"another mask: {text}", text, "mask", past=4, given=given)
    # It agrees only where the positions are the tokens' own.
    places = "first = Unsqueeze(ids, middle); place = Transpose<perm=[0, 1, 3, 2]>(first)"
    yield masked("a mask of positions", f"{places}; order = LessOrEqual(key, place); "
                 "mask = And(order, shown)", "mask", past=4,
                 feeds={"ids": np.tile(np.arange(4, 11), (3, 1))})  # fmt: skip
    # Images' tokens see each other, as in Gemma 3. A probe need not hold a pair of them.
    images = """
        image = Equal(kinds, n1); across = Unsqueeze(image, last); down = Unsqueeze(image, one)
        pair = And(across, down); wide = Cast<to=1>(pair); edge = Unsqueeze(past0, zero1)
        edges = Concat<axis=0>(zeros2, edge, zeros3); filled = Pad(wide, edges)
        pairs3 = Cast<to=9>(filled); pairs = Unsqueeze(pairs3, one); seen = Or(causal, pairs)
        mask = And(seen, shown)
    """
    kinds = np.array([[0, 1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1, 0], [0, 1, 1, 1, 0, 0, 0]])
    for past in (None, 4):
        for opset in (23, 24):
            yield masked(f"a mask that looks at values, {opset}", images, "mask", past=past,
                         given=numbers(zeros2=[0, 0], zeros3=[0, 0, 0])
                         | {"kinds": [np.int64, "batch", "tokens"]}, feeds={"kinds": kinds},
                         opset=opset)  # fmt: skip


ENTRIES = [*read(), *as_they_are()]
