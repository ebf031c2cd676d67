"""How `check` sees whether a design makes progress: loops of fifos, and shapes to try."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from ort_aie_ep.npu.checks.dry_run import Trace
from ort_aie_ep.npu.terms.design import Design, Fifo
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.npu.terms.sequence import Json, Sequence, evaluate


# --- loops ----------------------------------------------------------------------------------------
def loops(design: Design, traces: Mapping[str, Trace]) -> tuple[list[str], list[str]]:
    """Loops of fifos that can never start, and loops that a worker starts by sending first.

    A loop cannot start when every worker in it acquires from the loop before it first releases into
    it: then each worker waits for the others, whatever the depths.
    """
    every: dict[Fifo, set[Fifo]] = defaultdict(set)
    needed: dict[Fifo, set[Fifo]] = defaultdict(set)
    for link in design.links:
        for source in link.sources:
            every[source].update(link.destinations)
            needed[source].update(link.destinations)
    for worker in design.workers.values():
        trace = traces[worker.name]
        for taken, source in worker.inputs.items():
            for given, destination in worker.outputs.items():
                every[source].add(destination)
                take, give = trace.first("acquire", taken), trace.first("release", given)
                if take is not None and (give is None or take < give):
                    needed[source].add(destination)
    dead = _loops(needed)
    stuck = {fifo for loop in dead for fifo in loop}
    primed = [loop for loop in _loops(every) if not stuck & set(loop)]
    return [_chain(loop) for loop in dead], [_chain(loop) for loop in primed]


def _chain(loop: list[Fifo]) -> str:
    return " -> ".join(fifo.name for fifo in (*loop, loop[0]))


def _loops(after: Mapping[Fifo, set[Fifo]]) -> list[list[Fifo]]:
    """Disjoint loops of a graph: at least one for every part that has any."""
    found: list[list[Fifo]] = []
    done: set[Fifo] = set()
    for start in list(after):
        path: list[Fifo] = []
        branches = [iter([start])]
        while branches:
            fifo = next(branches[-1], None)
            if fifo is None:
                branches.pop()
                if path:
                    done.add(path.pop())
            elif fifo in path:
                loop = path[path.index(fifo) :]
                if not any(set(loop) & set(other) for other in found):
                    found.append(loop)
            elif fifo not in done:
                path.append(fifo)
                branches.append(iter(sorted(after.get(fifo, ()), key=lambda f: f.name)))
    return found


# --- shapes ---------------------------------------------------------------------------------------
_VALUES = sorted(factor << shift for factor in (1, 3, 5, 7) for shift in range(16))


def small_shapes(sequence: Sequence) -> list[dict[str, int]]:
    """A few small shapes that satisfy the `require`s at the sequence's top, the smallest first.

    In the smallest shape every parameter is at least 1 if that is possible. The next one has the
    switches (parameters that are conditions) off. In two more, all other parameters are more than 3
    and 9 times as large.
    """
    switches = {
        s["if"]
        for s in statements(sequence.body)
        if isinstance(s.get("if"), str) and s["if"] in sequence.parameters
    }
    least = _shape(sequence, {p: [*_VALUES, 0] for p in sequence.parameters})
    if least is None:
        return []
    variants = [{p: [0, v] if p in switches else [v, *_VALUES] for p, v in least.items()}]
    for factor in (3, 9):
        variants.append(
            {
                p: [v] if p in switches else [x for x in _VALUES if x > factor * v] + [v]
                for p, v in least.items()
            }
        )
    shapes = [least]
    for values in variants:
        shape = _shape(sequence, values)
        if shape is not None and shape not in shapes:
            shapes.append(shape)
    return shapes


def statements(body: Iterable[dict[str, Json]]) -> Iterator[dict[str, Json]]:
    """All statements of a body, including those inside loops and conditions."""
    for statement in body:
        yield statement
        yield from statements(statement.get("do", ()))


def _shape(sequence: Sequence, values: Mapping[str, list[int]]) -> dict[str, int] | None:
    """The first combination of `values` that is admitted; later parameters vary faster."""
    tries = 0
    conditions = _by_parameters(sequence)

    def admitted(bound: dict[str, int]) -> bool:
        scope = dict(bound)
        for needed, statement in conditions:
            if needed > len(bound):
                continue
            try:
                if "let" in statement:
                    scope[statement["let"]] = evaluate(statement["value"], scope)
                elif needed < len(bound):
                    continue  # held already, with fewer parameters
                elif not evaluate(statement["require"], scope):
                    return False
            except DesignError:
                pass  # it has no value for this shape
            except ArithmeticError:
                return False
        return True

    def search(bound: dict[str, int]) -> dict[str, int] | None:
        nonlocal tries
        if len(bound) == len(sequence.parameters):
            return bound
        name = sequence.parameters[len(bound)]
        for value in values[name]:
            tries += 1
            if tries > 5000:
                return None
            if admitted(bound | {name: value}):
                found = search(bound | {name: value})
                if found is not None:
                    return found
        return None

    return search({})


def _by_parameters(sequence: Sequence) -> list[tuple[int, dict[str, Json]]]:
    """The lets and requires at the top, each with how many parameters in order it needs (1 up)."""
    needs = {name: place for place, name in enumerate(sequence.parameters, 1)}
    never = len(sequence.parameters) + 1

    def needed(tree: Json) -> int:
        if isinstance(tree, list):
            return max(needed(tree[1]), needed(tree[2]))
        return needs.get(tree, never) if isinstance(tree, str) else 1

    found = []
    for statement in sequence.body:
        if "let" in statement:
            needs[statement["let"]] = needed(statement["value"])
            found.append((needs[statement["let"]], statement))
        elif "require" in statement:
            found.append((needed(statement["require"]), statement))
    return found
