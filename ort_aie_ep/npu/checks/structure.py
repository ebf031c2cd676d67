"""Rules of the vocabulary that need no assignment: what may end where, and what serves it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ort_aie_ep.npu.checks import real_words
from ort_aie_ep.npu.checks.report import Violation
from ort_aie_ep.npu.terms.design import Design, End, Fifo, Link, Worker
from ort_aie_ep.npu.terms.device import (
    CONTROLLER_PACKET_IDS,
    DEFAULT_STACK,
    MAX_PACKET_ID,
    WORD,
    Tile,
)  # fmt: skip


def structure(design: Design) -> Iterator[Violation]:
    """Whatever in `design` has no meaning on any device, or none on this device's grid."""
    for fifo in design.fifos.values():
        yield from _fifo(design, fifo)
    for link in design.links:
        yield from _link(link)
    yield from _service(design)
    for worker in design.workers.values():
        yield from _worker(worker)
    for tile, count in Counter(worker.tile for worker in design.workers.values()).items():
        if count > 1:
            yield Violation(
                str(tile), "workers", f"{count} run there; a tile has one program",
                real_words.SECOND_CORE,
            )  # fmt: skip


def _worker(worker: Worker) -> Iterator[Violation]:
    where = f"worker {worker.name} at {worker.tile}"
    if worker.tile.kind != "core":
        yield Violation(where, "tile", "workers run on compute tiles only")
    if worker.stack <= 0 or worker.stack % WORD:
        yield Violation(
            where, "stack", f"{worker.stack} bytes; it must be a positive multiple of {WORD}"
        )
    for what, names in (
        ("parameter", worker.parameters),
        ("buffer", [b.name for b in worker.buffers]),
        ("port", [*worker.inputs, *worker.outputs]),
    ):
        for name, count in Counter(names).items():
            if count > 1:
                yield Violation(where, what, f"{count} {what}s are named {name!r}")
    for buffer in worker.buffers:
        if buffer.array.count < 1 or buffer.array.bytes % WORD:
            yield Violation(
                where, f"buffer {buffer.name}",
                f"{buffer.array.bytes} bytes; it must be a positive multiple of {WORD}",
            )  # fmt: skip
    for port, fifo in worker.inputs.items():
        if worker.tile not in [end.tile for end in fifo.consumers]:
            yield Violation(where, f"input {port}", f"fifo {fifo.name} does not end there")
    for port, fifo in worker.outputs.items():
        if worker.tile != fifo.producer.tile:
            yield Violation(where, f"output {port}", f"fifo {fifo.name} does not start there")


def notes(design: Design) -> Iterator[str]:
    """Parts of `design` that have no effect, or that depend on more than the design."""
    for fifo in design.fifos.values():
        if fifo.packet is not None and not _at_shim(fifo):
            yield f"packet id {fifo.packet} of fifo {fifo.name} has no effect: no end is at a shim"
    for worker in design.workers.values():
        if worker.stack < DEFAULT_STACK:
            yield (
                f"worker {worker.name} has a stack of {worker.stack} bytes, less than the "
                f"{DEFAULT_STACK} that mlir-aie reserves"
            )


def _at_shim(fifo: Fifo) -> bool:
    return any(tile.kind == "shim" for tile in tiles(fifo))


def tiles(fifo: Fifo) -> list[Tile]:
    """Where a fifo ends."""
    return [end.tile for end in (fifo.producer, *fifo.consumers)]


def _fifo(design: Design, fifo: Fifo) -> Iterator[Violation]:
    def at(end: End, resource: str, text: str, real: str = "") -> Violation:
        return Violation(str(end.tile), resource, f"fifo {fifo.name}: {text}", real)

    device = design.device
    ends = [fifo.producer, *fifo.consumers]
    if fifo.object.bytes <= 0 or fifo.object.bytes % WORD:
        yield at(
            fifo.producer, "object",
            f"{fifo.object.bytes} bytes; it must be a positive multiple of {WORD}",
            real_words.LENGTH_MULTIPLE,
        )  # fmt: skip
        return
    if not fifo.consumers:
        yield at(fifo.producer, "consumers", "it has no consumers")
    for end in ends:
        if not (0 <= end.tile.column < device.columns and 0 <= end.tile.row < device.rows):
            yield at(
                end, "tile",
                f"{device.name} has columns 0..{device.columns - 1} and rows 0..{device.rows - 1}",
                real_words.COLUMN.format(index=end.tile.column, limit=device.columns)
                if end.tile.column >= device.columns
                else real_words.ROW.format(index=end.tile.row, limit=device.rows)
                if end.tile.row >= device.rows
                else "",
            )  # fmt: skip
    for tile, count in Counter(end.tile for end in ends).items():
        if count > 1:
            yield Violation(str(tile), "ends", f"fifo {fifo.name} has {count} ends there, not one")
    for end in ends:
        if end.depth < 1:
            yield at(end, "depth", f"{end.depth}; it must be at least 1")
        if end.tile.kind == "shim" and (end.layout is not None or end.object is not None):
            yield at(end, "layout", "the sequence decides what moves at a shim and in which order")
    if fifo.producer.object is not None and fifo.producer.tile.kind == "core":
        yield at(fifo.producer, "object", "a worker sends the fifo's own objects")
    for end in ends:
        if end.object is not None:
            here, sent = end.object.bytes, fifo.object.bytes
            if here <= 0 or here % WORD or (here % sent and sent % here):
                yield at(
                    end, "object",
                    f"it has {here} bytes here; they must be whole parts or whole multiples of the "
                    f"fifo's {sent}",
                )  # fmt: skip
    if fifo.producer.tile.kind == "shim" and any(e.tile.kind == "shim" for e in fifo.consumers):
        yield at(fifo.producer, "ends", "both ends are shims; nothing in the array takes part")
    if fifo.producer.tile.kind != "shim" and len(fifo.consumers) > 1 and _at_shim(fifo):
        yield at(
            fifo.producer, "ends",
            "a broadcast to a shim and others: the sequence would hold back the others",
        )  # fmt: skip
    if fifo.packet is not None and not 0 <= fifo.packet <= MAX_PACKET_ID:
        yield at(
            fifo.producer, "packet id", f"{fifo.packet}; ids are 0..{MAX_PACKET_ID}",
            real_words.PACKET_ID.format(id=fifo.packet, limit=MAX_PACKET_ID),
        )  # fmt: skip
    if fifo.packet in CONTROLLER_PACKET_IDS:
        yield at(
            fifo.producer, "packet id",
            f"{fifo.packet} is the id of a tile as a controller, under which tokens travel; choose "
            "another (give_packet_ids)",
        )  # fmt: skip
    if fifo.shared:
        yield from _shared(design, fifo)


