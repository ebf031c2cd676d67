"""Problems of the micro-measurements' overlay: every byte must arrive in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ort_aie_ep.bringup.problem import (
    Buffers,
    Context,
    Output,
    Problem,
    doubles,
    generator,
    nan,
)
from ort_aie_ep.bringup.references import BF16, Reference
from ort_aie_ep.npu.vocabulary.device import Device

OBJECT, SMALL = 4096, 256  # elements of bf16, of a lane's objects and of an id's


def _numbers(p: Mapping[str, int], *shape: int) -> NDArray[Any]:
    return generator(dict(p)).standard_normal(shape).astype(BF16)


def _same(name: str, got: NDArray[Any], expected: NDArray[Any]) -> Output:
    exact = doubles(expected)
    return Output(name, doubles(got), Reference(exact, np.zeros_like(exact)))


def _copied(sequence: str, p: dict[str, int], buffers: Buffers, y: NDArray[Any]) -> Problem:
    """After the run, the buffer `y` must hold the array `y`."""
    return Problem(
        sequence, p, buffers | {"y": nan(*y.shape)}, lambda after: [_same("y", after["y"], y)]
    )


def _passthrough(context: Context, p: dict[str, int]) -> Problem:
    x = _numbers(p, p["lanes"], p["bytes"] // 2)
    return _copied("passthrough", p, {"x": x}, x)


def _read(context: Context, p: dict[str, int]) -> Problem:
    x = _numbers(p, p["lanes"], p["bytes"] // 2)
    return _copied("read", p, {"x": x}, x[:, -OBJECT:])


def _write(context: Context, p: dict[str, int]) -> Problem:
    x = _numbers(p, p["lanes"], OBJECT)
    return _copied("write", p, {"x": x}, np.tile(x, p["bytes"] // 2 // OBJECT))


def _two_ids(context: Context, p: dict[str, int]) -> Problem:
    a, b = _numbers(p, 2, 2 * p["objects"], SMALL)
    return _copied("two_ids", p, {"a": a, "b": b}, np.stack([a, b], axis=1))


def _read_small(context: Context, p: dict[str, int]) -> Problem:
    x = _numbers(p, p["objects"] + 1, SMALL)
    a, b = x[:-1], x[-1]
    return _copied("read_small", p, {"a": a, "b": b}, np.stack([a[-1], b]))


def _lanes(*sizes: int, **more: int) -> Callable[[Device], Iterator[dict[str, int]]]:
    """For each size: the first lane, all lanes of channel 0, both channels of the last column."""

    def each(device: Device) -> Iterator[dict[str, int]]:
        columns = device.columns
        for size in sizes:
            yield {"bytes": size, "lanes": 1, "first": 0} | more
            if columns > 1:
                yield {"bytes": size, "lanes": columns, "first": 0} | more
                yield {"bytes": size, "lanes": columns, "first": columns // 2} | more

    return each


def _objects(*counts: int) -> Callable[[Device], Iterator[dict[str, int]]]:
    return lambda device: iter([{"objects": count} for count in counts])


_BYTES = 2 * OBJECT
#: As `problems` has them: ((small shapes, typical shapes), the problem of one).
KNOWN: dict[str, tuple[tuple[Callable[..., Any], Callable[..., Any]], Any]] = {
    "passthrough": ((_lanes(_BYTES, 5 * _BYTES), _lanes(1 << 20)), _passthrough),
    "read": ((_lanes(3 * _BYTES), _lanes(1 << 20)), _read),
    "write": ((_lanes(3 * _BYTES, calls=1), _lanes(1 << 20, calls=1)), _write),
    "two_ids": ((_objects(1, 2), _objects()), _two_ids),
    "read_small": ((_objects(1, 9), _objects(2048)), _read_small),
}
