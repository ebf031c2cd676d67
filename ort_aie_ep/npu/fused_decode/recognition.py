"""Which model an overlay is for: nothing in it says so, but the transfers of its words show it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ort_aie_ep import _npu
from ort_aie_ep.npu.fused_decode.traffic import Task
from ort_aie_ep.npu.terms.errors import PackageError

#: The buffers of a run. Further buffers of weights follow, if there are several.
ARGUMENTS = ("x", "w", "rms", "y", "kvc")
CACHE = ARGUMENTS.index("kvc")
ELEMENT = 2  # bytes
BLOCK = 5120  # bytes
COLUMNS = 4  # of cores that multiply


@dataclass(frozen=True)
class Geometry:
    """A model of the table, with a cache of `positions`."""

    model: str
    positions: int

    def bytes(self) -> dict[str, int]:
        """The sizes of the buffers, in the order of a run's arguments."""
        facts = _npu.fused_decode_geometry(self.model)
        first, *others = facts["weight_elements"]
        elements = {
            "x": facts["hidden"],
            "w": first,
            "rms": facts["rms_elements"],
            "y": facts["y_elements"],
            "kvc": _npu.fused_decode_kv_elements(self.model, self.positions),
        }
        elements |= {f"w{i}": other for i, other in enumerate(others, 1)}
        return {name: ELEMENT * count for name, count in elements.items()}

    @property
    def row_bytes(self) -> int:
        """The bytes of a position in a region of the cache."""
        return ELEMENT * _npu.fused_decode_geometry(self.model)["region_width"]

    @property
    def group(self) -> int:
        """Layers in a buffer of weights; 0 where one buffer has all."""
        return _npu.fused_decode_geometry(self.model)["group"]

    def shares(self) -> Iterator[list[tuple[int, int]]]:
        """For each buffer of weights: its shares, as (column of cores, bytes).

        A share is a column's blocks of a phase, which are contiguous.
        """
        facts = _npu.fused_decode_geometry(self.model)

        def shares_of(phases: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
            return [
                (column, rows * columns * BLOCK // COLUMNS)
                for rows, columns in phases
                for column in range(COLUMNS)
            ]

        layer = shares_of(facts["phases"])
        head = shares_of([facts["head_chunk"]] * facts["head_chunks"])
        if self.group == 0:
            yield layer * facts["layers"] + head
            return
        for first in range(0, facts["layers"], self.group):
            yield layer * min(self.group, facts["layers"] - first)
        yield head


def recognise(where: Path, tasks: Sequence[Task], positions: int) -> Geometry:
    """The model whose buffer sizes are exactly what the tasks reach.

    If no model matches, raises PackageError with the sizes found and the sizes in the table.
    """
    ends: dict[int, int] = {}
    for task in tasks:
        ends[task.argument] = max(ends.get(task.argument, 0), task.end)
    found = [ends.get(argument, 0) for argument in range(max(ends, default=0) + 1)]
    known = [Geometry(model, positions) for model in _npu.fused_decode_models()]
    for geometry in known:
        if list(geometry.bytes().values()) == found:
            return geometry
    table = "".join(f"\n  {geometry.model}: {_sizes(geometry)}" for geometry in known)
    names = (*ARGUMENTS, *(f"w{i}" for i in range(1, len(found))))
    reached = ", ".join(f"{name} {size}" for name, size in zip(names, found, strict=False))
    raise PackageError(
        f"{where} is for no model that this version knows. A run reaches this many bytes of its "
        f"buffers: {reached}. The known models, with a cache of {positions} positions:{table}"
    )


def _sizes(geometry: Geometry) -> str:
    return ", ".join(f"{name} {size}" for name, size in geometry.bytes().items())


def check_weights(where: Path, tasks: Sequence[Task], geometry: Geometry, channels: int) -> None:
    """Check that weights are read in the order in which the packer lays them out.

    Each column's share of a phase comes through its own channel, or its halves through two. So
    another number of channels, or other chunks of the LM head, show in where tasks begin and end.

    Raises PackageError naming the first bytes that are read differently.
    """
    names = list(geometry.bytes())
    wrong = (
        f"not the order of weights of {geometry.model} with W_DUAL_CHAN={channels - 1}. It was "
        "built with flags other than its folder says, or with another VOCAB_CHUNK_I2"
    )
    ports: dict[tuple[int, int], tuple[int, int]] = {}  # of a column of cores and half
    for name, shares in zip(
        [n for n in names if n.startswith("w")], geometry.shares(), strict=True
    ):
        argument = names.index(name)
        reads = iter(sorted((t for t in tasks if t.argument == argument), key=lambda t: t.first))
        at = 0
        for column, size in shares:
            for half in range(channels):
                end = at + size // channels
                while at < end:
                    task = next(reads, None)
                    if task is None or (task.first, task.linear) != (at, True) or task.end > end:
                        got = "nothing" if task is None else f"{task.first} to {task.end}"
                        raise PackageError(
                            f"{where}: bytes {at} to {end} of {name} belong to one channel of "
                            f"column {column} of the cores, and the next task that reads {name} "
                            f"has {got}: {wrong}"
                        )
                    port = ports.setdefault((column, half), task.port)
                    if port != task.port:
                        raise PackageError(
                            f"{where}: bytes {at} to {end} of {name} come through channel "
                            f"{task.port[1]} of shim {task.port[0]}, but others for the same cores "
                            f"through channel {port[1]} of shim {port[0]}: {wrong}"
                        )
                    at = task.end
    if len(set(ports.values())) != COLUMNS * channels:
        raise PackageError(
            f"{where} reads weights through {len(set(ports.values()))} channels of shims, expected "
            f"{COLUMNS * channels}: {wrong}"
        )
