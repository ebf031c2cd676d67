"""A decoded configuration as text, for people."""

from __future__ import annotations

from collections.abc import Iterator

from ort_aie_ep.npu.configuration_words.view import DescriptorView, TileView, View
from ort_aie_ep.npu.configuration_words.walk import walk
from ort_aie_ep.npu.simulator.txn import GENERATIONS
from ort_aie_ep.npu.terms.configuration import Configuration
from ort_aie_ep.npu.terms.device import WORD


def format_view(view: View, configuration: Configuration | None = None) -> str:
    """The view as text: first each tile, then which streams reach which ends.

    With `configuration`, locks and streams have their names. Raises StreamError as `walk` does.
    """
    locks, sources = {}, {}
    if configuration is not None:
        locks = {(lock.tile, lock.id): lock.name for lock in configuration.locks}
        sources = {(s.source, s.packet): s.fifo for s in configuration.streams}
    lines = [f"{GENERATIONS[view.generation]}, {view.columns} columns, {view.rows} rows"]
    for tile, found in view.tiles.items():
        lines.append(f"{tile}" + ("" if found.core is None else f": core {found.core}"))
        for number, value in sorted(found.locks.items()):
            name = locks.get((tile, number))
            lines.append(f"  lock {number} = {value}" + (f" ({name})" if name else ""))
        lines += [f"  {line}" for line in _rings(found)]
        lines += [f"  {line}" for line in _switch(found)]
        lines += [f"  memory {at:#07x} = {word:#010x}" for at, word in sorted(found.memory.items())]
    lines.append("streams")
    for reach in walk(view):
        under = "" if reach.packet is None else f", packet id {reach.packet}"
        name = sources.get((reach.source, reach.packet))
        if not reach.destinations or (sources and name is None):
            continue  # an id that a rule matches and nobody sends
        ends = ", ".join(sorted(str(port) for port in reach.destinations))
        lines.append(f"  {reach.source}{under}{f' ({name})' if name else ''}: {ends}")
    return "\n".join(lines)


def _rings(found: TileView) -> Iterator[str]:
    for (direction, index), tasks in sorted(found.queues.items()):
        for task in tasks:
            extra = (f" x{task.runs}" if task.runs > 1 else "") + (", token" if task.token else "")
            yield f"{direction} {index}: starts with BD {task.descriptor}{extra}"
            number: int | None = task.descriptor
            seen: set[int] = set()
            while number is not None and number not in seen and number in found.descriptors:
                seen.add(number)
                yield f"  BD {number}: {_descriptor(found.descriptors[number])}"
                number = found.descriptors[number].next
    pushed = {task.descriptor for tasks in found.queues.values() for task in tasks}
    chained = {view.next for view in found.descriptors.values()}
    for number in sorted(set(found.descriptors) - pushed - chained):
        yield f"BD {number}, in no ring: {_descriptor(found.descriptors[number])}"


def _descriptor(view: DescriptorView) -> str:
    text = f"{view.words * WORD} bytes at {view.address:#x}"
    if not view.linear:
        text += " as " + " ".join(f"{count}x{step}" for count, step in view.dimensions)
    for what, use in (("acquires", view.acquire), ("releases", view.release)):
        if use is not None:
            text += f", {what} {use}"
    if view.packet is not None:
        text += f", packet id {view.packet}"
    if not view.valid:
        text += ", not valid"
    return text + ("" if view.next is None else f", then BD {view.next}")


def _switch(found: TileView) -> Iterator[str]:
    for slave, on in sorted(found.slaves.items()):
        if not on.packets:
            to = (m for m, master in sorted(found.masters.items()) if master.slave == slave)
            yield f"{slave} -> {', '.join(str(port) for port in to)}"
            continue
        for slot in on.slots:
            masters = (
                f"{port}{', without header' if master.drop_header else ''}"
                for port, master in sorted(found.masters.items())
                if master.slave is None
                and master.arbiter == slot.arbiter
                and slot.selection in master.selections
            )
            yield (
                f"{slave}, ids {slot.id:05b}/{slot.mask:05b} -> {', '.join(masters)} "
                f"(arbiter {slot.arbiter}, selection {slot.selection})"
            )
