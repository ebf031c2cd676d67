"""A sequence's shape with inputs, and numpy's values of its outputs.

`shapes(manifest, device, sequence)` gives the shapes that `ort-aie validate` runs: first small
ones, at the edges that the designs' tests know, then those of a layer of a model of 10^9 weights
(Llama 3.2 1B: hidden size 2048, 32 heads of 64 with 8 for keys and values, 8192 between).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ort_aie_ep.bringup import layer_problems, micro_problems, row_problems
from ort_aie_ep.bringup import references as ref
from ort_aie_ep.bringup.layer_reference import random_blocks
from ort_aie_ep.bringup.problem import (
    EPS,
    Buffers,
    Context,
    Output,
    Problem,
    doubles,
    generator,
    nan,
)
from ort_aie_ep.bringup.references import BF16, Doubles, Reference, bf16, bits
from ort_aie_ep.formats import q4nx
from ort_aie_ep.npu.packages.package import form_of
from ort_aie_ep.npu.vocabulary.device import Device
from ort_aie_ep.npu.vocabulary.errors import DesignError

CHUNK = 4096  # elements of K or V that the attention designs fetch at a time
GARBAGE = 3.0e30  # in keys that no kernel may read


@dataclass(frozen=True)
class Shape:
    """A problem before it is made; `typical` is of a layer, otherwise small."""

    parameters: dict[str, int]
    typical: bool
    make: Callable[[], Problem]


def shapes(manifest: Mapping[str, Any], device: Device, sequence: str) -> list[Shape]:
    """The shapes to run for a sequence of a package, small ones first.

    Empty if the sequence is unknown, or has other parameters than expected.
    """
    described = manifest["sequences"][sequence]
    make = _KNOWN.get((sequence, "prompt" in described["parameters"]))
    if make is None:
        return []
    places = {a["name"]: a["bytes"] for a in described["arguments"]}
    context = Context(device, places, form_of(manifest))
    return [
        Shape(parameters, typical, lambda p=parameters: make[1](context, p))  # type: ignore[misc]
        for typical, each in ((False, make[0][0]), (True, make[0][1]))
        for parameters in each(device)
        if parameters.keys() == set(described["parameters"])
    ]


# --- projections ----------------------------------------------------------------------------------
def _matvec(context: Context, p: dict[str, int], bits: int = 4) -> Problem:
    n, k, group, rng = p["N"], p["K"], context.form.group, generator(p)
    codes = rng.integers(0, 1 << bits, (n, k), dtype=np.uint8)
    scales = (rng.uniform(0.5, 1.5, (n, k // group)) * 0.02).astype(BF16)
    off = rng.uniform(0.8, 1.2, scales.shape) if context.form.minima else 1.0
    mins = (-(1 << bits) / 2 * doubles(scales) * off).astype(BF16)
    x = rng.standard_normal(k).astype(BF16)
    bias = rng.standard_normal(n * p["bias"]).astype(BF16)

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        w = doubles(codes) * np.repeat(doubles(scales), group, 1)
        w += np.repeat(doubles(mins), group, 1)
        added = doubles(bias) if p["bias"] else 0.0
        return [Output("y", doubles(after["y"]), ref.matvec(w, doubles(x), added, p["activation"]))]

    blocks = q4nx.pack(codes, scales, mins if context.form.minima else None, bits, group)
    sequence = "matvec_two_bits" if bits == 2 else "matvec"
    return Problem(sequence, p, {"x": x, "w": blocks, "bias": bias, "y": nan(n)}, judge)


def _matvec_part(context: Context, p: dict[str, int], bits: int = 4) -> Problem:
    """The last K of row_K in-features; the codes before them would show in the result."""
    whole = _matvec(context, {**p, "K": p["row_K"]}, bits)
    n, k, blocks = p["N"], p["K"], p["K"] // 256
    before = p["row_K"] // 256 - blocks
    rows = whole.buffers["w"].reshape(n // 32, before + blocks, -1)
    form = context.form if bits == 4 else q4nx.BlockForm(bits)
    weights = q4nx.dequantize(np.ascontiguousarray(rows[:, before:]), n, k, form)
    x, bias = whole.buffers["x"][-k:], whole.buffers["bias"]

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        added = doubles(bias) if p["bias"] else 0.0
        wanted = ref.matvec(weights.astype(np.float64), doubles(x), added, p["activation"])
        return [Output("y", doubles(after["y"]), wanted)]

    w = rows.reshape(-1)[before * rows.shape[2] :]
    sequence = "matvec_part_two_bits" if bits == 2 else "matvec_part"
    return Problem(sequence, p, {"x": x, "w": w, "bias": bias, "y": nan(n)}, judge)


def _matvec_part_of(*shapes: tuple[int, int, int, int]) -> Callable[[Device], Any]:
    return lambda device: iter(
        {"N": n, "K": k, "row_K": row_k, "bias": bias, "activation": 0}
        for n, k, row_k, bias in shapes
    )


def _matvec_of(*shapes: tuple[int, int, int, int]) -> Callable[[Device], Iterator[dict[str, int]]]:
    def each(device: Device) -> Iterator[dict[str, int]]:
        for n, k, bias, activation in shapes:
            yield {"N": n, "K": k, "bias": bias, "activation": activation}

    return each


def _dequant(context: Context, p: dict[str, int]) -> Problem:
    count = p["blocks"]
    blocks = random_blocks(generator(p), 32 * count, 256, context.form)
    weights = q4nx.dequantize(blocks.reshape(count, 1, -1), 32 * count, 256, context.form)

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        # scale * code is exact in float32 (8 and 4 significant bits), so that numpy and the kernel
        # both round the sum to float32 and that to bfloat16: the same bits.
        exact = doubles(ref.gemm_order(weights))
        got = doubles(after["b"]).reshape(exact.shape)
        return [Output("b", got, Reference(exact, np.zeros_like(exact)))]

    return Problem("dequant", p, {"w": blocks, "b": nan(count, 8192)}, judge)


def _dequant_of(*counts: int) -> Callable[[Device], Iterator[dict[str, int]]]:
    return lambda device: iter([{"blocks": count} for count in counts])


def _gemm(context: Context, p: dict[str, int], *, row_major: bool = False) -> Problem:
    m, k, n, rng = p["M"], p["K"], p["N"], generator(p)
    rows = max(m, 64)
    a = rng.standard_normal((rows, k)).astype(BF16)
    w = rng.standard_normal((n, k)).astype(BF16)
    output = "f32" if context.size("c", p) == rows * n * 4 else "bf16"
    c = np.full((rows, n), np.nan, np.float32) if output == "f32" else nan(rows, n)

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        expected = ref.product(doubles(a[:m]), doubles(w), context.device.architecture, output)
        return [Output("c", doubles(after["c"][:m]), expected)]

    if row_major:
        return Problem("matmul", p, {"a": a, "b": np.ascontiguousarray(w.T), "c": c}, judge)
    return Problem("gemm", p, {"a": a, "b": ref.gemm_order(w), "c": c}, judge)


def _short_gemm(context: Context, p: dict[str, int]) -> Problem:
    m, k, n, rng = p["M"], p["K"], p["N"], generator(p)
    rows = max(m, 64)
    a = rng.standard_normal((rows, k)).astype(BF16)
    blocks = random_blocks(rng, n, k, context.form)
    form = context.form
    w = q4nx.dequantize(blocks.reshape(form.blocks_shape(n, k)), n, k, form).astype(BF16)

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        expected = ref.product(doubles(a[:m]), doubles(w), context.device.architecture, "bf16")
        return [Output("c", doubles(after["c"][:m]), expected)]

    return Problem("project", p, {"a": a, "w": blocks, "c": nan(rows, n)}, judge)


def _gemm_of(*shapes: tuple[int, int, int]) -> Callable[[Device], Iterator[dict[str, int]]]:
    return lambda device: iter([{"M": m, "K": k, "N": n} for m, k, n in shapes])


# --- attention ------------------------------------------------------------------------------------
def _flow_kv(context: Context, p: dict[str, int]) -> Problem:
    rng, group = generator(p), p["heads"] // p["kv_heads"]
    keys, head_dim = p["context"], p["head_dim"]
    first = max(0, keys - p["window"]) if p["window"] else 0
    q = bf16(rng.standard_normal((p["heads"], head_dim)) * 2)
    k, v = bf16(rng.standard_normal((2, p["kv_heads"], keys, head_dim)))

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        each = [
            ref.flow_kv(q[h], k[h // group, first:], v[h // group, first:])
            for h in range(p["heads"])
        ]
        return [Output("o", doubles(after["o"]), _stacked(each))]

    buffers = {
        "q": q.astype(BF16),
        "k": ref.in_cache(k, p["capacity"], first, GARBAGE),
        "v": ref.in_cache(v, p["capacity"], first, GARBAGE),
        "o": nan(*q.shape),
    }
    return Problem("attention", p, buffers, judge)


def _flow_kv_of(*shapes: tuple[int, int, int, int, int]) -> Callable[[Device], Any]:
    def each(device: Device) -> Iterator[dict[str, int]]:
        for heads, kv_heads, head_dim, context, window in shapes:
            chunk = CHUNK // head_dim
            yield {
                "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "context": context,
                "capacity": -(-context // chunk) * chunk, "window": window,
                "scale_bits": bits(head_dim**-0.5), "softcap_bits": 0,
            }  # fmt: skip

    return each


def _flow_qkv(context: Context, p: dict[str, int]) -> Problem:
    rng, group = generator(p), p["heads"] // p["kv_heads"]
    prompt, head_dim, total = p["prompt"], p["head_dim"], p["past"] + p["prompt"]
    # The size of the sequence's argument shows how it rounds the length of prompts.
    tokens = context.size("q", p) // (p["heads"] * head_dim * 2)
    if not prompt <= tokens <= prompt + CHUNK:
        raise DesignError(f"the sequence's argument q has {tokens} tokens for a prompt of {prompt}")
    q = bf16(rng.standard_normal((tokens, p["heads"], head_dim)))
    k, v = bf16(rng.standard_normal((2, p["kv_heads"], total, head_dim)))
    seen = ref.attended(prompt, p["past"], p["window"], bool(p["causal"]))

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        each = [
            ref.flow_qkv(q[:prompt, h], k[h // group], v[h // group], seen)
            for h in range(p["heads"])
        ]
        expected = _stacked(each, axis=1)
        return [Output("o", doubles(after["o"][:prompt]), expected)]

    buffers = {
        "q": q.astype(BF16),
        "k": ref.in_cache(k, p["capacity"]),
        "v": ref.in_cache(v, p["capacity"]),
        "o": nan(*q.shape),
    }
    return Problem("attention", p, buffers, judge)


def _flow_qkv_of(*shapes: tuple[int, int, int, int, int, int]) -> Callable[[Device], Any]:
    def each(device: Device) -> Iterator[dict[str, int]]:
        for heads, kv_heads, head_dim, prompt, past, window in shapes:
            chunk = CHUNK // head_dim
            yield {
                "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "prompt": prompt,
                "past": past, "capacity": -(-(past + prompt) // chunk) * chunk, "window": window,
                "causal": 1, "scale_bits": bits(head_dim**-0.5), "softcap_bits": 0,
            }  # fmt: skip

    return each


def _stacked(each: list[Reference], axis: int = 0) -> Reference:
    return Reference(
        np.stack([r.exact for r in each], axis), np.stack([r.tolerance for r in each], axis)
    )


# --- vector operators -----------------------------------------------------------------------------
def _rms_norm(context: Context, p: dict[str, int]) -> Problem:
    n, rows, residual, rng = p["n"], p["rows"], p["residual"], generator(p)
    padded = -(-n // 128) * 128
    x, other, weight = np.zeros((rows, padded)), np.zeros((rows, padded)), np.zeros(padded)
    x[:, :n], other[:, :n] = bf16(rng.standard_normal((2, rows, n)))
    weight[:n] = bf16(rng.uniform(0.5, 1.5, n))
    total = bf16(x + residual * other)

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        outputs = [
            Output("y", doubles(after["y"]),
                   ref.rounded(ref.normalised(total, weight, n, EPS), ref.NORM)),
        ]  # fmt: skip
        if residual:
            exactly = Reference(total, np.zeros_like(total))
            outputs.append(Output("sum", doubles(after["sum"]), exactly))
        return outputs

    buffers = {
        "x": x.astype(BF16), "residual": other[: rows * residual].astype(BF16),
        "weight": weight.astype(BF16), "sum": nan(rows * residual, padded),
        "y": nan(rows, padded),
    }  # fmt: skip
    return Problem("rms_norm", p, buffers, judge)


def _rms_norm_of(*shapes: tuple[int, int, int]) -> Callable[[Device], Any]:
    return lambda device: iter(
        [{"n": n, "rows": r, "residual": e, "eps_bits": bits(EPS)} for n, r, e in shapes]
    )


def _heads(p: dict[str, int], count: int) -> tuple[Buffers, Doubles, Doubles]:
    """Inputs of a rotation, the heads as it sees them, and the table of the tokens."""
    rng, tokens, head_dim = generator(p), p["tokens"], p["head_dim"]
    x, weight = (
        bf16(rng.standard_normal((tokens, count, head_dim))),
        rng.uniform(0.5, 1.5, head_dim),
    )
    weight = bf16(weight)
    position = p.get("position", 1000)
    table = ref.rotation_table(position + tokens, p["rotary_dim"])[position:]
    buffers: Buffers = {
        "x": x.astype(BF16), "weight": weight[: head_dim * p["norm"]].astype(BF16),
        "table": table.astype(BF16),
    }  # fmt: skip
    seen = ref.normalised(x, weight, head_dim, EPS) if p["norm"] else x
    return buffers, seen, table


def _rope(context: Context, p: dict[str, int]) -> Problem:
    buffers, seen, table = _heads(p, p["heads"])

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        expected = ref.rope(seen, table, p["rotary_dim"], p["interleaved"], p["norm"])
        return [Output("y", doubles(after["y"]), expected)]

    return Problem("rope", p, buffers | {"y": nan(*seen.shape)}, judge)


def _append(context: Context, p: dict[str, int]) -> Problem:
    buffers, seen, table = _heads(p, p["kv_heads"])
    new = slice(p["position"], p["position"] + p["tokens"])
    before = bf16(generator(p).standard_normal((p["kv_heads"], p["capacity"], p["head_dim"])))

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        blocks = doubles(after["cache"])
        rows = blocks.transpose(0, 1, 3, 2, 4).reshape(before.shape)
        expected = ref.rope(seen, table, p["rotary_dim"], p["interleaved"], p["norm"])
        old = np.ones(p["capacity"], bool)
        old[new] = False
        untouched = Reference(before[:, old], np.zeros_like(before[:, old]))
        return [
            Output("new keys", rows[:, new].transpose(1, 0, 2), expected),
            Output("other keys", rows[:, old], untouched),
        ]

    cache = ref.in_cache(before, p["capacity"])
    return Problem("append", p, buffers | {"cache": cache}, judge)


def _move_heads(context: Context, p: dict[str, int]) -> Problem:
    heads, dim = p["heads"], p["dim"]
    x = bf16(generator(p).standard_normal((heads, p["x_stride"])))
    before = bf16(generator(p).standard_normal((heads, p["y_stride"])))
    expected = np.concatenate([x[:, :dim], before[:, dim:]], axis=1)

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        return [Output("y", doubles(after["y"]), Reference(expected, np.zeros_like(expected)))]

    return Problem("move_heads", p, {"x": x.astype(BF16), "y": before.astype(BF16)}, judge)


def _move_heads_of(*shapes: tuple[int, int, int, int]) -> Callable[[Device], Any]:
    names = ("heads", "dim", "x_stride", "y_stride")

    def each(device: Device) -> Iterator[dict[str, int]]:
        for heads, dim, *strides in shapes:
            values = dict(zip(names, (heads, dim, *strides), strict=True))
            yield values | {"copies": 256 // gcd(256, heads * dim)}

    return each


def _rope_of(count: str, *shapes: tuple[int, ...]) -> Callable[[Device], Any]:
    def each(device: Device) -> Iterator[dict[str, int]]:
        for heads, tokens, head_dim, norm, *positions in shapes:
            values = {
                count: heads, "tokens": tokens, "head_dim": head_dim, "rotary_dim": head_dim,
                "interleaved": 0, "norm": norm, "eps_bits": bits(EPS),
            }  # fmt: skip
            for position in positions:  # in a cache, with old keys after them
                capacity = ((position + tokens) // 64 + 1) * 64
                values |= {"position": position, "capacity": capacity}
            yield values

    return each


def _glu(context: Context, p: dict[str, int]) -> Problem:
    gate_up = bf16(generator(p).standard_normal((p["rows"], 2, p["n"])))

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        expected = ref.glu(gate_up[:, 0], gate_up[:, 1], p["kind"])
        return [Output("y", doubles(after["y"]), expected)]

    buffers = {"gate_up": gate_up.astype(BF16), "y": nan(p["rows"], p["n"])}
    return Problem("glu", p, buffers, judge)


def _glu_of(*shapes: tuple[int, int, int]) -> Callable[[Device], Any]:
    return lambda device: iter([{"n": n, "rows": rows, "kind": kind} for n, rows, kind in shapes])


def _softcap(context: Context, p: dict[str, int]) -> Problem:
    x = bf16(generator(p).standard_normal(p["n"]) * 40)

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        return [Output("y", doubles(after["y"]), ref.softcap(x, 30.0))]

    return Problem("softcap", p, {"x": x.astype(BF16), "y": nan(p["n"])}, judge)


def _softcap_of(*sizes: int) -> Callable[[Device], Any]:
    return lambda device: iter([{"n": n, "cap_bits": bits(30.0)} for n in sizes])


#: (sequence, whether it takes a prompt): ((small shapes, typical shapes), the problem of one).
_MATVEC_SHAPES = (
    _matvec_of((128, 256, 0, 0), (544, 256, 1, 0), (512, 768, 1, 1)),
    _matvec_of((2048, 2048, 0, 0), (3072, 2048, 0, 0), (16384, 2048, 0, 0), (2048, 8192, 0, 0)),
)
_MATVEC_PART_SHAPES = (
    _matvec_part_of((128, 256, 512, 0), (544, 512, 768, 1)),
    _matvec_part_of((5120, 8704, 17408, 1)),
)
_KNOWN: dict[tuple[str, bool], tuple[tuple[Callable[..., Any], Callable[..., Any]], Any]] = {
    ("matvec", False): (_MATVEC_SHAPES, _matvec),
    ("matvec_part", False): (_MATVEC_PART_SHAPES, _matvec_part),
    ("matvec_two_bits", False): (_MATVEC_SHAPES, partial(_matvec, bits=2)),
    ("matvec_part_two_bits", False): (_MATVEC_PART_SHAPES, partial(_matvec_part, bits=2)),
    ("dequant", False): ((_dequant_of(4, 5, 37), _dequant_of(512, 2048)), _dequant),
    ("gemm", False): (
        (_gemm_of((64, 256, 512), (7, 256, 544), (130, 512, 736)),
         _gemm_of((128, 2048, 2048), (512, 2048, 8192))),
        _gemm,
    ),
    ("matmul", False): (
        (_gemm_of((64, 256, 512), (7, 256, 546), (130, 512, 734)),
         _gemm_of((128, 2048, 2048), (512, 2048, 8192))),
        partial(_gemm, row_major=True),
    ),
    ("project", False): (
        (_gemm_of((64, 256, 512), (7, 256, 544), (130, 512, 736)),
         _gemm_of((64, 2048, 2048), (64, 2048, 8192))),
        _short_gemm,
    ),
    ("attention", False): (
        (_flow_kv_of((4, 2, 64, 1, 0), (4, 2, 64, 65, 0), (9, 1, 256, 33, 20), (5, 5, 128, 140, 0)),
         _flow_kv_of((32, 8, 64, 1024, 0), (32, 8, 64, 4096, 0))),
        _flow_kv,
    ),
    ("attention", True): (
        (_flow_qkv_of((4, 4, 64, 1, 0, 0), (8, 8, 64, 33, 37, 0), (7, 1, 128, 45, 3, 0),
                      (4, 2, 128, 70, 20, 16)),
         _flow_qkv_of((32, 8, 64, 128, 0, 0), (32, 8, 64, 512, 512, 0))),
        _flow_qkv,
    ),
    ("rms_norm", False): (
        (_rms_norm_of((128, 1, 0), (200, 3, 1)), _rms_norm_of((2048, 1, 1), (2048, 128, 1))),
        _rms_norm,
    ),
    ("rope", False): (
        (_rope_of("heads", (4, 1, 64, 0), (9, 3, 64, 1)),
         _rope_of("heads", (32, 1, 64, 0), (32, 128, 64, 0))),
        _rope,
    ),
    ("append", False): (
        (_rope_of("kv_heads", (4, 1, 64, 0, 5), (2, 5, 128, 1, 8)),
         _rope_of("kv_heads", (8, 1, 64, 0, 1000), (8, 128, 64, 0, 0))),
        _append,
    ),
    ("move_heads", False): (
        (_move_heads_of((8, 96, 96, 128), (8, 96, 128, 96), (2, 32, 32, 64)),
         _move_heads_of((32, 96, 96, 128))),
        _move_heads,
    ),
    ("glu", False): (
        (_glu_of((256, 1, 0), (700, 3, 1)), _glu_of((8192, 1, 0), (8192, 32, 0))), _glu,
    ),
    ("softcap", False): ((_softcap_of(256, 1000), _softcap_of(16384)), _softcap),
    **{(name, False): known for name, known in row_problems.KNOWN.items()},
    **{(name, False): known for name, known in layer_problems.KNOWN.items()},
    **{(name, False): known for name, known in micro_problems.KNOWN.items()},
}  # fmt: skip
