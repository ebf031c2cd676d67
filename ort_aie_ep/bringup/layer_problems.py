"""Problems of a whole decoder layer, and of the vocabulary: the overlay `fused_layer`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ort_aie_ep.bringup.layer_reference import BF16, Layer, Reference, random_blocks
from ort_aie_ep.bringup.problem import Context, Output, Problem, doubles, generator, nan
from ort_aie_ep.bringup.references import U_BF16, bits
from ort_aie_ep.bringup.references import Reference as Expected
from ort_aie_ep.npu.vocabulary.device import Device

#: Results that are rounded to bfloat16 one after another in a layer, the input norm to the sum.
ROUNDINGS = 10

LLAMA = {
    "hidden": 512, "heads": 8, "kv_heads": 4, "head_dim": 64, "rotary_dim": 64, "interleaved": 0,
    "ffn": 1024, "gelu": 0, "head_norm": 0, "post_norm": 0, "bias": 0, "context": 70,
    "capacity": 128, "window": 0, "scale_bits": bits(64**-0.5), "softcap_bits": 0,
    "eps_bits": bits(1e-5),
}  # fmt: skip
GEMMA = LLAMA | {
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 256,
    "rotary_dim": 256,
    "ffn": 2560,
    "gelu": 1,
    "head_norm": 1,
    "post_norm": 1,
    "context": 61,
    "capacity": 64,
    "window": 20,
    "scale_bits": bits(1 / 16),
}
LLAMA_1B = LLAMA | {
    "hidden": 2048,
    "heads": 32,
    "kv_heads": 8,
    "ffn": 8192,
    "context": 1024,
    "capacity": 1024,
}


def _layer(context: Context, p: dict[str, int], *, shared: bool = False) -> Problem:
    layer = Layer(p, context.form, shared)
    buffers = layer.random(seed=p["context"])
    expected = Reference(context.form).layer(layer, buffers)

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        return [_output(name, after[name], values, ROUNDINGS) for name, values in expected.items()]

    return Problem(layer.sequence, p, buffers, judge)


def _head(context: Context, p: dict[str, int]) -> Problem:
    rng, hidden = generator(p), p["hidden"]
    x = rng.standard_normal(hidden).astype(BF16)
    norm = rng.uniform(0.5, 1.5, hidden).astype(BF16)
    w = random_blocks(rng, p["N"], hidden, context.form)
    reference = Reference(context.form)
    expected = reference.matvec(w, reference.norm(x, norm, p["eps_bits"]))

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        return [_output("y", after["y"], expected, 2)]

    return Problem("head", p, {"x": x, "norm": norm, "w": w, "y": nan(p["N"])}, judge)


def _output(name: str, got: NDArray[Any], expected: NDArray[Any], roundings: int) -> Output:
    """An output may be off by its roundings, each of a value no larger than the largest."""
    exact = doubles(expected)
    tolerance = np.full_like(exact, roundings * U_BF16 * np.abs(exact).max())
    return Output(name, doubles(got), Expected(exact, tolerance))


def _shapes(*shapes: dict[str, int]) -> Callable[[Device], Any]:
    return lambda device: iter(shapes)


def _heads(*sizes: tuple[int, int]) -> Callable[[Device], Any]:
    return _shapes(*({"N": n, "hidden": hidden, "eps_bits": bits(1e-6)} for n, hidden in sizes))


#: As in `problems`.
KNOWN: dict[str, tuple[tuple[Callable[..., Any], Callable[..., Any]], Any]] = {
    "layer": ((_shapes(LLAMA, GEMMA), _shapes(LLAMA_1B)), _layer),
    "shared_layer": ((_shapes(LLAMA, GEMMA), _shapes(LLAMA_1B)), partial(_layer, shared=True)),
    "head": ((_heads((512, 512), (1120, 256)), _heads((128256, 2048))), _head),
}
