"""Recipes with tensors that have shapes and no data: what the NPU's scheduler is asked about.

A node of the domain aie is a recipe (src/ops/recipe.h) and facts of its inputs, whose sizes may
depend on the tokens of a call. `ort_aie_ep.prediction.compiled` reads them from a compiled model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from ort_aie_ep.errors import AieError

_INTEGERS = (6, 7)  # int32 and int64 of TensorProto.DataType
_MOST_VALUES = 1 << 22  # of an input: more tokens than any model has positions

#: A size that depends on a call: new tokens, all tokens, those before the call, and the larger of
#: them and a window.
Size = int | Literal["tokens", "context", "past"] | tuple[Literal["past"], int]
#: What integers are: their own positions from the past on, or from 0, the index of the last token,
#: the number of all tokens or one less, ones, or zeros, which are also those that no one reads.
Values = Literal["positions", "rows", "last token", "context", "context - 1", "ones", "zeros"]

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
            "rows": [i % tokens for i in range(count)],
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


def alone(
    op: str, name: str, attributes: Mapping[str, Any], reads: Sequence[int], results: int,
    inputs: tuple[Input | None, ...],
) -> PlanNode:  # fmt: skip
    """An op by itself, which reads `inputs` by position (-1: none)."""
    written = " ".join(str(len(inputs) + i) for i in range(results))
    lines = [
        f"recipe {2 if attributes.get('format') == 2 else 1}",
        f"inputs {len(inputs)}",
        f"step {op} {_escaped(name)}",
        *(_attribute(key, value) for key, value in attributes.items()),
        f"reads {' '.join(map(str, reads))}",
        f"writes {written}",
        f"outputs {written}",
    ]
    return PlanNode("\n".join(lines) + "\n", inputs, planned=False)


def _attribute(name: str, value: object) -> str:
    if isinstance(value, float):
        return f"float {name} {value.hex()}"
    if isinstance(value, str):
        return f"string {name} {_escaped(value)}"
    return f"int {name} {value}"


def _escaped(text: str) -> str:
    return "".join(f"%{ord(c):02x}" if c in " \t\r\n%" else c for c in text) or "%20"