def _shared(design: Design, fifo: Fifo) -> Iterator[Violation]:
    where = str(fifo.producer.tile)
    reach = [design.device.neighbour_memory(end.tile) for end in fifo.consumers]
    if len(reach) != 1 or fifo.producer.tile not in reach[0]:
        yield Violation(
            where, "shared memory",
            f"fifo {fifo.name}: {', '.join(str(e.tile) for e in fifo.consumers)} cannot reach it; "
            "a core reaches its own memory and its south, west and north neighbour's",
            real_words.UNREACHABLE.format(
                column=fifo.consumers[0].tile.column, row=fifo.consumers[0].tile.row
            ) if fifo.consumers and fifo.consumers[0].tile.kind == "core" else "",
        )  # fmt: skip
    for end in (fifo.producer, *fifo.consumers):
        if end.layout is not None or end.object is not None or end.channel is not None:
            yield Violation(
                where, "shared memory",
                f"fifo {fifo.name}: no DMA moves it, so it has no layout, channel or other object",
            )  # fmt: skip
    if any(end.depth != fifo.producer.depth for end in fifo.consumers):
        yield Violation(
            where, "depth",
            f"fifo {fifo.name}: both ends share the buffers, so they need one depth, not "
            f"{fifo.producer.depth} and {fifo.consumers[0].depth}",
        )  # fmt: skip
    if fifo.packet is not None:
        yield Violation(where, "packet id", f"fifo {fifo.name} is in shared memory: no stream")


def _link(link: Link) -> Iterator[Violation]:
    where, what = str(link.tile), f"the link of {', '.join(f.name for f in link.sources)}"
    if link.tile.kind != "mem":
        yield Violation(where, "link", f"{what}: only memory tiles pass objects on")
    for fifo in link.sources:
        if link.tile not in [end.tile for end in fifo.consumers]:
            yield Violation(where, "link", f"{what}: fifo {fifo.name} does not end here")
    for fifo in link.destinations:
        if fifo.producer.tile != link.tile:
            yield Violation(where, "link", f"{what}: fifo {fifo.name} does not start here")
    if min(len(link.sources), len(link.destinations)) != 1:
        yield Violation(where, "link", f"{what}: one side must have exactly one fifo")
        return
    if any(link.tile not in tiles(fifo) for fifo in (*link.sources, *link.destinations)):
        return
    sizes = [fifo.object_at(link.tile).bytes for fifo in link.parts]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    whole = link.whole.object_at(link.tile).bytes
    if sum(sizes) != whole or starts != list(link.offsets):
        yield Violation(
            where, "link",
            f"{what}: segments of {sizes} bytes at {list(link.offsets)} must fill the {whole} "
            f"bytes of fifo {link.whole.name} exactly, one after another",
        )  # fmt: skip
    depths = {f.name: f.end(link.tile).depth for f in (link.whole, *link.parts)}
    if len(set(depths.values())) > 1:
        yield Violation(
            where, "depth",
            f"{what}: all its ends share the buffers here, so they need one depth, not {depths}",
        )  # fmt: skip


def _service(design: Design) -> Iterator[Violation]:
    """Exactly one link, or one port of one worker, must serve every end."""
    links = Counter((f, link.tile) for link in design.links for f in link.sources)
    links += Counter((f, link.tile) for link in design.links for f in link.destinations)
    ports = Counter(
        (fifo, worker.tile)
        for worker in design.workers.values()
        for fifo in (*worker.inputs.values(), *worker.outputs.values())
    )
    for fifo in design.fifos.values():
        for end in (fifo.producer, *fifo.consumers):
            place = (fifo, end.tile)
            verb = "feeds" if end is fifo.producer else "empties"
            if end.tile.kind == "mem" and links[place] != 1:
                yield Violation(
                    str(end.tile), "link",
                    f"fifo {fifo.name}: {links[place]} links use it here; exactly one forward, "
                    "split or join must",
                )  # fmt: skip
            if end.tile.kind == "core" and ports[place] != 1:
                yield Violation(
                    str(end.tile), "worker",
                    f"fifo {fifo.name}: {ports[place]} ports of workers use it here; exactly one "
                    f"must, or nothing {verb} it",
                )  # fmt: skip
