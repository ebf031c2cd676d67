"""Runs a core's code as printed, on numbers, and records what it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from generic_form import Block, Operation


class End(Exception):
    """The core has reached its go lock again."""


class Interpreter:
    """A core's region on numbers.

    Buffers and locks are known by their names. `read(buffer, index)` gives a load's result. The
    outermost loop ends at acquisition number `passes` + 1 of the go lock.
    """

    def __init__(self, names: dict[str, str], read: Callable[[str, int], int], go: str) -> None:
        self._values: dict[str, Any] = dict(names)
        self._read = read
        self._go = go
        self.done: list[tuple[Any, ...]] = []

    def run(self, core: Operation, passes: int) -> list[tuple[Any, ...]]:
        self._left = passes
        try:
            self._region(core.regions[0], [])
        except End:
            return self.done
        raise AssertionError("the core has ended")

    def _region(self, region: list[Block], arguments: list[Any]) -> list[Any]:
        (block,) = region
        self._values.update(zip(block.arguments, arguments, strict=True))
        for operation in block.operations:
            if operation.name in ("scf.yield", "aie.end"):
                return [self._values[o] for o in operation.operands]
            self._operation(operation)
        raise AssertionError("a region without an end")

    def _operation(self, op: Operation) -> None:
        given = [self._values[o] for o in op.operands]
        results: list[Any] = []
        match op.name:
            case "arith.constant":
                results = [op.attributes["value"]]
            case "arith.addi":
                results = [given[0] + given[1]]
            case "arith.subi":
                results = [given[0] - given[1]]
            case "arith.andi":
                results = [given[0] & given[1]]
            case "arith.shrui":
                results = [(given[0] & 0xFFFFFFFF) >> given[1]]
            case "arith.cmpi":
                assert op.attributes["predicate"] == 9
                results = [given[0] >= given[1]]
            case "arith.select":
                results = [given[1] if given[0] else given[2]]
            case "arith.index_cast":
                results = given
            case "memref.load":
                results = [self._read(given[0], given[1])]
            case "scf.index_switch":
                cases = op.attributes["cases"]
                chosen = cases.index(given[0]) + 1 if given[0] in cases else 0
                results = self._region(op.regions[chosen], [])
            case "scf.for":
                carried = given[3:]
                for i in range(given[0], given[1], given[2]):
                    carried = self._region(op.regions[0], [i, *carried])
                results = carried
            case "aie.use_lock":
                if given[0] == self._go:
                    if self._left == 0:
                        raise End
                    self._left -= 1
                action = {1: "release", 2: "acquire"}[op.attributes["action"]]
                self.done.append((action, given[0], given[1]))
            case "func.call":
                self.done.append(("call", op.attributes["callee"].strip("@"), *given))
            case _:
                raise AssertionError(f"{op.name} in a core")
        if len(results) == 1:
            self._values[op.result] = results[0]
        self._values.update({f"{op.result}#{i}": value for i, value in enumerate(results)})
