"""Recipes with tensors that have shapes and no data: what the NPU's scheduler is asked about.

A node of the domain aie is a recipe (src/ops/recipe.h) and facts of its inputs, whose sizes may
depend on the tokens of a call. `ort_aie_ep.prediction.compiled` reads them from a compiled model;
`RecipeBuilder` writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

from ort_aie_ep.errors import AieError

FLOAT, UINT8, INT8, INT32, INT64, FLOAT16, BFLOAT16 = 1, 2, 3, 6, 7, 10, 16  # TensorProto.DataType
_INTEGERS = (INT32, INT64)
_MOST_VALUES = 1 << 22  # of an input: more tokens than any model has positions

#: A size that depends on a call: new tokens, all tokens, those before the call, and the larger of
#: them and a window.
Size = int | Literal["tokens", "context", "past"] | tuple[Literal["past"], int]
#: What integers are: their own positions from the past on, the index of the last token, the number
#: of all tokens or one less, ones, or zeros, which are also those that no one reads.
Values = Literal["positions", "last token", "context", "context - 1", "ones", "zeros"]

_Given = tuple[int, list[int], bool, Sequence[float] | None]


@dataclass(frozen=True)
class Input:
    """An input of a recipe; `type` is TensorProto's number, `content` of floats that ops read as
    they plan."""

    type: int
    dims: tuple[Size, ...]
    constant: bool = False
    values: Values = "zeros"
    content: tuple[float, ...] | None = None

    def given(self, tokens: int, context: int) -> _Given:
        """For a call, as `_npu.Packages.schedule` takes it.

        Raises:
            AieError: it has more integers than a call has tokens.
        """
        past = context - tokens
        sizes = {"tokens": tokens, "context": context, "past": past}

        def size(dim: Size) -> int:
            if isinstance(dim, tuple):
                return max(past, dim[1])
            return dim if isinstance(dim, int) else sizes[dim]

        dims = [size(dim) for dim in self.dims]
        if self.type not in _INTEGERS:
            return self.type, dims, self.constant, self.content
        count = prod(dims)
        if count > _MOST_VALUES:
            raise AieError(f"an input of integers has {count} values: {dims}")
        values = {
            "positions": [past + i % tokens for i in range(count)],
            "last token": [tokens - 1] * count,
            "context": [context] * count,
            "context - 1": [context - 1] * count,
            "ones": [1] * count,
            "zeros": [0] * count,
        }[self.values]
        return self.type, dims, self.constant, values


@dataclass(frozen=True)
class PlanNode:
    """A node: its recipe as text, and its inputs, None for one that is left out.

    `planned`: it is an aie.Plan, which keeps memory on a device; else it is one op by itself.
    """

    recipe: str
    inputs: tuple[Input | None, ...]
    planned: bool = True

    def given(self, tokens: int, context: int) -> list[_Given | None]:
        """Its inputs for a call."""
        return [None if one is None else one.given(tokens, context) for one in self.inputs]


#: The nodes of a model, in order: nothing stays on the device between two of them.
Plans = tuple[PlanNode, ...]


@dataclass
class RecipeBuilder:
    """Writes a recipe: inputs, then steps, whose results are numbered after all inputs."""

    _inputs: list[Input | None] = field(default_factory=list)
    _steps: list[tuple[str, str, dict[str, Any], list[int], list[int]]] = field(
        default_factory=list
    )
    _results: int = 0

    def add(self, one: Input | None) -> int:
        """An input, or the place of one that is left out."""
        self._inputs.append(one)
        return len(self._inputs) - 1

    def input(self, type_: int, *dims: Size, values: Values = "zeros") -> int:
        """A tensor of the call."""
        return self.add(Input(type_, dims, values=values))

    def constant(self, type_: int, *dims: int) -> int:
        """A weight."""
        return self.add(Input(type_, dims, constant=True))

    def step(
        self, op: str, name: str, reads: Sequence[int | None], results: int = 1, **attributes: Any
    ) -> tuple[int, ...]:
        """A step of an op; `reads` are its inputs by position. Returns its results."""
        written = [-2 - self._results - i for i in range(results)]
        self._results += results
        self._steps.append((op, name, attributes, [-1 if r is None else r for r in reads], written))
        return tuple(written)

    def node(self, outputs: Sequence[int], *, planned: bool = True) -> PlanNode:
        """The node with all steps."""

        def number(value: int) -> str:
            return str(len(self._inputs) - 2 - value if value < -1 else value)

        def numbers(values: Sequence[int]) -> str:
            return " ".join(map(number, values))

        forms = any(attributes.get("format") == 2 for _, _, attributes, _, _ in self._steps)
        lines = [f"recipe {2 if forms else 1}", f"inputs {len(self._inputs)}"]
        for op, name, attributes, reads, writes in self._steps:
            lines.append(f"step {op} {_escaped(name)}")
            lines += [_attribute(key, value) for key, value in attributes.items()]
            lines += [f"reads {numbers(reads)}", f"writes {numbers(writes)}"]
        lines.append(f"outputs {numbers(outputs)}")
        return PlanNode("\n".join(lines) + "\n", tuple(self._inputs), planned)


def _attribute(name: str, value: object) -> str:
    if isinstance(value, float):
        return f"float {name} {value.hex()}"
    if isinstance(value, str):
        return f"string {name} {_escaped(value)}"
    return f"int {name} {value}"


def _escaped(text: str) -> str:
    return "".join(f"%{ord(c):02x}" if c in " \t\r\n%" else c for c in text) or "%20"
