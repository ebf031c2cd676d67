"""JSON that others wrote, read without trusting it: each read states what the value must be.

    config = read_json(path)                         # Field: a value and its location
    layers = config.field("model", "layers").integer(1, limit)
    for name, fifo in config.field("fifos").members():
        fifo.field("column").integer(0, columns - 1)

A value that is missing, of another type, out of range or nested too deep raises the error that the
reader chose, with the file and the field. So does a file that is not JSON.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.files import read_regular

# Maximum nesting of lists and objects. No file read here needs a tenth of it, and recursive
# functions stay far from Python's limit.
DEPTH = 256
INT64 = 2**63 - 1
_DIGITS = 400
_SHOWN = 80  # characters of a value in an error
_NAMES = 16
_HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True)
class Field:
    """A value in a JSON file.

    Attributes:
        value: the value as it was read.
        file: the file's name in errors.
        path: the value's path in the file, such as fifos.x.column; empty for the whole content.
        error: the error to raise.
    """

    value: Any
    file: str
    path: str = ""
    error: type[AieError] = AieError

    def fail(self, wanted: str) -> AieError:
        """The error for a value that is not what it must be."""
        name = self.path or "the content"
        return self.error(f"{self.file}: {name} must be {wanted}, got {shown(self.value)}")

    def require(self, legal: object, wanted: str) -> None:
        """Raises the error unless `legal`."""
        if not legal:
            raise self.fail(wanted)

    def object(self) -> dict[str, Any]:
        """The object, with its values unchanged."""
        self.require(isinstance(self.value, dict), "an object")
        content: dict[str, Any] = self.value
        return content

    def find(self, key: str) -> Field | None:
        """A member, or None if it is missing or null."""
        value = self.object().get(key)
        return None if value is None else self._at(key, value)

    def field(self, *keys: str) -> Field:
        """A member, or a member of a member. It must be there, but may be null."""
        at = self
        for key in keys:
            content = at.object()
            if key not in content:
                raise self.error(f"{self.file}: {at._at(key, None).path} is missing")
            at = at._at(key, content[key])
        return at

    def members(self) -> Iterator[tuple[str, Field]]:
        """Names and members of an object."""
        for key, value in self.object().items():
            yield key, self._at(key, value)

    def only(self, *keys: str) -> None:
        """Raises the error if the object has other members."""
        for key, member in self.members():
            if key not in keys:
                raise self.error(f"{self.file}: {member.path} is not known")

    def elements(self) -> list[Field]:
        """Elements of a list."""
        self.require(isinstance(self.value, list), "a list")
        return [
            Field(value, self.file, f"{self.path}[{i}]", self.error)
            for i, value in enumerate(self.value)
        ]

    def text(self) -> str:
        """A string. Names, paths and messages cannot have a zero character, so it is refused."""
        self.require(isinstance(self.value, str), "a string")
        self.require("\0" not in self.value, "a string without a zero character")
        return str(self.value)

    def one_of(self, names: Collection[str]) -> str:
        """A string that is one of `names`."""
        legal = isinstance(self.value, str) and self.value in names
        more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
        self.require(legal, f"one of {', '.join(islice(names, _NAMES))}{more}")
        return str(self.value)

    def boolean(self) -> bool:
        """True or false."""
        self.require(isinstance(self.value, bool), "true or false")
        return bool(self.value)

    def integer(self, low: int = -INT64 - 1, high: int = INT64) -> int:
        """A whole number from `low` to `high`."""
        legal = type(self.value) is int and low <= self.value <= high
        limits = f"from {low} to {high}" if high < INT64 else f"of at least {low}"
        self.require(legal, f"a whole number {limits}")
        return int(self.value)

    def positive(self) -> float:
        """A number above 0 that a float can hold."""
        legal = type(self.value) in (int, float) and 0 < self.value <= sys.float_info.max
        self.require(legal, "a positive number")
        return float(self.value)

    def number(self, low: float = -sys.float_info.max) -> float:
        """A number of at least `low` that a float can hold."""
        legal = type(self.value) in (int, float) and low <= self.value <= sys.float_info.max
        self.require(legal, "a number" if low < 0 else f"a number of at least {low}")
        number: float = self.value
        return number

    def _at(self, key: str, value: Any) -> Field:
        return Field(value, self.file, f"{self.path}.{key}".removeprefix("."), self.error)


def read_json(path: Path, error: type[AieError] = AieError) -> Field:
    """Reads the content of a JSON file.

    Raises:
        AieError, or `error` if given: it cannot be read, or is not JSON.
    """
    try:
        data = read_regular(path)
    except OSError as reason:
        raise error(f"{path} cannot be read: {reason.strerror}") from reason
    return parse_json(data, str(path), error)


def parse_json(
    data: bytes, file: str, error: type[AieError] = AieError, *, unique: bool = False
) -> Field:
    """Parses JSON text; with `unique`, no object may have a name twice.

    Raises `error` as `read_json` does.
    """

    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content: dict[str, Any] = {}
        for name, value in pairs:
            if name in content:
                raise error(f"{file} has {shown(name)} twice")
            content[name] = value
        return content

    try:
        text = data.decode("utf-8")
        hook = distinct if unique else None
        value = json.loads(text, object_pairs_hook=hook, parse_int=_whole)
    except RecursionError as reason:
        raise error(f"{file}: {_TOO_DEEP}") from reason
    except ValueError as reason:
        raise error(f"{file} cannot be read as JSON: {reason}") from reason
    if _deeper(value, DEPTH):
        raise error(f"{file}: {_TOO_DEEP}")
    if _HALF_CHARACTER.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as reason:
            raise error(f"{file} cannot be read as JSON: a string has half a character") from reason
    return Field(value, file, "", error)


_TOO_DEEP = f"lists and objects are nested more than {DEPTH} deep"


def _whole(digits: str) -> int | float:
    # Python refuses to convert thousands of digits. The float is infinite, which no field allows.
    return int(digits) if len(digits) < _DIGITS else float(digits)


def shown(value: Any) -> str:
    """A value as errors show it, cut if it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _deeper(value: Any, limit: int) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(limit):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
    return bool(level)
