"""Pictures of a design: where everything is placed, and how busy it was.

`draw_placement` needs only a design, `draw_utilisation` plain numbers by tile. Both write SVG, PNG
or any other format that matplotlib knows by the file's ending. Only drawing needs matplotlib.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ort_aie_ep.npu.checks.route import Hop, Net, route
from ort_aie_ep.npu.terms.configuration import Configuration, configure
from ort_aie_ep.npu.terms.design import Design, Fifo
from ort_aie_ep.npu.terms.device import TILES, Tile
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.npu.terms.switch import Heading

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HALF = 0.37  # of a tile's side; neighbours are 1 apart, and streams cross the gap between
_LANE = 0.045  # from one stream in a gap to the next
_PALE = {"shim": "#eceff1", "mem": "#fff8e1", "core": "#eaf2fb"}
_FULL = {"shim": "#eceff1", "mem": "#ffe082", "core": "#b9d6f2"}  # how far a memory is in use
_INK, _LINE = "#1f2a30", "#8a99a3"
_INWARD, _OUTWARD = "#5f7380", "#8e24aa"
# Broadcasts: colours that colour-blind readers can also tell apart (Okabe and Ito).
_BROADCASTS = ("#d55e00", "#009e73", "#0072b2", "#cc79a7", "#e69f00", "#56b4e9")
_KERNEL, _WAIT, _IDLE = "#388e3c", "#fbc02d", "#eceff1"
_CHANNELS = 24  # shown; the busiest

Point = tuple[float, float]
_DIRECTIONS: dict[Heading, Point] = {
    "north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0),
}  # fmt: skip


def check_drawing() -> None:
    """Check before anything is computed. Raises DesignError if matplotlib cannot be imported."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise DesignError(
            "drawing needs matplotlib: pip install matplotlib, or install ort_aie_ep with its "
            "extra [npu]"
        ) from error


# --- placement ------------------------------------------------------------------------------------
def draw_placement(design: Design, path: str | Path) -> Path:
    """Draw the tiles with their workers and memories, and the fifos along the streams' paths.

    A tile is filled in proportion to its memory in use. Every line in a gap is a port of the stream
    switches; an arrow marks where a stream ends. A fifo with several consumers has its own colour;
    fifos in shared memory are double arrows. Raises DesignError if matplotlib is missing, the
    design cannot be configured, or `path` cannot be written.
    """
    check_drawing()
    configuration = configure(design)
    device = design.device
    figure, axes = _grid(device.columns, device.rows, f"{design.name} on {device.name}")
    for column in range(device.columns):
        for row in range(device.rows):
            _tile(axes, configuration, Tile(column, row))
    broadcasts = [f.name for f in design.fifos.values() if len(f.consumers) > 1]
    colours = {name: _BROADCASTS[i % len(_BROADCASTS)] for i, name in enumerate(broadcasts)}
    used: dict[Hop, set[int]] = defaultdict(set)
    nets = sorted(route(device, configuration.streams).nets, key=lambda n: -len(n.hops))
    for net in nets:
        _net(axes, net, colours, _lanes(net, used))
    for fifo in design.fifos.values():
        if fifo.shared:
            _shared(axes, fifo)
    _legend(figure, colours, shared=any(f.shared for f in design.fifos.values()))
    return _save(figure, path)


def _tile(axes: Axes, configuration: Configuration, tile: Tile) -> None:
    from matplotlib.patches import Rectangle

    corner = (tile.column - _HALF, tile.row - _HALF)
    total, used = TILES[tile.kind].memory, configuration.memory.get(tile, 0)
    side = 2 * _HALF
    axes.add_patch(Rectangle(corner, side, side, facecolor=_PALE[tile.kind], edgecolor="none"))
    if total and used:
        height = side * min(1.0, used / total)
        axes.add_patch(
            Rectangle(corner, side, height, facecolor=_FULL[tile.kind], edgecolor="none")
        )
    axes.add_patch(
        Rectangle(corner, side, side, facecolor="none", edgecolor=_LINE, linewidth=0.8, zorder=3)
    )
    workers = [w.name for w in configuration.design.workers.values() if w.tile == tile]
    label = workers[0] if workers else {"shim": "shim", "mem": "memory tile", "core": ""}[tile.kind]
    size = 8.5 if len(label) <= 11 else 93 / len(label)
    y = tile.row + (0.06 if total and used else 0)
    _text(axes, tile.column, y, label, size=size, weight="bold" if workers else "normal")
    if total and used:
        text = f"{used / 1024:.1f} of {total // 1024} KB"
        _text(axes, tile.column, tile.row - 0.12, text, size=7)


def _lanes(net: Net, used: dict[Hop, set[int]]) -> dict[Hop, int]:
    """A lane for the net in every gap that it crosses: its previous lane, if that is free."""
    lanes: dict[Hop, int] = {}
    arrived = {net.source.tile: 0}
    waiting = sorted(net.hops)
    while waiting:
        hop = next(h for h in waiting if h.tile in arrived)
        waiting.remove(hop)
        lane = arrived[hop.tile]
        if lane in used[hop]:
            lane = next(n for n in count() if n not in used[hop])
        used[hop].add(lane)
        lanes[hop] = arrived[hop.to] = lane
    return lanes


