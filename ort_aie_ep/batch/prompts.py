"""Prompts in files of JSON lines or Parquet, one a row.

A row has `prompt` (text) or `messages` (for the model's chat template), and may have an `id` (text
or a whole number). Without one its id is its number among all rows, from 1. A row that is not like
this becomes a request with its error, and does not stop the others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ort_aie_ep.batch.completer import Request, check
from ort_aie_ep.errors import AieError
from ort_aie_ep.models.files import open_regular

JSON_LINES = (".jsonl", ".ndjson")
PARQUET = (".parquet",)
_COLUMNS = ("id", "prompt", "messages")


def read_prompts(path: Path) -> list[Request]:
    """The prompts of a file, or of all such files in a folder in the order of their names.

    Raises:
        AieError: there are no prompts, a file cannot be read, or an id is there twice.
    """
    requests: list[Request] = []
    places: dict[str, str] = {}
    for file in _files(path):
        for number, row in _rows(file):
            place = f"{file.name}, row {number}"
            request = _request(row, len(requests) + 1, place)
            first = places.setdefault(json.dumps(request.id), place)
            if first is not place:
                raise AieError(f"the id {request.id!r} is there twice: {first}, and {place}")
            requests.append(request)
    if not requests:
        raise AieError(f"{path} has no prompts")
    return requests


def digest(requests: Iterable[Request]) -> str:
    """A hash of prompts and their ids, in their order."""
    found = hashlib.sha256()
    for request in requests:
        fields = [request.id, request.prompt, request.messages, request.error]
        found.update(json.dumps(fields).encode() + b"\n")
    return found.hexdigest()


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(p for p in path.iterdir() if p.suffix in (*JSON_LINES, *PARQUET))
    if not found:
        raise AieError(f"{path} has no files that end in {', '.join((*JSON_LINES, *PARQUET))}")
    return found


def _rows(file: Path) -> Iterator[tuple[int, Any]]:
    """(number in the file, from 1; row); a row that cannot be read is an AieError."""
    if file.suffix in PARQUET:
        return _parquet_rows(file)
    if file.suffix in JSON_LINES:
        return _json_rows(file)
    raise AieError(f"{file} does not end in {', '.join((*JSON_LINES, *PARQUET))}")


def _json_rows(file: Path) -> Iterator[tuple[int, Any]]:
    try:
        with open_regular(file) as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    yield number, json.loads(line)
                except (ValueError, RecursionError) as error:  # not JSON, or not UTF-8
                    yield number, AieError(f"{file.name}, row {number} is not JSON: {error}")
    except OSError as error:
        raise AieError(f"{file} cannot be read: {error.strerror}") from error


def _parquet_rows(file: Path) -> Iterator[tuple[int, Any]]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file) as table:
            columns = [name for name in _COLUMNS if name in table.schema_arrow.names]
            if not {"prompt", "messages"} & {*columns}:
                raise AieError(f"{file} has neither a column prompt nor a column messages")
            number = 0
            for batch in table.iter_batches(columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (OSError, pyarrow.ArrowException) as error:
        raise AieError(f"{file} cannot be read: {error}") from error


def _request(row: Any, number: int, place: str) -> Request:
    """A row's request. Without a valid id, the row's place in the file, which is unique, is one."""
    if isinstance(row, AieError):
        return Request(place, error=str(row))
    if not isinstance(row, dict):
        return Request(place, error=f"a row must be an object, got {row!r:.80}")
    id = row.get("id")
    if id is None:
        id = number
    elif isinstance(id, bool) or not isinstance(id, str | int):
        return Request(place, error=f"an id must be text or a whole number, got {id!r:.80}")
    messages = row.get("messages")
    request = Request(id, row.get("prompt") if messages is None else None, messages)
    try:
        check(request)
    except AieError as error:
        return Request(id, error=str(error))
    return request
