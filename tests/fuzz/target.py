"""Common code of the Python targets: Atheris, the exceptions that are not findings, mutations of
JSON."""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

sys.path.append(str(Path(__file__).parents[1]))
with atheris.instrument_imports(include=["ort_aie_ep"]):
    from json_mutations import mutations

    from ort_aie_ep.errors import AieError

# Between the parts of an input.
MARK = b"\n--\n"


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
    """A mutation of one part that stays near JSON. Parts that are not JSON, and others now and
    then, mutate as bytes."""
    choose = random.Random(seed)
    parts = data.split(MARK)
    at = choose.randrange(len(parts))
    with contextlib.suppress(ValueError, RecursionError):
        if choose.randrange(5):
            (parts[at],) = mutations(parts[at].decode(), seed, count=1)
            mutated = MARK.join(parts)
            if len(mutated) <= most:
                return mutated
    result: bytes = atheris.Mutate(data, most)
    return result
