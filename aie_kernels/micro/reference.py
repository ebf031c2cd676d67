"""Copies: problems of `micro`, where every byte must arrive in its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ort_aie_ep.aie_kernels.reference import (
    BF16,
    Buffers,
    Context,
    Output,
    Problem,
    doubles,
    exactly,
    generator,
    nan,
)

OBJECT, SMALL = 4096, 256  # elements of bf16, of a lane's objects and of an id's


def _numbers(p: Mapping[str, int], *shape: int) -> NDArray[Any]:
    return generator(dict(p)).standard_normal(shape).astype(BF16)


def _copied(sequence: str, p: dict[str, int], buffers: Buffers, y: NDArray[Any]) -> Problem:
    """After the run, the buffer `y` must hold the array `y`."""

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        return [Output("y", doubles(after["y"]), exactly(y))]

    return Problem(sequence, p, buffers | {"y": nan(*y.shape)}, judge)


def passthrough(context: Context, p: dict[str, int]) -> Problem:
    """A problem of `passthrough`."""
    x = _numbers(p, p["lanes"], p["bytes"] // 2)
    return _copied("passthrough", p, {"x": x}, x)


def read(context: Context, p: dict[str, int]) -> Problem:
    """A problem of `read`."""
    x = _numbers(p, p["lanes"], p["bytes"] // 2)
    return _copied("read", p, {"x": x}, x[:, -OBJECT:])


def write(context: Context, p: dict[str, int]) -> Problem:
    """A problem of `write`."""
    x = _numbers(p, p["lanes"], OBJECT)
    return _copied("write", p, {"x": x}, np.tile(x, p["bytes"] // 2 // OBJECT))


def two_ids(context: Context, p: dict[str, int]) -> Problem:
    """A problem of `two_ids`."""
    a, b = _numbers(p, 2, 2 * p["objects"], SMALL)
    return _copied("two_ids", p, {"a": a, "b": b}, np.stack([a, b], axis=1))


def read_small(context: Context, p: dict[str, int]) -> Problem:
    """A problem of `read_small`."""
    x = _numbers(p, p["objects"] + 1, SMALL)
    a, b = x[:-1], x[-1]
    return _copied("read_small", p, {"a": a, "b": b}, np.stack([a[-1], b]))