def _crossing(hop: Hop, lane: int) -> tuple[Point, Point]:
    """Where a stream leaves a tile for the next; opposite headings have separate sides."""
    x, y = _DIRECTIONS[hop.heading]
    aside = 0.05 + lane * _LANE
    shift = (aside * y, -aside * x) if x == 0 else (0.0, aside * x)
    centre = hop.tile.column + shift[0], hop.tile.row + shift[1]
    return (
        (centre[0] + x * _HALF, centre[1] + y * _HALF),
        (centre[0] + x * (1 - _HALF), centre[1] + y * (1 - _HALF)),
    )


def _net(axes: Axes, net: Net, colours: Mapping[str, str], lanes: Mapping[Hop, int]) -> None:
    ends = {port.tile for stream in net.streams for port in stream.destinations}
    paths = net.paths()
    entered: dict[Tile, Point] = {}
    for hop in net.hops:
        entered[hop.to] = _crossing(hop, lanes[hop])[1]
    for hop in net.hops:
        names = [s.fifo for s in net.streams if hop in paths[s.fifo]]
        shared = [colours[name] for name in names if name in colours]
        outward = any(p.tile.kind == "shim" for s in net.streams for p in s.destinations)
        colour = shared[0] if shared else _OUTWARD if outward else _INWARD
        start, stop = _crossing(hop, lanes[hop])
        width = 1.8 if shared else 1.1
        if hop.tile in entered:
            here = entered[hop.tile]
            axes.plot(
                [here[0], start[0]], [here[1], start[1]], color=colour, linewidth=width,
                alpha=0.45, zorder=4, solid_capstyle="round",
            )  # fmt: skip
        else:
            axes.plot(*start, marker="o", markersize=2.6, color=colour, zorder=6)
        axes.plot([start[0], stop[0]], [start[1], stop[1]], color=colour, linewidth=width, zorder=5)
        if hop.to in ends:
            axes.annotate(
                "", xy=_deeper(stop, hop), xytext=start, zorder=6,
                arrowprops={
                    "arrowstyle": "-|>,head_width=0.16,head_length=0.3", "color": colour,
                    "linewidth": width, "shrinkA": 0, "shrinkB": 0,
                },
            )  # fmt: skip


def _deeper(point: Point, hop: Hop) -> Point:
    x, y = _DIRECTIONS[hop.heading]
    return point[0] + 0.04 * x, point[1] + 0.04 * y


def _shared(axes: Axes, fifo: Fifo) -> None:
    a, b = fifo.producer.tile, fifo.consumers[0].tile
    x, y = b.column - a.column, b.row - a.row
    start = a.column + x * (_HALF - 0.05) + 0.27 * y, a.row + y * (_HALF - 0.05) - 0.27 * x
    stop = b.column - x * (_HALF - 0.05) + 0.27 * y, b.row - y * (_HALF - 0.05) - 0.27 * x
    axes.annotate(
        "", xy=stop, xytext=start, zorder=6,
        arrowprops={
            "arrowstyle": "simple,head_width=0.7,head_length=0.5,tail_width=0.35",
            "facecolor": "#ffffff", "edgecolor": _INK, "linewidth": 0.9, "shrinkA": 0, "shrinkB": 0,
        },
    )  # fmt: skip


def _legend(figure: Figure, colours: Mapping[str, str], *, shared: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Line2D([], [], color=colour, linewidth=1.8, label=f"broadcast {name}")
        for name, colour in list(colours.items())[:12]
    ]
    handles += [
        Line2D([], [], color=_INWARD, linewidth=1.2, label="fifo"),
        Line2D([], [], color=_OUTWARD, linewidth=1.2, label="fifo to host memory"),
        Patch(facecolor=_FULL["core"], edgecolor=_LINE, label="memory in use"),
    ]
    if shared:
        handles.append(Patch(facecolor="white", edgecolor=_INK, label="fifo in shared memory"))
    # As many columns as fit the width of the picture, and space for the resulting rows.
    width, height = figure.get_size_inches()
    beside = max(1, min(5, len(handles), int(width / 2.1)))
    figure.set_size_inches(width, height + 0.2 * -(-len(handles) // beside))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=beside, frameon=False, fontsize=8
    )


# --- utilisation ----------------------------------------------------------------------------------
def draw_utilisation(
    tiles: Mapping[Tile, Mapping[str, float]],
    seconds: float,
    path: str | Path,
    *,
    channels: Mapping[str, float] | None = None,
    title: str = "utilisation",
) -> Path:
    """Draw where the time of a run went: tiles on their grid, and the busiest channels as bars.

    `tiles` has the seconds that each compute tile spent in kernels ("kernel") and waiting for locks
    ("wait"). `channels` has the seconds in which each channel moved data, of `seconds` in all.
    Raises DesignError if matplotlib is missing, there is nothing to draw, or `path` cannot be
    written.
    """
    check_drawing()
    if not tiles or seconds <= 0:
        raise DesignError(
            f"nothing to draw: {len(tiles)} tiles in {seconds} s; pass the result of a run"
        )
    columns = 1 + max(tile.column for tile in tiles)
    lowest, highest = min(t.row for t in tiles), max(t.row for t in tiles)
    figure, axes = _grid(
        columns, highest - lowest + 1, title, lowest=lowest, beside=4.2 if channels else 0.0
    )
    for tile, spent in tiles.items():
        _bar(axes, tile, spent.get("kernel", 0.0) / seconds, spent.get("wait", 0.0) / seconds)
    if channels:
        _channel_bars(figure.axes[1], channels, seconds)
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=colour, edgecolor=_LINE, label=label)
        for colour, label in ((_KERNEL, "in kernels"), (_WAIT, "waits for locks"), (_IDLE, "idle"))
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return _save(figure, path)


