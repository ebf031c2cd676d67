"""Micro-measurements: the first overlay to try on a chip, and the one that measures its constants.

README.md has lanes and ids.
"""

from __future__ import annotations

from collections.abc import Iterator

from ort_aie_ep.aie_kernels.micro.kernels import COPY_LARGE, COPY_SMALL
from ort_aie_ep.npu.terms.design import (
    Acquire,
    Body,
    Core,
    Design,
    End,
    Fifo,
    Parameters,
    Release,
    Steps,
    call,
)
from ort_aie_ep.npu.terms.device import WORD, Device
from ort_aie_ep.npu.terms.kernel import Kernel
from ort_aie_ep.npu.terms.sequence import Sequence, Value, at_most, equal, less, maximum

OBJECT = 8192  # bytes, of a lane
SMALL = 512  # bytes, of an id
STREAM = OBJECT // WORD  # cycles of a lane's object, a word each
IDS = 2
#: Objects of an id that wait in L1 and in the memory tile, with both buffers of each, are six.
MAX_TURN = 2
PARAMETERS = ("rounds", "dropped", "copies", "calls")


def lanes(columns: int) -> list[tuple[int, int]]:
    """(column, channel) of each lane of a device with so many columns."""
    second = [(columns // 2 + i) % columns for i in range(columns)]
    return [*((c, 0) for c in range(columns)), *((c, 1) for c in second if c)]


def build(device: Device) -> Design:
    """Lanes on all columns of `device`, and two ids on column 0.

    Sequences; `lanes` of them from lane `first` on work, `bytes` is a multiple of OBJECT:

    * `passthrough(bytes, lanes, first)`: x (lanes, bytes) to y, the same;
    * `read(bytes, lanes, first)`: x (lanes, bytes) to y (lanes, OBJECT), the last objects;
    * `write(bytes, lanes, first, calls)`: x (lanes, OBJECT) to y (lanes, bytes), x over and over,
      each object copied `calls` times;
    * `two_ids(objects)`: a and b (2 * objects, SMALL) to y (2 * objects, 2, SMALL);
    * `read_small(objects)`: a (objects, SMALL) and b (SMALL) to y (2, SMALL), the last object of a.
    """
    design = Design("micro", device)
    for lane, (column, channel) in enumerate(lanes(device.columns)):
        shim, core = design.shim(column, channel), design.core(column, channel)
        _copier(design, f"lane{lane}", shim, core, shim, COPY_LARGE)
    halves = [
        _copier(design, f"id{i}", design.shim(0, 1), design.core(0, 1 + i), design.mem(0),
                COPY_SMALL, packet=i)
        for i in range(IDS)
    ]  # fmt: skip
    joined = design.fifo("ids", "bf16", IDS * SMALL // 2, design.mem(0), design.shim(0, 1))
    design.join(halves, joined)
    _add_lane_sequences(design)
    _add_two_ids(design)
    _add_read_small(design)
    return design


def _copier(
    design: Design, name: str, source: End, core: End, target: End, kernel: Kernel,
    packet: int | None = None,
) -> Fifo:  # fmt: skip
    """Add a core that copies; return the fifo that leaves it."""
    (array, _) = kernel.arguments
    assert not isinstance(array, type)
    taken = design.fifo(f"{name}_in", "bf16", array.count, source, core, packet=packet)
    given = design.fifo(f"{name}_out", "bf16", array.count, core, target)
    design.worker(
        name, core, _body(kernel), inputs={"x": taken}, outputs={"y": given},
        parameters=PARAMETERS, kernels=[kernel],
    )  # fmt: skip
    return given


def _body(kernel: Kernel) -> Body:
    def body(core: Core) -> Steps:
        rounds, dropped, copies, calls = yield Parameters()
        for _ in core.loop(rounds):
            for _ in core.loop(dropped):
                yield Acquire("x")
                yield Release("x")
            x = yield Acquire("x")
            for _ in core.loop(copies):
                y = yield Acquire("y")
                for _ in core.loop(calls):
                    yield call(kernel, x, y)
                yield Release("y")
            yield Release("x")

    return body


# --- sequences ------------------------------------------------------------------------------------
def _add_lane_sequences(design: Design) -> None:
    s = design.sequence("passthrough", "bytes", "lanes", "first")
    bytes_, *_ = s.symbols()
    objects = bytes_ // OBJECT
    # An object comes into a core, and the last one leaves, in the time that a stream takes.
    copied = int(COPY_LARGE.cycles(design.device.architecture, ()))
    through = (objects + 1) * STREAM + copied
    _lanes(design, s, bytes_, bytes_, (objects, 0, 1, 1), through)

    s = design.sequence("read", "bytes", "lanes", "first")
    _lanes(design, s, bytes_, OBJECT, (1, objects - 1, 1, 1), through)

    s = design.sequence("write", "bytes", "lanes", "first", "calls")
    *_, calls = s.symbols()
    s.require(at_most(1, calls), "{calls} calls for a copy; at least one is needed")
    work = STREAM + copied + objects * maximum(STREAM, calls * copied)
    _lanes(design, s, OBJECT, bytes_, (1, 0, objects, calls), work)


def _lanes(
    design: Design, s: Sequence, taken: Value, given: Value, parameters: tuple[Value, ...],
    work: Value,
) -> None:  # fmt: skip
    """Each lane takes this many bytes of x and gives this many of y, in `work` cycles."""
    bytes_, count, first = s.symbols()[:3]
    every = range(len(lanes(design.device.columns)))
    s.require(
        at_most(OBJECT, bytes_) * equal(bytes_ % OBJECT, 0),
        f"{{bytes}} bytes a lane; it must be a positive multiple of {OBJECT:,}",
    )
    s.require(
        at_most(1, count) * at_most(0, first) * at_most(first + count, len(every)),
        f"{{lanes}} lanes from {{first}} on; there are {len(every)}",
    )
    s.argument("x", "in", count * taken)
    s.argument("y", "out", count * given)

    def used() -> Iterator[tuple[int, Value]]:
        for lane in every:
            with s.when(at_most(first, lane) * less(lane, first + count)):
                yield lane, lane - first

    for lane, place in used():
        s.transfer(f"lane{lane}_in", "x", offset=place * taken, run=taken)
    for lane, place in used():
        s.transfer(f"lane{lane}_out", "y", offset=place * given, run=given)
    for lane, _ in used():
        s.start(f"lane{lane}", *parameters)
    s.work(work)
    s.wait(*(f"lane{lane}_out" for lane in every))


def _add_two_ids(design: Design) -> None:
    s = design.sequence("two_ids", "objects")
    (objects,) = s.symbols()
    s.require(
        at_most(1, objects) * at_most(objects, MAX_TURN),
        f"{{objects}} objects in turn; expected 1 to {MAX_TURN}: an id has buffers for both turns",
    )
    turn = objects * SMALL
    inputs = [s.argument(name, "in", 2 * turn) for name in ("a", "b")]
    y = s.argument("y", "out", 2 * IDS * turn)
    # Alternating, so that a packet that is mistaken for the one before it shows up.
    for i in range(2):
        for number, argument in enumerate(inputs):
            s.transfer(f"id{number}_in", argument, offset=i * turn, run=turn)
    s.transfer("ids", y, offset=0, run=2 * IDS * turn)
    for number in range(IDS):
        s.start(f"id{number}", 2 * objects, 0, 1, 1)
    # Both ids of both turns by one channel, then the last pair into and out of the memory tile.
    s.work((2 * IDS * objects + 1 + IDS) * SMALL // WORD)
    s.wait("ids")


def _add_read_small(design: Design) -> None:
    s = design.sequence("read_small", "objects")
    (objects,) = s.symbols()
    s.require(at_most(1, objects), "{objects} objects; at least one is needed")
    a = s.argument("a", "in", objects * SMALL)
    b = s.argument("b", "in", SMALL)
    y = s.argument("y", "out", IDS * SMALL)
    s.transfer("id0_in", a, offset=0, run=objects * SMALL)
    s.transfer("id1_in", b, offset=0, run=SMALL)
    s.transfer("ids", y, offset=0, run=IDS * SMALL)
    s.start("id0", 1, objects - 1, 1, 1)
    s.start("id1", 1, 0, 1, 1)
    s.work((objects + 2 + IDS) * SMALL // WORD)
    s.wait("ids")
