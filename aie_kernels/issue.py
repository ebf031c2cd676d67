"""What the core of AIE2P can issue: the rules by which cycles are counted from source.

A bundle starts at most one operation in each of six slots. A count of bundles is a schedule of the
operations that a piece of source needs, in which no slot is used twice, no operand is read before
it is there, and no more registers are in use than the core has.

Sources, all read before anything was compared with them:

* slots, and the slot of each instruction: llvm-aie, `llvm/lib/Target/AIE/aie2p/AIE2PSlots.td` and
  `AIE2PGenInstrInfo.td`. All combinations of the six exist (`AIE2PCompositeFormats.td`).
* cycles at which operands are read and results written: `AIE2PGenSchedule.td`.
* what a call of the AIE API becomes: aie_api, `include/aie_api/detail/aie2p` and `aie2`.
* registers: 12 of 512 bits for vectors, 5 of 2,048 bits for sums (`AIE2PRegisterInfo.td`).
* the same conversion of the same operand, twice between two stores, is done once: the intrinsics
  read no memory but their control registers (`IntrinsicsAIE2P.td`).

What is left out: address arithmetic (the units that load and store add to pointers as they go, and
the scalar slot is nearly empty beside vector code), conflicts of memory banks, and what a compiler
does not find. The schedule is a good one and not the best, so compiled code can be shorter.
lab/bundles.py compares counts with published bundles.
"""

from __future__ import annotations

import sys
from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache

# Compiled bundles for one that is counted (lab/bundles.py): of published projections, compiled at
# -O2, and of published attention, compiled at -O1. A kernel left out is within 19 %.
PROJECTIONS, ATTENTION = 1.04, 1.74

VECTORS = 12  # registers of 512 bits
SUMS = 20  # quarters of the five accumulators, 512 bits each


class Slot(Enum):
    """Where an operation is issued."""

    LDA = "lda"  # loads, also into sums, also with the conversion of bfloat16 to fp32
    LDB = "ldb"  # loads of vectors; unpacking of integers
    ST = "st"  # stores; conversions of fp32 to bfloat16 and bfp16, of sums to integers
    ALU = "alu"  # scalars
    MV = "mv"  # moves, shuffles, broadcasts, selections, integers, maxima, bfloat16 to fp32
    VEC = "vec"  # products, and sums of fp32


LOADS = (Slot.LDA, Slot.LDB)
_BITS = {slot: 1 << place for place, slot in enumerate(Slot)}


@dataclass(frozen=True)
class Form:
    """An instruction: one of `slots`, the cycle that writes its result, and what holds that.

    `vectors` and `sums` are the registers of 512 bits of the result.
    """

    slots: tuple[Slot, ...]
    written: int
    vectors: int = 0
    sums: int = 0
    bypass: bool = False  # results of this slot reach its own operands a cycle earlier


# Loads of 512 bits: to a vector, to a quarter of a sum, and with conversion to half of a sum.
LOAD = Form(LOADS, 7, vectors=1)
LOAD_SUMS = Form((Slot.LDA,), 7, sums=1)
LOAD_WIDENED = Form((Slot.LDA,), 7, sums=2)
LOAD_SCALAR = Form((Slot.LDA,), 6)
STORE = Form((Slot.ST,), 1)
UNPACK = Form((Slot.LDB,), 2, vectors=2)  # of 512 bits to twice as many
UNPACK_HALF = Form((Slot.LDB,), 2, vectors=1)  # of 256 bits
MOVE = Form((Slot.MV,), 2, vectors=1, bypass=True)  # any of that slot with a vector as its result
MASK = Form((Slot.MV,), 2)  # comparisons, and values for the scalar registers
TO_SUMS = Form((Slot.MV,), 2, sums=1)  # 512 bits from a vector, or shuffled from two
WIDEN = Form((Slot.MV,), 2, sums=2)  # 32 bfloat16 to fp32
SUMS_OF_INTEGERS = Form((Slot.MV,), 2, sums=4)  # 64 integers of 8 bits
NARROW = Form((Slot.ST,), 2, vectors=1)  # 32 fp32 to bfloat16
INTEGERS_OF_SUMS = Form((Slot.ST,), 4, vectors=1)
TO_BFP = Form((Slot.ST,), 4, vectors=1)  # 64 fp32 to bfp16
PRODUCT = Form((Slot.VEC,), 6, sums=4)  # 64 lanes, or 8 x 8 x 8 of bfp16
PRODUCT_32 = Form((Slot.VEC,), 6, sums=2)
PRODUCT_16 = Form((Slot.VEC,), 6, sums=1)
SCALAR = Form((Slot.ALU,), 1)

