"""What `check` finds: resources in use beside their limits, notes, and violations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ort_aie_ep.npu.terms.device import Tile


@dataclass(frozen=True)
class Use:
    """How much of a resource of a tile is in use; `limit` is the most that it has."""

    tile: Tile
    resource: str
    used: int
    limit: int

    @property
    def fits(self) -> bool:
        """Whether it is within the limit."""
        return self.used <= self.limit


@dataclass(frozen=True)
class Violation:
    """One reason why a design is not possible: `where` names the tile or the part.

    `real` is what mlir-aie would say (`real_words`), or '' where it says nothing.
    """

    where: str
    resource: str
    text: str
    real: str = ""

    def __str__(self) -> str:
        real = f' (mlir-aie: "{self.real}")' if self.real else ""
        return f"{self.where}, {self.resource}: {self.text}{real}"


@dataclass(frozen=True)
class Report:
    """The result of all checks of a design.

    `proved` are the statements about progress that were shown, each for the shape that it names.
    `notes` are warnings that are not violations; `facts` are useful to know. A design passes if
    `violations` is empty.
    """

    design: str
    device: str
    uses: tuple[Use, ...]
    proved: tuple[str, ...]
    notes: tuple[str, ...]
    violations: tuple[Violation, ...]
    facts: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the checks found no violation."""
        return not self.violations

    def use(self, tile: Tile, resource: str) -> Use:
        """The row of a tile and a resource. Raises KeyError where there is no such row."""
        for use in self.uses:
            if (use.tile, use.resource) == (tile, resource):
                return use
        raise KeyError((tile, resource))

    def to_json(self) -> dict[str, Any]:
        """As plain values, for `json.dumps`."""

        def place(tile: Tile) -> dict[str, Any]:
            return {"kind": tile.kind, "column": tile.column, "row": tile.row}

        return {
            "design": self.design,
            "device": self.device,
            "passed": self.passed,
            "uses": [
                {**place(u.tile), "resource": u.resource, "used": u.used, "limit": u.limit}
                for u in self.uses
            ],
            "proved": list(self.proved),
            "facts": list(self.facts),
            "notes": list(self.notes),
            "violations": [
                {"where": v.where, "resource": v.resource, "text": v.text, "mlir_aie": v.real}
                for v in self.violations
            ],
        }  # fmt: skip

    def render(self) -> RenderableType:
        """A table for a terminal, with similar tiles in one row, and the remarks below it."""
        table = Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
        table.title = f"{self.design} on {self.device}"
        table.title_justify, table.title_style = "left", "bold"
        for column in ("tiles", "resource", "used", "limit", "state"):
            right = column in ("used", "limit")
            table.add_column(
                column, justify="right" if right else "left", overflow="fold", no_wrap=right
            )
        alike: dict[tuple[str, str, int, int], list[Tile]] = defaultdict(list)
        for use in self.uses:
            alike[use.tile.kind, use.resource, use.used, use.limit].append(use.tile)
        for (_, resource, used, limit), tiles in alike.items():
            state = Text("fits", style="green") if used <= limit else Text("exceeds", style="red")
            table.add_row(tile_list(tiles), resource, f"{used:,}", f"{limit:,}", state)
        parts: list[RenderableType] = [table]
        parts += [Text(f"proved: {line}", style="green") for line in self.proved]
        parts += [Text(line) for line in self.facts]
        parts += [Text(f"note: {line}", style="yellow") for line in self.notes]
        parts += [Text(f"refused: {violation}", style="bold red") for violation in self.violations]
        return Group(*parts)


class Findings:
    """Collects the findings of the rules."""

    def __init__(self) -> None:
        self.uses: list[Use] = []
        self.violations: list[Violation] = []
        self.notes: list[str] = []
        self.proved: list[str] = []
        self.facts: list[str] = []

    def refuse(self, where: Tile | str, resource: str, text: str, real: str = "") -> None:
        """Add a violation, once."""
        violation = Violation(str(where), resource, text, real)
        if violation not in self.violations:
            self.violations.append(violation)

    def use(
        self, tile: Tile, resource: str, used: int, limit: int, by: str, real: str = ""
    ) -> None:
        """Add how much of a resource `by` uses; more than the limit is a violation."""
        use = Use(tile, resource, used, limit)
        self.uses.append(use)
        if not use.fits:
            text = f"{used:,} used; the limit is {limit:,} ({by})"
            self.refuse(tile, resource, text, real)


def tile_list(tiles: Iterable[Tile]) -> str:
    """Tiles of one kind in few words: as a rectangle of whole columns where they form one."""
    tiles = sorted(tiles)
    if len(tiles) == 1:
        return str(tiles[0])
    columns = sorted({t.column for t in tiles})
    rows = sorted({t.row for t in tiles})
    if len(columns) * len(rows) == len(tiles):
        return f"{len(tiles)} {tiles[0].kind} tiles ({_span(columns)}, {_span(rows)})"
    shown = ", ".join(f"({t.column}, {t.row})" for t in tiles[:3])
    more = f" and {len(tiles) - 3} more" if len(tiles) > 3 else ""
    return f"{len(tiles)} {tiles[0].kind} tiles {shown}{more}"


def _span(values: list[int]) -> str:
    if len(values) > 1 and values == list(range(values[0], values[-1] + 1)):
        return f"{values[0]}..{values[-1]}"
    return " ".join(map(str, values)) if len(values) > 1 else str(values[0])
