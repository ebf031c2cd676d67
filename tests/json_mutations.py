"""JSON damaged by accident or on purpose: seeded, so that a failure can be repeated.

for data in mutations(text, seed=0, count=300): ...
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ort_aie_ep.errors import AieError

# Replacements for a value, as JSON text: values next to limits, other types, numbers
# that no machine type holds, and nested values.
VALUES = (
    "null", "true", "false", "0", "-1", "1", "3", "1.5", "-0.0", "1e999", "-1e999", "1e-999", "NaN",
    "Infinity", "9223372036854775807", "9223372036854775808", "-9223372036854775809",
    "1" + "0" * 400,
    "9" * 5000, '""', '"x"', '"npu1"', '"\\u0000"', '"\\ud800"', '"' + "n" * 5000 + '"', "[]", "{}",
    "[[]]", '[{"x": 1}]', '{"x": []}', '["+", 1, 2]', '["//", 1, 0]', '["*", "N", "N"]', '["+"]',
    "[" * 200 + "]" * 200, "[" * 2000 + "]" * 2000, '{"a":' * 2000 + "1" + "}" * 2000,
)  # fmt: skip


def refusal(read: Callable[[], Any], error: type[AieError] = AieError) -> str:
    """The message of what `read` raises, which must be an `error`; empty if nothing is raised."""
    try:
        read()
    except error as raised:
        return str(raised)
    return ""


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a value."""
    if path:
        yield path
    for key, inner in (
        value.items() if isinstance(value, dict)
        else enumerate(value) if isinstance(value, list) else ()
    ):  # fmt: skip
        yield from places(inner, (*path, key))


def mutations(text: str, seed: int, count: int) -> Iterator[bytes]:
    """`count` mutations of JSON text: of its values, of its structure, and of its bytes."""
    generator = np.random.default_rng(seed)
    paths = list(places(json.loads(text)))
    # Deep paths are many and alike: give each depth the same share.
    by_depth: dict[int, list[tuple[Any, ...]]] = {}
    for path in paths:
        by_depth.setdefault(len(path), []).append(path)
    for _ in range(count):
        same = by_depth[int(generator.choice(list(by_depth)))]
        path = same[int(generator.integers(len(same)))]
        match generator.integers(10):
            case 0:
                yield _of_bytes(text.encode(), generator)
            case 1:
                yield _removed(text, path)
            case 2:
                other = paths[int(generator.integers(len(paths)))]
                yield _replaced(text, path, json.dumps(_at(json.loads(text), other)))
            case 3:
                yield _renamed(text, path, generator)
            case _:
                yield _replaced(text, path, VALUES[int(generator.integers(len(VALUES)))])


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def _replaced(text: str, path: tuple[Any, ...], by: str) -> bytes:
    content = json.loads(text)
    _at(content, path[:-1])[path[-1]] = "\0here"
    return json.dumps(content).replace('"\\u0000here"', by).encode()


def _removed(text: str, path: tuple[Any, ...]) -> bytes:
    content = json.loads(text)
    del _at(content, path[:-1])[path[-1]]
    return json.dumps(content).encode()


def _renamed(text: str, path: tuple[Any, ...], generator: np.random.Generator) -> bytes:
    content = json.loads(text)
    at = _at(content, path[:-1])
    if isinstance(at, dict):
        at[str(generator.choice(["", "x", "0", "-1", "9" * 30, "do", "for"]))] = at.pop(path[-1])
    else:
        at.extend([at[path[-1]]] * int(generator.integers(1, 40)))
    return json.dumps(content).encode()


def _of_bytes(data: bytes, generator: np.random.Generator) -> bytes:
    place = int(generator.integers(len(data)))
    match generator.integers(4):
        case 0:
            return data[:place]
        case 1:
            return data[:place] + bytes(generator.integers(0, 256, 3, np.uint8)) + data[place + 1 :]
        case 2:
            return data[:place] + b"\xc3" + data[place:]
        case _:
            return data[:place] + data[place + int(generator.integers(1, 60)) :]
