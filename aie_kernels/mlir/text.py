"""MLIR's generic form, as text: operations, regions, blocks, attributes.

The generic form writes every operation in the same way, so nothing here depends on a dialect, and a
parser without mlir-aie's dialects can read it. Values have types; the writer keeps names unique.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

Attributes = Mapping[str, str]


@dataclass(frozen=True)
class Value:
    """An SSA value: its name, as it is used, and its type."""

    name: str
    type: str


# --- attributes -----------------------------------------------------------------------------------
def i32(number: int) -> str:
    """A 32-bit integer attribute."""
    return f"{number} : i32"


def i64(number: int) -> str:
    """A 64-bit integer attribute."""
    return f"{number} : i64"


def index(number: int) -> str:
    """An index attribute."""
    return f"{number} : index"


def string(text: str) -> str:
    """A string attribute; names of designs need no escapes."""
    return f'"{text}"'


def array(type: str, numbers: Sequence[int]) -> str:
    """A dense array of integers of `type`."""
    inside = f": {', '.join(str(n) for n in numbers)}" if numbers else ""
    return f"array<{type}{inside}>"


def function(arguments: Sequence[str]) -> str:
    """The type of a function without results."""
    return f"({', '.join(arguments)}) -> ()"


@dataclass
class Nest:
    """An operation with regions, while it is being written."""

    results: list[Value]
    _text: Text
    _regions: int = field(default=0)

    @contextmanager
    def region(self, *arguments: str) -> Iterator[list[Value]]:
        """The next region; gives the arguments of its entry block, by their types."""
        text = self._text
        if self._regions:
            text.line("}, {")
        self._regions += 1
        values = [Value(text.name("arg"), type) for type in arguments]
        if values:
            text.line(f"^entry({', '.join(f'{v.name}: {v.type}' for v in values)}):")
        with text.scope():
            yield values


class Text:
    """Writes operations one after the other; `str()` gives the module."""

    def __init__(self) -> None:
        self.depth = 0
        self._lines: list[str] = []
        self._names: dict[str, int] = {}  # with the last number that was appended to it
        self._constants: list[dict[tuple[int, str], Value]] = []  # by open region, of its block

    def __str__(self) -> str:
        return "\n".join(self._lines) + "\n"

    def line(self, text: str) -> None:
        """A line as it is."""
        self._lines.append("  " * self.depth + text)

    def comment(self, text: str) -> None:
        """A comment on what follows."""
        self.line(f"// {text}")

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What is indented: the inside of a region."""
        self.depth += 1
        self._constants.append({})
        yield
        self._constants.pop()
        self.depth -= 1

    def block(self, label: str) -> None:
        """The beginning of a block of the open region."""
        self.depth -= 1
        self.line(f"^{label}:")
        self.depth += 1
        self._constants[-1].clear()

    def name(self, hint: str) -> str:
        """A name that nothing else has."""
        plain = "%" + (re.sub(r"\W", "_", hint) or "v")
        name, count = plain, self._names.get(plain, 0)
        while name in self._names:
            count += 1
            name = f"{plain}_{count}"
        # The next one of this hint need not count from the start.
        self._names[plain] = count
        self._names.setdefault(name, 0)
        return name

    def op(
        self,
        name: str,
        operands: Sequence[Value] = (),
        properties: Attributes | None = None,
        *,
        successors: Sequence[str] = (),
    ) -> None:
        """An operation without results or regions."""
        self.line(self._head(name, operands, properties, successors) + _type(operands, ()))

    def value(
        self,
        type: str,
        name: str,
        operands: Sequence[Value] = (),
        properties: Attributes | None = None,
        *,
        hint: str = "v",
        successors: Sequence[str] = (),
    ) -> Value:
        """An operation with one result of `type`."""
        result = Value(self.name(hint), type)
        head = self._head(name, operands, properties, successors)
        self.line(f"{result.name} = {head}{_type(operands, (type,))}")
        return result

    @contextmanager
    def nest(
        self,
        name: str,
        operands: Sequence[Value] = (),
        properties: Attributes | None = None,
        *,
        results: Sequence[str] = (),
        hint: str = "v",
        attributes: Attributes | None = None,
    ) -> Iterator[Nest]:
        """An operation with regions, each of which is opened by `Nest.region`.

        `attributes` are those that are not inherent to the operation.
        """
        base = self.name(hint) if results else ""
        if len(results) > 1:
            values = [Value(f"{base}#{i}", type) for i, type in enumerate(results)]
            before = f"{base}:{len(results)} = "
        else:
            values = [Value(base, type) for type in results]
            before = f"{base} = " if results else ""
        self.line(f"{before}{self._head(name, operands, properties, ())} ({{")
        yield Nest(values, self)
        more = f" {{{_attributes(attributes)}}}" if attributes else ""
        self.line(f"}}){more}{_type(operands, results)}")

    def constant(self, number: int, type: str) -> Value:
        """An integer of `type`, "i32" or "index"; one serves its block and what it encloses."""
        for known in self._constants:
            if (number, type) in known:
                return known[number, type]
        value = self.value(
            type, "arith.constant", properties={"value": f"{number} : {type}"}, hint=f"c{number}"
        )
        self._constants[-1][number, type] = value
        return value

    def _head(
        self,
        name: str,
        operands: Sequence[Value],
        properties: Attributes | None,
        successors: Sequence[str],
    ) -> str:
        text = f'"{name}"({", ".join(v.name for v in operands)})'
        if successors:
            text += f" [{', '.join('^' + label for label in successors)}]"
        if properties:
            text += f" <{{{_attributes(properties)}}}>"
        return text


def _attributes(given: Attributes) -> str:
    return ", ".join(f"{name} = {value}" for name, value in given.items())


def _type(operands: Sequence[Value], results: Sequence[str]) -> str:
    given = ", ".join(v.type for v in operands)
    made = results[0] if len(results) == 1 else f"({', '.join(results)})"
    return f" : ({given}) -> {made}"