# How far ahead of the first operation that is not issued a schedule looks: the best of these, of
# which the likeliest is first.
WINDOWS = (32, 64, 16, 128, 8)

_SUM_READ = 4  # products read the sum that they add to, and sums their operands, three cycles late


@dataclass(frozen=True)
class Value:
    """The result of an operation of a body."""

    at: int
    form: Form


@dataclass
class _Operation:
    form: Form
    reads: tuple[int, ...]
    late: tuple[int, ...]  # sums, read at `_SUM_READ`
    stretch: int
    users: list[int] = field(default_factory=list)
    operands: tuple[int, ...] = field(init=False)
    slots: int = field(init=False)  # a bit each

    def __post_init__(self) -> None:
        self.operands = tuple(dict.fromkeys(self.reads + self.late))
        self.slots = sum(_BITS[slot] for slot in self.form.slots)


class Body:
    """Straight-line code, as operations that read the results of others."""

    def __init__(self) -> None:
        self._operations: list[_Operation] = []
        self._stretch = 0

    def __len__(self) -> int:
        return len(self._operations)

    def add(self, form: Form, *reads: Value | None, sums: Sequence[Value | None] = ()) -> Value:
        """An operation that reads `reads` at once and `sums` late; None was there before."""
        number = len(self._operations)
        before = tuple(value.at for value in reads if value is not None)
        late = tuple(value.at for value in sums if value is not None)
        self._operations.append(_Operation(form, before, late, self._stretch))
        for operand in (*before, *late):
            self._operations[operand].users.append(number)
        return Value(number, form)

    def next_stretch(self) -> None:
        """What follows belongs to the next trip of an unrolled loop, or the next statement."""
        self._stretch += 1

    def used(self) -> dict[Slot, float]:
        """How often each slot is needed; those of loads share."""
        counts = dict.fromkeys(Slot, 0.0)
        for operation in self._operations:
            if len(operation.form.slots) == 1:
                counts[operation.form.slots[0]] += 1
        either = sum(len(operation.form.slots) == 2 for operation in self._operations)
        both = either + counts[Slot.LDA] + counts[Slot.LDB]
        for slot in LOADS:
            counts[slot] = max(counts[slot], both / 2)
        return counts

    def issued(self) -> int:
        """The bundles of the busiest slot."""
        return int(-(-max(self.used().values()) // 1))

    def scheduled(self) -> int:
        """The bundles of one schedule of all, by the rules."""
        return _schedule(self._operations)

    def in_turn(self) -> int:
        """The bundles if no stretch begins before the one before it has ended."""
        total = 0
        for stretch in range(self._stretch + 1):
            total += _schedule(_alone(self._operations, stretch))
        return total


def _alone(operations: Sequence[_Operation], stretch: int) -> list[_Operation]:
    """The operations of a stretch, for which all others are done."""
    numbers = [i for i, operation in enumerate(operations) if operation.stretch == stretch]
    place = {number: at for at, number in enumerate(numbers)}

    def here(all_of: Iterable[int]) -> tuple[int, ...]:
        return tuple(place[number] for number in all_of if number in place)

    alone = []
    for number in numbers:
        operation = operations[number]
        alone.append(
            _Operation(operation.form, here(operation.reads), here(operation.late), 0,
                       list(here(operation.users)))
        )  # fmt: skip
    return alone


def _latency(writer: Form, reader: Form, late: bool) -> int:
    """Cycles from the issue of an operation to that of one that reads its result."""
    if writer.bypass and reader.slots == writer.slots:
        return writer.written - 1
    return max(1, writer.written - (_SUM_READ if late else 1) + 1)


def _heights(operations: Sequence[_Operation]) -> list[int]:
    """For each operation the cycles from its issue to the end, with nothing else to do."""
    heights = [0] * len(operations)
    for number in range(len(operations) - 1, -1, -1):
        operation = operations[number]
        height = 1
        for user in operation.users:
            reader = operations[user]
            late = number in reader.late and number not in reader.reads
            height = max(height, heights[user] + _latency(operation.form, reader.form, late))
        heights[number] = height
    return heights


def _schedule(operations: Sequence[_Operation]) -> int:
    """The shortest of several schedules, which look ahead differently far."""
    heights = _heights(operations)
    shortest = sys.maxsize
    for window in WINDOWS:
        shortest = min(shortest, _look_ahead(operations, heights, window, shortest))
    return shortest


def _look_ahead(
    operations: Sequence[_Operation], heights: Sequence[int], window: int, known: int
) -> int:
    """Cycle by cycle, the operation with the longest way to the end first.

    Only the `window` operations after the first that is not issued yet are looked at. A register is
    in use from the issue of the operation that writes it to that of the last that reads it. Where
    all that could be issued needs registers that are in use, the first in the source is issued
    nevertheless, and a store and a load of a spill are added. A schedule that is not shorter than
    the `known` one is not ended.
    """
    count = len(operations)
    missing = [len(op.operands) for op in operations]
    readers = [len(set(op.users)) for op in operations]
    earliest = [0] * count
    # Looked at and not issued: the first of them, and places in `order`, which is by heights.
    first, next_ = 0, min(window, count)
    order = sorted(range(count), key=lambda i: (-heights[i], i))
    place = [0] * count
    for at, number in enumerate(order):
        place[number] = at
    open_ = sorted(place[:next_])
    done = [False] * count
    free = {"vectors": VECTORS, "sums": SUMS}
    cycle, spills = 0, 0
    while open_:
        if cycle + 2 * spills + heights[order[open_[0]]] >= known:
            return known
        taken = 0
        issued: list[int] = []
        blocked = []
        waiting = False
        for at in open_:
            number = order[at]
            if missing[number]:
                continue
            if earliest[number] > cycle:
                waiting = True
                continue
            slots = operations[number].slots & ~taken
            if not slots:
                continue
            if not _fits(operations, number, free, readers):
                blocked.append(number)
                continue
            taken |= slots & -slots
            issued.append(number)
            _allocate(operations, number, free, readers)
        if blocked and not issued and not waiting:
            issued.append(min(blocked))
            _allocate(operations, issued[0], free, readers)
            spills += 1
        for number in issued:
            open_.remove(place[number])
            done[number] = True
            for user in set(operations[number].users):
                reader = operations[user]
                late = number in reader.late and number not in reader.reads
                wait = _latency(operations[number].form, reader.form, late)
                earliest[user] = max(earliest[user], cycle + wait)
                missing[user] -= 1
        while first < next_ and done[first]:
            first += 1
        while next_ < count and next_ < first + window:
            insort(open_, place[next_])
            next_ += 1
        cycle += 1
    return cycle + 2 * spills


def _fits(
    operations: Sequence[_Operation], number: int, free: dict[str, int], readers: Sequence[int]
) -> bool:
    """Whether there are registers for a result, with those that the operation is last to read."""
    form = operations[number].form
    back_vectors, back_sums = 0, 0
    for operand in operations[number].operands:
        if readers[operand] == 1:
            back_vectors += operations[operand].form.vectors
            back_sums += operations[operand].form.sums
    return form.vectors <= free["vectors"] + back_vectors and form.sums <= free["sums"] + back_sums


def _allocate(
    operations: Sequence[_Operation], number: int, free: dict[str, int], readers: list[int]
) -> None:
    """Takes the registers of a result and gives back those that have no further reader."""
    for operand in operations[number].operands:
        readers[operand] -= 1
        if not readers[operand]:
            free["vectors"] += operations[operand].form.vectors
            free["sums"] += operations[operand].form.sums
    if readers[number]:
        free["vectors"] -= operations[number].form.vectors
        free["sums"] -= operations[number].form.sums


# --- loops ----------------------------------------------------------------------------------------
# Peano's modulo scheduler gives up above this interval; then trips do not overlap.
LONGEST_INTERVAL = 27

Carried = Sequence[Value | None]  # what a trip leaves to the next; None is a constant


@cache
def once(write: Callable[[Body], object]) -> float:
    """Bundles of straight-line code that `write` adds to a body."""
    body = Body()
    write(body)
    return body.scheduled()


def loop(trips: float, write: Callable[[Body], object]) -> float:
    """Bundles of a loop whose trips need nothing of each other."""
    return carrying(trips, 0, _without(write))


def carrying(trips: float, values: int, write: Callable[[Body, Carried], Carried]) -> float:
    """Bundles of a loop that keeps `values` in registers from trip to trip.

    Trips overlap as far as a few of them do in one schedule.
    """
    first, interval = trip_and_interval(values, write)
    if interval > LONGEST_INTERVAL:
        return trips * first
    return first + (trips - 1) * interval


@cache
def _without(write: Callable[[Body], object]) -> Callable[[Body, Carried], Carried]:
    def trip(body: Body, _: Carried) -> Carried:
        write(body)
        return ()

    return trip


@cache
def trip_and_interval(values: int, write: Callable[[Body, Carried], Carried]) -> tuple[int, float]:
    """Bundles of one trip, and what each of four further ones adds."""

    def several(trips: int) -> int:
        body = Body()
        kept: Carried = (None,) * values
        for _ in range(trips):
            kept = write(body, kept)
        for value in kept:
            body.add(STORE, value)
        return body.scheduled()

    first = several(1)
    return first, (several(5) - first) / 4
