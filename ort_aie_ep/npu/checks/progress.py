"""How `check` shows that a design makes progress: it simulates the sequences at small shapes.

A design is a network of processes that block on reading and writing and never test whether they
would block. So a deadlock does not depend on timing (Kahn, The Semantics of a Simple Language for
Parallel Programming, 1974): one run at a shape proves the result for that shape. Results do not
matter here, so only the kernels that compute loop counts are called: those of integers alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ort_aie_ep.errors import AieError
from ort_aie_ep.npu.checks.report import Findings
from ort_aie_ep.npu.kernels import Kernels
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.errors import DesignError, SimulationError, StreamError
from ort_aie_ep.npu.terms.kernel import Array, Kernel
from ort_aie_ep.npu.terms.sequence import Json, Sequence, evaluate


class _LoopCounts(Kernels):
    """Calls the kernels that have no other arrays than integers."""

    def call(self, kernel: Kernel, *arguments: Any) -> None:
        if all(a.element == "i32" for a in kernel.arguments if isinstance(a, Array)):
            super().call(kernel, *arguments)


_NOT_CHECKED = "whether it makes progress was not checked"


def progress(findings: Findings, design: Design) -> None:
    """Simulate every sequence of `design`, and find what is wrong or proved."""
    try:
        from ort_aie_ep.npu.simulator.session import Session  # an extra has what it needs

        kernels = _LoopCounts(design.device.architecture)
    except AieError as error:
        findings.notes.append(f"{_NOT_CHECKED}: {error}")
        return
    if not design.sequences:
        findings.notes.append(f"{_NOT_CHECKED}: the design has no sequence")
    for sequence in design.sequences.values():
        shapes = small_shapes(sequence)
        shapes = shapes[:-1] or shapes  # the largest takes longer than all others
        if not shapes:
            findings.notes.append(
                f"sequence {sequence.name}: {_NOT_CHECKED}: no small shape meets its conditions"
            )
        try:
            session = Session(design, kernels=kernels)
        except DesignError as error:  # of which the simulator has no model
            findings.notes.append(f"{_NOT_CHECKED}: {error}")
            return
        for shape in shapes:
            at = ", ".join(f"{name}={value}" for name, value in shape.items())
            where = f"sequence {sequence.name}" + (f" at {at}" if at else "")
            try:
                sizes = sequence.argument_bytes(shape)
                buffers = {name: np.zeros(size, np.uint8) for name, size in sizes.items()}
                session.run(sequence.name, shape, buffers)
            except (DesignError, SimulationError, StreamError, ValueError) as error:
                findings.refuse(where, "progress", str(error))
                break  # larger shapes would show the same
            findings.proved.append(f"{where}: every transfer completes and nothing is left over")


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
