"""The shape-independent checks of a sequence: names, directions, symbols, forms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from string import Formatter

from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.device import WORD
from ort_aie_ep.npu.terms.sequence import Json, Sequence

_FORMS: dict[str, set[str]] = {
    "let": {"value"},
    "require": {"message"},
    "for": {"count", "do"},
    "if": {"do"},
    "transfer": {"argument", "offset", "run", "outer"},
    "start": {"values"},
    "wait": set(),
    "arrive": set(),
    "work": set(),
    "cut": set(),
}


def sequence_mistakes(design: Design, sequence: Sequence) -> list[str]:
    """What is wrong with `sequence` for every shape; an empty list if nothing is."""
    return list(_Checker(design, sequence).run())


class _Checker:
    def __init__(self, design: Design, sequence: Sequence) -> None:
        self._design = design
        self._sequence = sequence
        self._directions = {a.name: a.direction for a in sequence.arguments}

    def run(self) -> Iterator[str]:
        sequence = self._sequence
        names = [a.name for a in sequence.arguments]
        yield from _twice("parameter", sequence.parameters)
        yield from _twice("argument", names)
        scope = set(sequence.parameters)
        for argument in sequence.arguments:
            yield from _unbound(argument.bytes.to_json(), scope, f"the size of {argument.name}")
        yield from self._body(sequence.body, scope)

    def _body(self, body: Iterable[dict[str, Json]], scope: set[str]) -> Iterator[str]:
        before = None
        for statement in body:
            kind = next((k for k in _FORMS if k in statement), None)
            if kind is None or set(statement) != {kind, *_FORMS[kind]}:
                yield f"{statement} is not a statement of a sequence"
                continue
            match kind:
                case "let":
                    yield from _unbound(statement["value"], scope, f"let {statement['let']}")
                    scope.add(statement["let"])
                case "require":
                    yield from _unbound(statement["require"], scope, "a require")
                    for _, name, _, _ in Formatter().parse(statement["message"]):
                        if name is not None and name not in scope:
                            yield f"the message {statement['message']!r} names unbound {name!r}"
                case "for":
                    index = statement["for"]
                    yield from _unbound(statement["count"], scope, f"the count of loop {index}")
                    if index in scope:
                        yield f"loop index {index!r} hides another symbol of that name"
                    yield from self._body(statement["do"], scope | {index})
                case "if":
                    yield from _unbound(statement["if"], scope, "a condition")
                    yield from self._body(statement["do"], set(scope))
                case "transfer":
                    yield from self._transfer(statement, scope)
                case "start":
                    yield from self._start(statement, scope)
                case "wait" | "arrive":
                    yield from self._wait(statement[kind])
                case "work":
                    yield from _unbound(statement["work"], scope, "a work statement")
                case "cut":
                    if before != "wait":
                        yield "a cut must come right after a wait: nothing may be under way there"
            before = kind

    def _transfer(self, statement: dict[str, Json], scope: set[str]) -> Iterator[str]:
        fifo, argument = statement["transfer"], statement["argument"]
        what = f"the transfer of {argument} on fifo {fifo}"
        inward = self._inward(fifo)
        if isinstance(inward, str):
            yield f"{what}: {inward}"
        elif argument in self._directions:
            if inward and self._directions[argument] == "out":
                yield f"{what} reads the argument, which is declared 'out'"
            if not inward and self._directions[argument] == "in":
                yield f"{what} writes the argument, which is declared 'in'"
        if argument not in self._directions:
            yield f"{what}: no argument has that name; there are: {_known(self._directions)}"
        for name in ("offset", "run"):
            yield from _unbound(statement[name], scope, f"the {name} of {what}")
            if isinstance(statement[name], int) and (statement[name] % WORD or statement[name] < 0):
                yield f"{what}: {name} {statement[name]} is not a multiple of 4 bytes"
        for place, (count, stride) in enumerate(statement["outer"]):
            yield from _unbound(count, scope, f"a count of {what}")
            yield from _unbound(stride, scope, f"a stride of {what}")
            if isinstance(stride, int) and (stride % WORD or stride < 0):
                yield f"{what}: stride {stride} is not a multiple of 4 bytes"
            if stride == 0 and place > 0 and count != 1:
                yield f"{what}: stride 0 in dimension {place}; only the outermost can repeat"

    def _start(self, statement: dict[str, Json], scope: set[str]) -> Iterator[str]:
        name, values = statement["start"], statement["values"]
        worker = self._design.workers.get(name)
        if worker is None:
            yield f"it starts worker {name!r}; the workers are: {_known(self._design.workers)}"
        elif len(values) != len(worker.parameters):
            yield (
                f"it starts worker {name} with {len(values)} values; its parameters are "
                f"{len(worker.parameters)}: {', '.join(worker.parameters)}"
            )
        for value in values:
            yield from _unbound(value, scope, f"a parameter of worker {name}")

    def _wait(self, fifos: list[str]) -> Iterator[str]:
        if not fifos:
            yield "it waits for no fifo"
        for fifo in fifos:
            inward = self._inward(fifo)
            if isinstance(inward, str):
                yield f"the wait for fifo {fifo}: {inward}"
            elif inward:
                yield (
                    f"it waits for fifo {fifo}, which goes into the array; wait for one that comes "
                    "out: only that shows that the cores are done"
                )

    def _inward(self, name: str) -> bool | str:
        """Whether a fifo goes from a shim into the array; or the text of an error."""
        fifo = self._design.fifos.get(name)
        if fifo is None:
            return "no fifo has that name"
        if fifo.producer.tile.kind == "shim":
            return True
        if any(end.tile.kind == "shim" for end in fifo.consumers):
            return False
        return "it does not end at a shim"


def _twice(what: str, names: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield f"two {what}s are named {name!r}"
        seen.add(name)


def _unbound(tree: Json, scope: set[str], where: str) -> Iterator[str]:
    if isinstance(tree, str) and tree not in scope:
        yield f"{where} uses {tree!r}, which is not bound there; bound: {_known(scope)}"
    if isinstance(tree, list):
        yield from _unbound(tree[1], scope, where)
        yield from _unbound(tree[2], scope, where)


def _known(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
