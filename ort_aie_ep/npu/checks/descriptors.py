"""Descriptors of memory and compute tiles: how many, what fits their fields, what they may touch.

The limits are the hardware's (`device.TILES`) and those of mlir-aie's verifier, which counts
elements of the buffer where the hardware counts words (`real_words` names its files). The verifier
also checks padding and iterations, which a design cannot express, and limits a step to 2^19
elements, which would already leave any object that a descriptor can move.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from ort_aie_ep.npu.checks import real_words
from ort_aie_ep.npu.checks.report import Findings
from ort_aie_ep.npu.terms.configuration import Channel, Configuration
from ort_aie_ep.npu.terms.design import Layout
from ort_aie_ep.npu.terms.device import TILES, WORD, Tile
from ort_aie_ep.npu.terms.kernel import DTYPES

# A memory tile's DMA sees its own memory after its western neighbour's (mlir-aie's target model).
_DMA_BASE = {"core": 0, "mem": 0x80000}
_ADDRESS_BITS = {"core": 14, "mem": 19}  # of words, in a descriptor
_LOCAL_CHANNELS = (4, 5)  # of a memory tile: they reach its own memory and locks only (AM020)


def descriptors(findings: Findings, configuration: Configuration) -> None:
    """Check every descriptor of `configuration`."""
    counts: dict[tuple[Tile, str], dict[str, int]] = defaultdict(dict)
    top: dict[Tile, int] = {}  # the highest address of a buffer
    for channel in configuration.channels:
        which = ""
        if channel.tile.kind == "mem":
            which = " of even channels" if channel.index % 2 == 0 else " of odd channels"
        by = counts[channel.tile, which]
        by[channel.fifo] = by.get(channel.fifo, 0) + len(channel.ring)
        _fields(findings, configuration, channel)
        _own(findings, configuration, channel)
        last = max(d.address for d in channel.ring)
        top[channel.tile] = max(top.get(channel.tile, 0), last + _DMA_BASE[channel.tile.kind])
    for tile, address in sorted(top.items()):
        limit = (1 << _ADDRESS_BITS[tile.kind]) - 1
        if address // WORD > limit:
            findings.refuse(
                tile, "descriptor address",
                f"a buffer is at word {address // WORD:,}; the limit is {limit:,}",
            )  # fmt: skip
    for (tile, which), by in sorted(counts.items()):
        limit = TILES[tile.kind].descriptors // (2 if which else 1)
        findings.use(
            tile, f"descriptors{which}", sum(by.values()), limit,
            ", ".join(f"{fifo} {count}" for fifo, count in by.items()),
            "" if which else real_words.BLOCKS.format(limit=limit),
        )  # fmt: skip


def _fields(findings: Findings, configuration: Configuration, channel: Channel) -> None:
    facts = TILES[channel.tile.kind]
    for descriptor in channel.ring:
        if not 1 <= descriptor.words <= facts.max_words:
            findings.refuse(
                channel.tile, "descriptor length",
                f"fifo {channel.fifo} moves {descriptor.words:,} words at a time; the limit is "
                f"{facts.max_words:,}",
                real_words.LENGTH_FIELD.format(words=descriptor.words, limit=facts.max_words),
            )  # fmt: skip
        if descriptor.address % WORD:
            findings.refuse(
                channel.tile, "descriptor address",
                f"fifo {channel.fifo} has a buffer at byte {descriptor.address}; it must be a "
                f"multiple of {WORD}",
                real_words.DESCRIPTOR_ADDRESS,
            )  # fmt: skip
    words = {descriptor.words for descriptor in channel.ring}
    layout = channel.ring[0].layout
    if layout is not None:
        there = configuration.design.fifos[channel.fifo].object_at(channel.tile)
        element = DTYPES[there.element].itemsize
        for text, real in _layout_mistakes(layout, channel.tile, min(words), element):
            findings.refuse(channel.tile, "layout", f"fifo {channel.fifo} {text}", real)


def _own(findings: Findings, configuration: Configuration, channel: Channel) -> None:
    """Buffers and locks must be in the channel's own tile; beyond its memory is another tile's.

    The first four channels of a memory tile could reach its neighbours, but no design needs it.
    """
    tile = channel.tile
    far = tile.kind == "mem" and channel.index in _LOCAL_CHANNELS
    for descriptor in channel.ring:
        end = descriptor.address + descriptor.words * WORD
        if tile in configuration.memory and end > max(
            TILES[tile.kind].memory, configuration.memory[tile]
        ):
            findings.refuse(
                tile, "descriptor address",
                f"fifo {channel.fifo} moves bytes up to {end:,} of {TILES[tile.kind].memory:,}",
                real_words.FAR_BUFFER.format(channel=channel.index)
                if far else real_words.OTHER_TILES_BUFFER if tile.kind == "core" else "",
            )  # fmt: skip
        for lock in (descriptor.acquire, descriptor.release):
            if lock.tile != tile:
                findings.refuse(
                    tile, "descriptor lock",
                    f"fifo {channel.fifo} acquires or releases lock {lock.name} of {lock.tile}",
                    real_words.FAR_LOCK.format(channel=channel.index)
                    if far else real_words.OTHER_TILES_LOCK if tile.kind == "core" else "",
                )  # fmt: skip


def _layout_mistakes(
    layout: Layout, tile: Tile, words: int, element: int
) -> Iterator[tuple[str, str]]:
    """Say why a layout does not fit a descriptor or mlir-aie's verifier, or does not reorder.

    Each reason comes with the verifier's words. `element` is the size of the buffer's elements in
    bytes.
    """
    facts = TILES[tile.kind]
    dimensions = layout.dimensions
    if not dimensions:
        yield "has no dimensions", ""
        return
    if len(dimensions) > facts.dimensions:
        yield (
            f"has {len(dimensions)} dimensions {dimensions}; the limit is {facts.dimensions}",
            real_words.DIMENSIONS.format(limit=facts.dimensions, count=len(dimensions)),
        )
    if any(count < 1 for count, _ in dimensions):
        yield f"has a count below 1 in {dimensions}", ""
        return
    if dimensions[-1][1] != WORD:
        yield (
            f"has stride {dimensions[-1][1]} in the innermost dimension; it must be contiguous "
            f"words (stride {WORD})",
            real_words.INNERMOST if element < WORD else "",
        )

    def beyond(stride: int) -> str:
        elements = words * WORD // element
        return real_words.STEP_BEYOND.format(step=stride // element, elements=elements)

    for place, (count, stride) in enumerate(dimensions):
        if stride <= 0 or stride % WORD:
            yield (
                f"has stride {stride} bytes in dimension {place}; it must be a multiple of {WORD}",
                real_words.STEP_ZERO if stride == 0 else "",
            )
        elif stride // WORD > facts.max_step:
            yield (
                f"has a step of {stride // WORD:,} words in dimension {place}; the limit is "
                f"{facts.max_step:,}",
                beyond(stride) if stride > words * WORD else "",
            )
        elif stride > words * WORD:
            yield (
                f"has a stride of {stride:,} bytes in dimension {place}; mlir-aie refuses more "
                f"than the object's {words * WORD:,}, whatever the count",
                beyond(stride),
            )
        # The innermost dimension counts words; smaller elements share a word.
        elements = count * max(1, WORD // element) if place == len(dimensions) - 1 else count
        if elements > facts.max_count:
            yield (
                f"counts {elements} elements in dimension {place}, the limit of mlir-aie is "
                f"{facts.max_count}",
                real_words.COUNT if elements > 512 else "",  # versions disagree
            )
    if layout.words != words:
        yield (
            f"moves {layout.words * WORD} bytes by {dimensions}, of an object of {words * WORD}",
            "",
        )
        return
    offsets = layout.offsets()
    if offsets.min() < 0 or offsets.max() >= words * WORD:
        yield (
            f"reaches bytes {offsets.min()}..{offsets.max() + WORD - 1} of an object of "
            f"{words * WORD}",
            real_words.OUT_OF_BOUNDS,
        )
    elif len(np.unique(offsets)) != words:
        yield f"visits some words of the object twice and others never: {dimensions}", ""
