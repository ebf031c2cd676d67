"""The folder of completions: a file for each part of the prompts, and what they depend on.

    batch.json          the settings, and digests of the model and the prompts
    part-000000.jsonl   completions of the first prompts, one a line, in the prompts' order
    part-000001.jsonl   ...

A part is there as a whole or not at all: it is written beside its place, to the disk, and renamed.
Its name says which prompts it has, so a part that is computed twice (a worker died before it could
say that it had finished) is still there once. What is missing is what has to be computed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ort_aie_ep.batch.completer import Completion, Request
from ort_aie_ep.errors import AieError
from ort_aie_ep.models.checked_json import read_json
from ort_aie_ep.models.files import write_json, written_beside
from ort_aie_ep.platforms import TO_READ, lock

MANIFEST = "batch.json"
FORMAT = 1


@dataclass(frozen=True)
class Tally:
    """What completions add up to.

    Attributes:
        prompts: how many.
        errors: how many of them could not be completed.
        prompt_tokens, completion_tokens: of all together.
    """

    prompts: int = 0
    errors: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            *(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True))
        )


def part_file(folder: Path, part: int) -> Path:
    """Where a part is."""
    return folder / f"part-{part:06}.jsonl"


@contextmanager
def begun(folder: Path, manifest: Mapping[str, Any]) -> Iterator[None]:
    """Makes the folder, or checks that an earlier run had the same `manifest`; no other run writes
    to it meanwhile, where the file system has locks.

    Raises:
        AieError: it had another one, another run has it, the folder has other files, or it cannot
            be written.
    """
    path = folder / MANIFEST
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            # A run that was killed while it wrote the manifest has left a file with such a name.
            if any(not left.name.startswith(f".{MANIFEST}-") for left in folder.iterdir()):
                raise AieError(f"{folder} is not empty and has no {MANIFEST}: name a new folder")
            write_json(path, {"format": FORMAT, **manifest})
        descriptor = os.open(path, TO_READ)
    except OSError as error:
        raise AieError(f"{folder} cannot be written: {error.strerror}") from error
    try:
        try:
            lock(descriptor)
        except BlockingIOError as error:
            raise AieError(f"another run writes to {folder}: wait until it has ended") from error
        except OSError:
            pass  # no locks here
        _check(folder, manifest)
        for left in folder.glob(".part-*"):  # counts, and what killed workers wrote
            left.unlink(missing_ok=True)
        yield
    finally:
        os.close(descriptor)


def _check(folder: Path, manifest: Mapping[str, Any]) -> None:
    before = read_json(folder / MANIFEST).value
    before = before if isinstance(before, dict) else {}
    for name, value in {"format": FORMAT, **manifest}.items():
        if before.get(name) != value:
            raise AieError(
                f"{folder} was begun with another {name} ({before.get(name)}, not {value}): its "
                "completions would be mixed with others. Use the same again, or a new folder"
            )


def attempt(folder: Path, part: int) -> int:
    """Counts an attempt at a part; returns how many this run has made, including this one.

    Raises:
        OSError: the count cannot be written.
    """
    with _attempts(folder, part).open("ab") as file:
        file.write(b".")
        return file.tell()


def write_part(
    folder: Path, part: int, requests: Sequence[Request], completions: Sequence[Completion]
) -> Tally:
    """Writes a part. Raises OSError if that fails."""
    with written_beside(part_file(folder, part)) as file:
        for request, completion in zip(requests, completions, strict=True):
            file.write(json.dumps({"id": request.id, **asdict(completion)}) + "\n")
        file.flush()
        os.fsync(file.fileno())
    _attempts(folder, part).unlink(missing_ok=True)
    return _tally(asdict(completion) for completion in completions)


def read_part(folder: Path, part: int, requests: Sequence[Request]) -> Tally | None:
    """What a part adds up to; None if it is missing, or is not a part of these requests."""
    try:
        rows = [json.loads(line) for line in part_file(folder, part).read_bytes().splitlines()]
        if [row["id"] for row in rows] == [request.id for request in requests]:
            return _tally(rows)
    except (OSError, ValueError, TypeError, KeyError):
        pass
    return None


def _attempts(folder: Path, part: int) -> Path:
    return folder / f".{part_file(folder, part).stem}.attempts"


def _tally(rows: Any) -> Tally:
    total = Tally()
    for row in rows:
        error = row["finish_reason"] == "error"
        total += Tally(1, int(error), int(row["prompt_tokens"]), int(row["completion_tokens"]))
    return total
