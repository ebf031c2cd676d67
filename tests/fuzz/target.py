"""Common code of the Python targets: Atheris, the exceptions that are not findings, mutations of
JSON."""

from __future__ import annotations

import contextlib
import copy
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["ort_aie_ep"]):
    from ort_aie_ep.errors import AieError

# Between the parts of an input.
MARK = b"\n--\n"
NUMBERS = (
    *(0, 1, -1, 2, 3, 7, 8, 16, 31, 64, 255),
    *(2**31, 2**32, 2**53 + 1, 2**62, 2**63, 2**64, -(2**63), 10**30),
    *(0.5, -0.0, 1e308, 1e-320),
)
VALUES = (*NUMBERS, None, True, False, "", "\0", "\ud800", "x" * 300, [], {}, [[]], {"": 0})
# json cannot write deeper values.
DEEPEST = 200


def fuzz(test: Callable[[bytes], None], *, of_json: bool = False) -> None:
    """Runs `test` on inputs endlessly. Any exception that is not an AieError is a finding.

    With `of_json` the parts of an input, separated by MARK, are mostly JSON.
    """

    def one(data: bytes) -> None:
        with contextlib.suppress(AieError):
            test(data)

    mutator = {"custom_mutator": mutate_json} if of_json else {}
    atheris.Setup(sys.argv, one, **mutator)
    atheris.Fuzz()


def scratch() -> Path:
    """A folder in memory if the machine has one, deleted when the process ends."""
    shm = Path("/dev/shm")
    folder = tempfile.TemporaryDirectory(
        prefix="ort_aie_fuzz_", dir=shm if shm.is_dir() else None, ignore_cleanup_errors=True
    )
    _kept.append(folder)
    return Path(folder.name)


_kept: list[tempfile.TemporaryDirectory[str]] = []


def mutate_json(data: bytes, most: int, seed: int) -> bytes:
    """A mutation of one part that stays JSON. Parts that are not JSON, and others now and then,
    mutate as bytes."""
    choose = random.Random(seed)
    parts = data.split(MARK)
    at = choose.randrange(len(parts))
    try:
        document = json.loads(parts[at])
    except (ValueError, RecursionError):
        document = None
    if document is not None and choose.randrange(5):
        root = {"": document}
        for _ in range(choose.randint(1, 3)):
            _mutate(root, choose)
        with contextlib.suppress(ValueError, RecursionError):
            parts[at] = json.dumps(root[""], separators=(",", ":")).encode("utf-8", "replace")
            mutated = MARK.join(parts)
            if len(mutated) <= most:
                return mutated
    result: bytes = atheris.Mutate(data, most)
    return result


def _places(value: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    """Containers and the keys of their values."""
    if depth > DEEPEST:
        return
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key], depth + 1)


def _mutate(root: dict[str, Any], choose: random.Random) -> None:
    places = list(_places(root))
    holder, key = choose.choice(places)
    other_holder, other_key = choose.choice(places)
    value, other = holder[key], json.loads(json.dumps(other_holder[other_key]))
    match choose.randrange(7):
        case 0:
            holder[key] = other
        case 1 if holder is not root and len(holder):
            del holder[key]
        case 2 if isinstance(value, int | float) and not isinstance(value, bool):
            step = choose.choice((1, -1, value, -value, 2 ** choose.randrange(64)))
            holder[key] = value + step
        case 3:
            holder[key] = choose.choice(NUMBERS)
        case 4 if isinstance(value, list):
            value.insert(choose.randint(0, len(value)), other)
        case 4 if isinstance(value, dict):
            value[other if isinstance(other, str) else "new"] = choose.choice(NUMBERS)
        case 5 if isinstance(value, str):
            holder[key] = choose.choice((value + "x", value[:-1], value * 2, other_key))
        case _:
            holder[key] = copy.deepcopy(choose.choice(VALUES))
