"""A reader of the text that `text` writes: operations with their operands, attributes and regions.

It is separate from the writer, so that the writer's mistakes show. mlir-opt says whether the text
is MLIR (test_mlir_opt).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_OPERATION = re.compile(
    r'(?:(?P<results>%[\w]+)(?::\d+)? = )?"(?P<name>[\w.]+)"\((?P<operands>[^)]*)\)'
    r"(?: \[(?P<successors>[^]]*)\])?(?: <\{(?P<properties>.*?)\}>)?(?P<opens> \(\{)?"
    r"(?: : (?P<type>.*))?$"
)
_CLOSE = re.compile(r"\}\)(?: \{(?P<attributes>.*)\})? : (?P<type>.*)$")
_LABEL = re.compile(r"\^(?P<label>\w+)(?:\((?P<arguments>.*)\))?:$")
_ATTRIBUTE = re.compile(r"(\w+) = (\"[^\"]*\"|array<[^>]*>|#[\w.]+<[^>]*>|\([^)]*\) -> \(\)|[^,]+)")


@dataclass
class Block:
    """A block; the first of a region may have no label."""

    label: str
    arguments: list[str] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)


@dataclass
class Operation:
    """An operation; attributes are integers, strings, lists of integers, or otherwise text."""

    name: str
    result: str
    operands: list[str]
    successors: list[str]
    attributes: dict[str, Any]
    regions: list[list[Block]] = field(default_factory=list)
    type: str = ""

    def walk(self) -> Iterator[Operation]:
        """The operation and all operations in it."""
        yield self
        for region in self.regions:
            for block in region:
                for operation in block.operations:
                    yield from operation.walk()

    def all(self, name: str) -> list[Operation]:
        """All operations called `name` in it."""
        return [operation for operation in self.walk() if operation.name == name]


def read(text: str) -> Operation:
    """The module of `text`."""
    top = Operation("", "", [], [], {}, [[Block("")]])
    stack = [top]
    for number, line in enumerate(text.splitlines(), 1):
        content = line.strip()
        region = stack[-1].regions[-1]
        if not content or content.startswith("//"):
            continue
        if content == "}, {":
            stack[-1].regions.append([Block("")])
        elif close := _CLOSE.match(content):
            done = stack.pop()
            done.attributes |= _attributes(close["attributes"] or "")
            done.type = close["type"]
        elif label := _LABEL.match(content):
            arguments = [a.split(":")[0].strip() for a in (label["arguments"] or "").split(", ")]
            block = Block(label["label"], [a for a in arguments if a])
            if len(region) == 1 and not region[0].operations and not region[0].label:
                region.clear()
            region.append(block)
        else:
            found = _OPERATION.match(content)
            assert found, f"line {number} is not an operation: {content}"
            operation = Operation(
                found["name"], found["results"] or "",
                [o for o in found["operands"].split(", ") if o],
                [s.strip("^") for s in (found["successors"] or "").split(", ") if s],
                _attributes(found["properties"] or ""), type=found["type"] or "",
            )  # fmt: skip
            region[-1].operations.append(operation)
            if found["opens"]:
                operation.regions.append([Block("")])
                stack.append(operation)
    assert len(stack) == 1
    (module,) = top.regions[0][0].operations
    return module


def _attributes(text: str) -> dict[str, Any]:
    return {name: _value(value) for name, value in _ATTRIBUTE.findall(text)}


def _value(text: str) -> Any:
    text = text.strip()
    if text.startswith('"'):
        return text.strip('"')
    if text.startswith("array<"):
        inside = text[len("array<") : -1].partition(":")[2]
        return [int(n) for n in inside.split(",") if n.strip()]
    if number := re.fullmatch(r"(-?\d+) : \w+", text):
        return int(number[1])
    return {"true": True, "false": False}.get(text, text)
