"""What a manifest must contain: what `src/npu/manifest.cc` and `sequence_parser.cc` read."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from ort_aie_ep.formats.q4nx import GROUPS
from ort_aie_ep.models.checked_json import Field
from ort_aie_ep.npu.vocabulary.device import DEVICES, MAX_PACKET_ID, TILES, WORD, Device
from ort_aie_ep.npu.vocabulary.errors import PackageError
from ort_aie_ep.npu.vocabulary.sequence import OPERATORS

FORMAT = 1

#: The entries of `costs` with which the runtime predicts the time of a run: cycles, and bytes per
#: cycle.
COSTS = (
    "write32", "maskwrite", "blockwrite", "blockwrite_word", "ddr_patch", "tct_wait",
    "gate_idle", "gate_pipelined", "stream",
)  # fmt: skip

_RATES = ("clock_hz", "ddr_bytes_per_second", "ddr_write_bytes_per_second")
_STATEMENTS = {
    "let": ("let", "value"),
    "require": ("require", "message"),
    "for": ("for", "count", "do"),
    "if": ("if", "do"),
    "transfer": ("transfer", "argument", "offset", "run", "outer"),
    "start": ("start", "values"),
    "wait": ("wait",),
    "arrive": ("arrive",),
    "work": ("work",),
    "cut": ("cut",),
}
_PLACEHOLDER = re.compile(r"\{([^}]*)(\}?)")


def validate(manifest: Any, where: str) -> None:
    """Raise PackageError, naming the place, unless this library can read `manifest`."""
    check_manifest(Field(manifest, where, "", PackageError))


def check_manifest(manifest: Field) -> None:
    """Check a manifest as it was read. Raises the reader's error."""
    version = manifest.field("format").integer()
    if version != FORMAT:
        raise manifest.error(
            f"{manifest.file}: format {version}, but this library reads format {FORMAT}; "
            "build the package again with this version"
        )
    manifest.field("name").text()
    manifest.field("kernel").text()
    if (weights := manifest.find("weights")) is not None:
        group = weights.field("group")
        group.require(group.integer() in GROUPS, f"one of {GROUPS}")
        weights.field("minima").integer(0, 1)
        weights.only("group", "minima")
    device = DEVICES[manifest.field("device").one_of(DEVICES)]
    for key in ("generation", "rows", "columns"):
        expected = getattr(device, key)
        of = manifest.field(key)
        of.require(of.integer() == expected, f"{expected} for {device.name}")
    for key in _RATES:
        manifest.field(key).positive()
    costs = manifest.field("costs")
    for key in COSTS:
        costs.field(key).positive()
    costs.only(*COSTS)
    fifos = {name: _check_fifo(fifo, device) for name, fifo in manifest.field("fifos").members()}
    _check_channels(manifest.field("fifos"), fifos)
    workers = {
        name: _check_worker(worker, device) for name, worker in manifest.field("workers").members()
    }
    _check_descriptors(manifest.field("bds"), device, fifos)
    for _, sequence in manifest.field("sequences").members():
        _Sequence(sequence, fifos, workers).check()
    toolchain = manifest.field("toolchain")
    for _, version_of in toolchain.members() if not toolchain.is_null else ():
        version_of.text()
    uuid = manifest.field("uuid")
    if not uuid.is_null:
        uuid.text()
    manifest.only(
        "format", "name", "device", "generation", "rows", "columns", "kernel", "weights", *_RATES,
        "costs", "fifos", "workers", "bds", "sequences", "toolchain", "uuid",
    )  # fmt: skip


def _check_fifo(fifo: Field, device: Device) -> Field:
    fifo.field("column").integer(0, device.columns - 1)
    fifo.field("channel").integer(0, TILES["shim"].mm2s - 1)
    fifo.field("direction").one_of(("MM2S", "S2MM"))
    if not fifo.field("packet").is_null:
        fifo.field("packet").integer(0, MAX_PACKET_ID)
    fifo.only("column", "channel", "direction", "packet")
    return fifo


def _check_channels(place: Field, fifos: dict[str, Field]) -> None:
    """Check that a channel has one fifo, or several that unique packet ids keep apart."""
    taken: dict[tuple[object, ...], dict[object, str]] = {}
    for name, fifo in fifos.items():
        values = fifo.value
        others = taken.setdefault(
            tuple(values[key] for key in ("column", "channel", "direction")), {}
        )
        packet = values["packet"]
        if others and (packet is None or packet in others or None in others):
            other = others.get(packet, next(iter(others.values())))
            raise place.error(
                f"{place.file}: {place.path}.{other} and {fifo.path} share a channel; packet ids "
                "must keep them apart"
            )
        others[packet] = name


def _check_worker(worker: Field, device: Device) -> int:
    """Check a worker; returns the number of its parameters."""
    worker.field("column").integer(0, device.columns - 1)
    worker.field("row").integer(2, device.rows - 1)
    worker.field("lock").integer(0, TILES["core"].locks - 1)
    names = worker.field("parameters").elements()
    for name in names:
        name.text()
    address, room = worker.field("address"), TILES["core"].memory - WORD * len(names)
    address.require(
        0 <= address.integer() <= room and address.integer() % WORD == 0,
        f"a multiple of {WORD} with room for {len(names)} words below {TILES['core'].memory}",
    )
    worker.only("column", "row", "parameters", "address", "lock")
    return len(names)