def _bar(axes: Axes, tile: Tile, kernel: float, wait: float) -> None:
    """A tile as a bar: kernels at the bottom, waiting above them, the rest idle."""
    from matplotlib.patches import Rectangle

    side, bottom = 2 * _HALF, tile.row - _HALF
    for share, colour in ((kernel, _KERNEL), (wait, _WAIT), (1 - kernel - wait, _IDLE)):
        height = side * min(1.0, max(0.0, share))
        axes.add_patch(
            Rectangle((tile.column - _HALF, bottom), side, height, facecolor=colour, linewidth=0)
        )
        bottom += height
    axes.add_patch(
        Rectangle(
            (tile.column - _HALF, tile.row - _HALF), side, side, facecolor="none", edgecolor=_LINE,
            linewidth=0.8,
        )
    )  # fmt: skip
    _text(axes, tile.column, tile.row + 0.08, f"{kernel:.0%}", size=10, weight="bold")
    _text(axes, tile.column, tile.row - 0.14, f"waits {wait:.0%}", size=7)


def _channel_bars(axes: Axes, channels: Mapping[str, float], seconds: float) -> None:
    busiest = sorted(channels.items(), key=lambda item: (-item[1], item[0]))[:_CHANNELS][::-1]
    shares = [busy / seconds for _, busy in busiest]
    axes.barh(range(len(busiest)), shares, color="#5c8db8", height=0.7)
    axes.set_yticks(range(len(busiest)), [name for name, _ in busiest], fontsize=7)
    for i, share in enumerate(shares):
        axes.text(share + 0.01, i, f"{share:.0%}", va="center", fontsize=7, color=_INK)
    more = len(channels) - len(busiest)
    axes.set_title("channels" + (f", the busiest {len(busiest)}" if more else ""), fontsize=9)
    axes.set_xlim(0, 1.12)
    axes.set_xticks([0, 0.5, 1], ["0", "50 %", "100 %"], fontsize=7)
    axes.spines[["top", "right"]].set_visible(False)


# --- both -----------------------------------------------------------------------------------------
def _grid(
    columns: int, rows: int, title: str, *, lowest: int = 0, beside: float = 0.0
) -> tuple[Figure, Axes]:
    """An empty grid of tiles, with column and row numbers; `beside` adds width in inches."""
    from matplotlib.figure import Figure

    width, height = max(4.5, 1.45 * columns + 0.9), 1.45 * rows + 1.1
    figure = Figure(figsize=(width + beside, height), layout="constrained")
    if beside:
        axes, _ = figure.subplots(1, 2, width_ratios=[width, beside])
    else:
        axes = figure.subplots()
    axes.set_title(title, fontsize=11, color=_INK, pad=10)
    axes.set_xlim(-0.55, columns - 0.45)
    axes.set_ylim(lowest - 0.5, lowest + rows - 0.5)
    axes.set_aspect("equal")
    axes.set_xticks(range(columns), [f"column {c}" for c in range(columns)], fontsize=8)
    here = range(lowest, lowest + rows)
    axes.set_yticks(here, [f"row {row}" for row in here], fontsize=8)
    axes.tick_params(length=0, colors=_INK)
    axes.spines[:].set_visible(False)
    return figure, axes


def _text(
    axes: Axes, x: float, y: float, text: str, *, size: float, weight: str = "normal"
) -> None:
    """Centred text on a pale ground, so that lines behind it do not hide it."""
    axes.text(
        x, y, text, ha="center", va="center", fontsize=size, weight=weight, color=_INK, zorder=7,
        bbox={"boxstyle": "round,pad=0.12", "facecolor": "white", "alpha": 0.7, "linewidth": 0},
    )  # fmt: skip


def _save(figure: Figure, path: str | Path) -> Path:
    from matplotlib import rc_context

    out = Path(path)
    try:
        with rc_context({"svg.fonttype": "none"}):  # text that can be searched
            figure.savefig(out, dpi=150)
    except ValueError as error:  # matplotlib's message about an ending that it does not know
        raise DesignError(f"cannot draw {out.name}: {error}; use .svg or .png") from None
    except OSError as error:
        raise DesignError(f"{out} cannot be written: {error.strerror}") from error
    return out
