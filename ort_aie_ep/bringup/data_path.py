"""Measurements of the path between memory and a core, on the overlay `micro`.

Its cores copy or drop their input, so a stream that moves more of something takes longer by the
cost of that. Each experiment says which difference it measures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ort_aie_ep.bringup import bench, streams
from ort_aie_ep.bringup.bench import Bench, Experiment, Value
from ort_aie_ep.bringup.streams import Operations
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.device import device as find_device
from ort_aie_ep.npu.terms.errors import DesignError

SEQUENCE = "read_small"  # by which the overlay is recognised
OBJECT, SMALL = 8192, 512  # bytes, of a lane's objects and of an id's
PIECES = 4  # the queue of a shim's channel holds four tasks
CALLS = 24  # of a copy, which then takes longer than its stream and a gate

#: Objects of a lane in a short and in a long stream, and more of an id's and of copies.
OBJECTS, QUICK_OBJECTS = (128, 640), (32, 128)
SMALL_OBJECTS, QUICK_SMALL_OBJECTS = (2048, 32768), (256, 2048)
COPIES, QUICK_COPIES = 8192, 512


def experiments(quick: bool) -> list[Experiment]:
    """The experiments, each after those on which it depends."""
    objects = QUICK_OBJECTS if quick else OBJECTS
    small = QUICK_SMALL_OBJECTS if quick else SMALL_OBJECTS
    copies = QUICK_COPIES if quick else COPIES
    made = [
        Experiment("TCT_WAIT", "waits for complete tasks, all of them against one", _waits),
        Experiment("GATE_IDLE", "data that is pushed last or waits in L1, less its stream", _idle),
        Experiment("GATE_PIPELINED", f"a transfer to the device in {PIECES} tasks, not one", _next),
        Experiment(
            "BD_SETUP", "the same bytes in objects of 512 and of 8,192",
            lambda on: _descriptor(on, objects, small),
        ),
        Experiment(
            "LOCK_ACQUIRE", "the same copies in twice the objects; with the loop around it",
            lambda on: _lock(on, copies),
        ),
        Experiment("SHIM_CHANNEL", "one channel to a core", _moved("read", 1, 0, objects),
                   model=_bounded(1, 0)),
        Experiment("SHIM_CHANNEL, to memory", "one channel from a core",
                   _moved("write", 1, 0, objects), model=_bounded(1, 1)),
        *(
            Experiment(
                f"{name}, {title}", "more bytes on each channel",
                _moved(sequence, count, first, objects), model=_bounded(count, position),
            )
            for name, sequence, position in (("DDR_READ", "read", 0), ("DDR_WRITE", "write", 1))
            for count, first, title in (
                (1, 0, "1 channel"), (2, 0, "2 channels"), (4, 0, "4 channels"),
                (8, 0, "8 channels"), (8, -1, "8 channels of 4 columns"),
            )
        ),
        Experiment("DDR_READ", "all channels to cores; at least this",
                   _moved("read", 0, 0, objects)),
        Experiment("DDR_WRITE", "all channels from cores; at least this",
                   _moved("write", 0, 0, objects)),
    ]  # fmt: skip
    return [replace(each, sequence=SEQUENCE) for each in made]


def _bounded(count: int, position: int) -> Callable[[Mapping[str, Any]], float]:
    """The most that `count` channels can move: what they carry, and what memory gives."""

    def model(manifest: Mapping[str, Any]) -> float:
        target = find_device(manifest["device"])
        memory = costs.ddr(target.architecture)[position].value
        return min(count * costs.shim_rate(target), memory)

    return model


def _moved(sequence: str, count: int, first: int, objects: tuple[int, int]) -> Any:
    """Bytes per second of `count` lanes (0: all) from lane `first` on (-1: the middle column)."""

    def measured(on: Bench) -> Value:
        there = sum(name.startswith("lane") for name in on.manifest["workers"])
        lanes, start = count or there, on.columns // 2 if first < 0 else first
        if start + lanes > there or (first < 0 and lanes > on.columns):
            raise DesignError(f"{on.manifest['device']} has too few columns: {on.columns}")
        shapes = [_shape(sequence, n, lanes, start) for n in objects]
        on.arguments(sequence, shapes[1])
        less, more = (on.sequence(sequence, shape) for shape in shapes)
        seconds = on.more(less, more, lanes * (objects[1] - objects[0]) * OBJECT)
        if seconds.median <= 0:
            raise DesignError("the larger shape took no longer than the smaller one")
        rate = 1 / seconds.median
        return Value(rate, rate * rate * seconds.spread)

    return measured


def _shape(
    sequence: str, objects: int, lanes: int = 1, first: int = 0, calls: int = 1
) -> dict[str, int]:
    shape = {"bytes": objects * OBJECT, "lanes": lanes, "first": first}
    return shape | ({"calls": calls} if sequence == "write" else {})


def _read(on: Bench, objects: int) -> Operations:
    shape = _shape("read", objects)
    on.arguments("read", shape)
    return on.operations("read", shape)


def _delay(on: Bench) -> Operations:
    """Writes that take longer than a few objects."""
    return [streams.write(on.manifest)] * bench.MANY


def _waits(on: Bench) -> Value:
    shape = _shape("passthrough", 1, on.columns)
    on.arguments("passthrough", shape)
    operations = on.operations("passthrough", shape)
    waits = sum(each[0] == "wait" for each in operations)
    if waits < 2:
        raise DesignError("the stream has a single wait, because the device has one column")
    one, all_ = (on.program(streams.with_waits(operations, n, _delay(on))) for n in (1, waits))
    return on.more(one, all_, waits - 1)


def _next(on: Bench) -> Value:
    one = _read(on, PIECES)
    divided = streams.split_tasks(on.manifest, one, "MM2S", PIECES)
    return on.more(on.program(one), on.program(divided), PIECES - 1)


def _idle(on: Bench) -> Value:
    """Compare two streams with the same operations.

    Both end with an object on its way out of the core, and begin with an object that goes all the
    way, because the first gate after a start may differ. Then, in one stream, the object waits in
    L1 and the worker is started last. In the other, the worker waits and the object is pushed last,
    which takes longer by the gate and an object's stream. A second object in the same task gives
    the time of that stream.
    """
    delay = _delay(on)
    one, two = (streams.parts(_read(on, n)) for n in (1, 2))  # the latter's buffers stay
    begin = [*one.from_device, *one.to_device, *one.starts, *one.waits]
    waiting = on.program(
        [*begin, *one.to_device, *one.from_device, *delay, *one.starts, *one.waits]
    )
    late, later = (
        on.program([*begin, *each.from_device, *each.starts, *delay, *each.to_device, *each.waits])
        for each in (one, two)
    )
    gate_and_object, object_ = on.more(waiting, late, 1), on.more(late, later, 1)
    return gate_and_object - object_


def _slope(on: Bench, sequence: str, shapes: list[dict[str, int]], by: float) -> Value:
    on.arguments(sequence, shapes[1])
    return on.more(on.sequence(sequence, shapes[0]), on.sequence(sequence, shapes[1]), by)


def _descriptor(on: Bench, objects: tuple[int, int], small: tuple[int, int]) -> Value:
    """An object takes a time that grows with its bytes, and a constant time."""
    large_by, small_by = objects[1] - objects[0], small[1] - small[0]
    large = _slope(on, "read", [_shape("read", n) for n in objects], large_by)
    little = _slope(on, "read_small", [{"objects": n} for n in small], small_by)
    ratio = SMALL / OBJECT
    return (little - large.scaled(ratio)).scaled(1 / (1 - ratio))


def _lock(on: Bench, copies: int) -> Value:
    """The core is the slowest part, so each further object costs the core's time for it."""
    few = _shape("write", copies, calls=2 * CALLS)
    many = _shape("write", 2 * copies, calls=CALLS)
    return _slope(on, "write", [few, many], copies)