def _check_descriptors(columns: Field, device: Device, fifos: dict[str, Field]) -> None:
    shims = [str(column) for column in range(device.columns)]
    for column, ids in columns.members():
        if column not in shims:
            raise columns.error(
                f"{columns.file}: {ids.path} is not a shim column; they are {', '.join(shims)}"
            )
        numbers = [each.integer(0, TILES["shim"].descriptors - 1) for each in ids.elements()]
        ids.require(len(set(numbers)) == len(numbers), "a list that holds each descriptor once")
    for fifo in fifos.values():
        column = str(fifo.value["column"])
        if not columns.object().get(column):
            raise columns.error(
                f"{columns.file}: {columns.path} has no descriptors for column {column}, which "
                f"{fifo.path} uses"
            )


class _Sequence:
    """A sequence: what its names mean at the current point of the check."""

    def __init__(self, sequence: Field, fifos: dict[str, Field], workers: dict[str, int]) -> None:
        self._sequence = sequence
        self._fifos = fifos
        self._workers = workers
        self._arguments: dict[str, str] = {}

    def check(self) -> None:
        symbols: set[str] = set()
        for parameter in self._sequence.field("parameters").elements():
            parameter.require(parameter.text() not in symbols, "a name that is not taken")
            symbols.add(parameter.text())
        for argument in self._sequence.field("arguments").elements():
            name = argument.field("name")
            name.require(name.text() not in self._arguments, "a name that is not taken")
            self._arguments[name.text()] = argument.field("direction").one_of(
                ("in", "out", "inout")
            )
            self._expression(argument.field("bytes"), symbols)
            argument.only("name", "direction", "bytes")
        self._body(self._sequence.field("body"), (), symbols)
        self._sequence.only("parameters", "arguments", "body")

    def _body(self, body: Field, outer: Collection[str], own: set[str]) -> None:
        """`outer` are the symbols of the enclosing blocks, `own` those of this block."""
        for statement in body.elements():
            content = statement.object()
            kind = next((name for name in _STATEMENTS if name in content), None)
            if kind is None:
                raise statement.fail(f"a statement: {', '.join(_STATEMENTS)}")
            getattr(self, f"_{kind}")(statement, outer, own)
            statement.only(*_STATEMENTS[kind])

    def _declare(self, name: Field, outer: Collection[str]) -> str:
        name.require(name.text() not in outer, "a name that has no value outside this block")
        return name.text()

    def _let(self, statement: Field, outer: Collection[str], own: set[str]) -> None:
        self._expression(statement.field("value"), {*outer, *own})
        own.add(self._declare(statement.field("let"), outer))

    def _require(self, statement: Field, outer: Collection[str], own: set[str]) -> None:
        known = {*outer, *own}
        self._expression(statement.field("require"), known)
        message = statement.field("message")
        for name, end in _PLACEHOLDER.findall(message.text()):
            message.require(end and name in known, "a text whose {name}s are symbols")

    def _for(self, statement: Field, outer: Collection[str], own: set[str]) -> None:
        known = {*outer, *own}
        self._expression(statement.field("count"), known)
        self._body(statement.field("do"), known, {self._declare(statement.field("for"), known)})

    def _if(self, statement: Field, outer: Collection[str], own: set[str]) -> None:
        known = {*outer, *own}
        self._expression(statement.field("if"), known)
        self._body(statement.field("do"), known, set())

    def _transfer(self, statement: Field, outer: Collection[str], own: set[str]) -> None:
        known = {*outer, *own}
        fifo = self._fifos[statement.field("transfer").one_of(self._fifos)]
        name = statement.field("argument").one_of(self._arguments)
        needed = "in" if fifo.value["direction"] == "MM2S" else "out"
        if self._arguments[name] not in (needed, "inout"):
            raise statement.error(
                f"{statement.file}: {statement.path} needs an argument with direction {needed}, "
                f"but {name} has {self._arguments[name]}"
            )
        self._expression(statement.field("offset"), known)
        self._expression(statement.field("run"), known)
        for pair in statement.field("outer").elements():
            values = pair.elements()
            pair.require(len(values) == 2, "a pair [count, stride]")
            for value in values:
                self._expression(value, known)

    def _start(self, statement: Field, outer: Collection[str], own: set[str]) -> None:
        worker = statement.field("start").one_of(self._workers)
        values = statement.field("values")
        count = self._workers[worker]
        values.require(
            len(values.elements()) == count,
            f"{count} values, one for each parameter of worker {worker}",
        )
        for value in values.elements():
            self._expression(value, {*outer, *own})

    def _wait(self, statement: Field, outer: Collection[str], own: set[str]) -> None:
        self._fifo_names(statement.field("wait"))

    def _arrive(self, statement: Field, outer: Collection[str], own: set[str]) -> None:
        self._fifo_names(statement.field("arrive"))

    def _fifo_names(self, names: Field) -> None:
        names.require(names.elements(), "a list of at least one fifo")
        for name in names.elements():
            name.one_of(self._fifos)

    def _work(self, statement: Field, outer: Collection[str], own: set[str]) -> None:
        self._expression(statement.field("work"), {*outer, *own})

    def _cut(self, statement: Field, outer: Collection[str], own: set[str]) -> None:
        cut = statement.field("cut")
        cut.require(cut.value is True, "true")

    def _expression(self, value: Field, symbols: Collection[str]) -> None:
        wanted = "a whole number, a symbol or [operator, left, right]"
        if isinstance(value.value, str):
            value.require(value.value in symbols, "a symbol that has a value here")
        elif isinstance(value.value, list):
            value.require(len(value.value) == 3, wanted)
            operator, left, right = value.elements()
            operator.one_of(OPERATORS)
            self._expression(left, symbols)
            self._expression(right, symbols)
        else:
            value.require(type(value.value) is int, wanted)
            value.integer()
