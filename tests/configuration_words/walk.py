"""Follows streams through decoded stream switches: which ends they reach, where they are lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from configuration_words.switch import (
    MOVES,
    OPPOSITE,
    TOKENS_IN,
    TOKENS_OUT,
    SwitchPort,
    dma_master,
    dma_slave,
    legal,
)
from configuration_words.view import SlaveView, TileView, View
from ort_aie_ep.npu.terms.configuration import Port
from ort_aie_ep.npu.terms.device import MAX_PACKET_ID, TILES, Tile
from ort_aie_ep.npu.terms.errors import StreamError


@dataclass(frozen=True)
class Reach:
    """Where the data that `source` sends arrives: as a circuit (`packet` None) or under an id.

    `lost` says where branches of the path end because no rule matches. Rules may also match ids
    that nobody sends; for those it is not an error.
    """

    source: Port
    packet: int | None
    destinations: frozenset[Port]
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, order=True)
class _Place:
    """A slave of a switch."""

    tile: Tile
    slave: SwitchPort


def walk(view: View) -> list[Reach]:
    """What each sending DMA channel reaches, for circuits and for every packet id.

    Raises StreamError where a circuit is lost. Raises it also where a stream comes back to where it
    was, arrives with a header that a DMA channel would store, leaves where no design sends one, or
    meets another one at a master. Ports that are on but that no stream uses are errors too.
    """
    walker = _Walker(view)
    found = []
    for tile, configured in view.tiles.items():
        for index in range(TILES[tile.kind].mm2s):
            slave = dma_slave(tile.kind, index)
            if slave not in configured.slaves:
                continue
            if tile.kind == "shim" and slave.channel not in configured.from_dma:
                raise StreamError(f"{tile}: slave {slave} is on, but no DMA channel is behind it")
            source = Port(tile, "MM2S", index)
            ids = range(MAX_PACKET_ID + 1) if configured.slaves[slave].packets else (None,)
            for packet in ids:
                ends, lost, _ = walker.follow(_Place(tile, slave), packet)
                if ends or lost:
                    found.append(Reach(source, packet, frozenset(ends), tuple(lost)))
    for tile in view.tiles:
        walker.follow_tokens(tile)
    walker.require_all_used()
    return found


def tokens(view: View) -> dict[Tile, set[int]]:
    """The shims whose completion tokens leave the array, and under which packet ids."""
    walker = _Walker(view)
    found = {tile: walker.follow_tokens(tile) for tile in view.tiles}
    return {tile: ids for tile, ids in found.items() if ids}


class _Walker:
    def __init__(self, view: View) -> None:
        self._view = view
        self._slaves: set[_Place] = set()
        self._masters: dict[tuple[Tile, SwitchPort], _Place] = {}

    def follow_tokens(self, tile: Tile) -> set[int]:
        """The ids under which the packets of a shim's control port leave the array."""
        slave = self._view.tiles[tile].slaves.get(TOKENS_IN)
        if tile.kind != "shim" or slave is None or not slave.packets:
            return set()
        start = _Place(tile, TOKENS_IN)
        return {id_ for id_ in range(MAX_PACKET_ID + 1) if self.follow(start, id_)[2]}

    def follow(self, start: _Place, packet: int | None) -> tuple[list[Port], list[str], bool]:
        """The DMA channels that a stream entering at `start` reaches.

        Also returns where the stream is lost, and whether it leaves the array as tokens do.
        """
        ends: list[Port] = []
        lost: list[str] = []
        leaves = False
        seen = {start}
        queue = [start]
        while queue:
            place = queue.pop()
            behind = list(self._leave(place, packet))
            if not behind and place != start:
                lost.append(f"{place.tile}: packet id {packet} at {place.slave} goes nowhere")
            for end in behind:
                if end is None:
                    leaves = True
                    continue
                if isinstance(end, Port):
                    ends.append(end)
                    continue
                if end in seen:
                    raise StreamError(f"{end.tile}: a stream reaches slave {end.slave} twice")
                seen.add(end)
                queue.append(end)
        if len(set(ends)) < len(ends):
            raise StreamError(f"{start.tile}: the stream into {start.slave} reaches an end twice")
        if leaves and start.slave != TOKENS_IN:
            raise StreamError(f"{start.tile}: the stream into {start.slave} leaves as a token does")
        return ends, lost, leaves

    def _leave(self, place: _Place, packet: int | None) -> Iterator[Port | _Place | None]:
        tile, configured = place.tile, self._view.tiles.get(place.tile, TileView())
        slave = configured.slaves.get(place.slave)
        if slave is None:
            raise StreamError(f"{tile}: a stream reaches slave {place.slave}, which is off")
        if slave.packets != (packet is not None):
            raise StreamError(f"{tile}, slave {place.slave}: circuits and packets meet")
        self._slaves.add(place)
        masters = list(_masters(configured, place.slave, slave, packet))
        if not masters and packet is None:
            raise StreamError(f"{tile}: a circuit that enters at {place.slave} goes nowhere")
        for master in masters:
            if not legal(tile.kind, place.slave, master):
                raise StreamError(f"{tile} cannot join slave {place.slave} to master {master}")
            other = self._masters.setdefault((tile, master), place)
            if other != place:
                raise StreamError(
                    f"{tile}, master {master}: the streams that enter at {other.slave} and "
                    f"{place.slave} leave together"
                )
            yield self._beyond(tile, configured, master, packet)

    def _beyond(
        self, tile: Tile, configured: TileView, master: SwitchPort, packet: int | None
    ) -> Port | _Place | None:
        """The end behind a master: a DMA channel, a slave of the neighbour, or the firmware."""
        dropped = configured.masters[master].drop_header
        if tile.kind == "shim" and master == TOKENS_OUT and packet is not None and not dropped:
            return None
        for index in range(TILES[tile.kind].s2mm):
            if master == dma_master(tile.kind, index):
                if tile.kind == "shim" and master.channel not in configured.to_dma:
                    raise StreamError(f"{tile}: no DMA channel is behind master {master}")
                if packet is not None and not dropped:
                    raise StreamError(f"{tile}, master {master}: headers would be stored as data")
                return Port(tile, "S2MM", index)
        for heading, (columns, rows) in MOVES.items():
            if master.bundle == heading:
                to = Tile(tile.column + columns, tile.row + rows)
                inside = 0 <= to.column < self._view.columns and 0 <= to.row < self._view.rows
                if not inside:
                    raise StreamError(f"{tile}, master {master} leads out of the array")
                if dropped:
                    raise StreamError(f"{tile}, master {master} drops a header on the way")
                return _Place(to, SwitchPort(OPPOSITE[heading], master.channel))
        raise StreamError(f"{tile}: a stream leaves at master {master}, where no design sends one")

    def require_all_used(self) -> None:
        """Check that every port that is on carries a stream."""
        for tile, configured in self._view.tiles.items():
            for port in configured.slaves:
                if _Place(tile, port) not in self._slaves:
                    raise StreamError(f"{tile}: slave {port} is on, but no stream enters there")
            for port in configured.masters:
                if (tile, port) not in self._masters:
                    raise StreamError(f"{tile}: master {port} is on, but no stream leaves there")
            for channel in sorted(configured.from_dma):
                if SwitchPort("south", channel) not in configured.slaves:
                    raise StreamError(f"{tile}: slave south {channel} gets data, but is off")
            for channel in sorted(configured.to_dma):
                if SwitchPort("south", channel) not in configured.masters:
                    raise StreamError(f"{tile}: master south {channel} feeds a DMA, but is off")


def _masters(
    configured: TileView, port: SwitchPort, slave: SlaveView, packet: int | None
) -> Iterator[SwitchPort]:
    """The masters where a stream that enters a slave leaves the switch."""
    if packet is None:
        for master, to in configured.masters.items():
            if to.slave == port:
                yield master
        return
    rules = [slot for slot in slave.slots if packet & slot.mask == slot.id & slot.mask]
    if len(rules) > 1:
        raise StreamError(f"slave {port}: packet id {packet} matches {len(rules)} slots")
    for rule in rules:
        for master, to in configured.masters.items():
            if to.slave is None and to.arbiter == rule.arbiter and rule.selection in to.selections:
                yield master
