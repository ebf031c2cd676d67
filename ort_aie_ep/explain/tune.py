"""`ort-aie tune`: measures which kernels are fastest on this machine, and saves the result.

The library chooses kernels by rules (`src/targets/host/kernels/choice.cc`) until a measurement of
this CPU, with the same kernels, says otherwise. Sessions measure while they run
(`src/targets/host/live_trials.h`), but only among kernels that give the same bits: what a model
computes depends on `tune` alone.

On a busy machine the fastest variant is the one that others left alone, so nothing is kept then.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from ort_aie_ep import _native
from ort_aie_ep.disk import ROOM
from ort_aie_ep.errors import AieError
from ort_aie_ep.machine import physical_cores
from ort_aie_ep.models.files import written_beside
from ort_aie_ep.progress import Count, Progress
from ort_aie_ep.runtime.kernels import this_cpu_by_rule

# The rules' choice stays unless another variant takes this much less time. Where arithmetic is the
# limit, two runs of the same code differ by that much; where memory is, variants this close came
# out in another order in whole models (src/targets/host/kernels/README.md).
_GAIN, _GAIN_OF_MEMORY = 0.03, 0.15
# A machine is busy if the threads, which want all of the CPU's time, get less of it than this, or
# if the best plain reads of memory differ by more than variants must.
_LEAST_SHARE, _READS = 0.95, 1 + _GAIN_OF_MEMORY


@dataclass(frozen=True)
class Trial:
    """A variant that was measured for a role.

    Attributes:
        role: what the kernels do.
        variant: which kernels.
        seconds: of its best turn.
        bandwidth: bytes of weights a second, including skipped ones; None if arithmetic limits the
            role.
        read: bytes a second that the same threads read from the same file at the time.
        rule: whether the rules choose it.
        chosen: whether it is chosen now.
    """

    role: str
    variant: str
    seconds: float
    bandwidth: float | None
    read: float
    rule: bool
    chosen: bool


@dataclass(frozen=True)
class Tuning:
    """The result of a measurement.

    Attributes:
        trials: by role, in the order of the roles.
        threads: how many.
        file: where the choice is kept.
        busy: why nothing was kept; empty if the choice was.
    """

    trials: tuple[Trial, ...]
    threads: int
    file: Path
    busy: str


def roles() -> list[str]:
    """The roles for which this CPU has a choice of kernels."""
    return [role for role in _native.kernel_variants() if _native.KernelTrials.candidates(role)]


def tune(
    threads: int | None, seconds: float, progress: Progress | None = None, weights: int = 0
) -> Tuning:
    """Measures all variants of each role for about `seconds`, and saves the fastest unless the
    machine is busy.

    `threads`: None means one for each core. `progress` counts roles. `weights`: bytes to
    measure with; 0 means far more than the last-level cache holds.

    Raises:
        AieError: there is no folder for the file, or it is full.
    """
    path = _native.kernel_measurement()[0]
    if not path:
        raise AieError("there is no home folder: set ORT_AIE_CACHE to a folder for measurements")
    file = Path(path)
    threads = threads or physical_cores()
    by_rule = {one.role: one.variant for one in this_cpu_by_rule()}
    found: list[Trial] = []
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        measuring = _native.KernelTrials(str(file.parent), threads, weights)
    except (OSError, ValueError) as error:
        raise AieError(f"nothing can be measured in {file.parent}: {error}; {ROOM}") from error
    every = roles()
    count = Count(progress, len(every))
    began, used = time.perf_counter(), time.process_time()
    reads = []
    for role in every:
        count.begin(role)
        size = measuring.bytes_of(role)
        # On a shared machine, bandwidth changes from one second to the next.
        before = measuring.read_bandwidth(seconds / 8)
        names = measuring.candidates(role)
        times = dict(zip(names, measuring.measure(role, seconds), strict=True))
        after = measuring.read_bandwidth(seconds / 8)
        reads += [before, after]
        best = choose(times, by_rule[role], _GAIN_OF_MEMORY if size else _GAIN)
        for name, taken in times.items():
            rate = size / taken if size else None
            rule = name == by_rule[role]
            found.append(Trial(role, name, taken, rate, max(before, after), rule, name == best))
        count.step()
    share = (time.process_time() - used) / (time.perf_counter() - began) / threads
    if busy := why_busy(share, reads):
        return Tuning(tuple(found), threads, file, busy)
    chosen = {trial.role: trial.variant for trial in found if trial.chosen}
    try:
        with written_beside(file) as out:
            out.write(_native.kernel_measurement_text(date.today().isoformat(), chosen))
    except OSError as error:
        raise AieError(f"{file} cannot be written: {error.strerror}; {ROOM}") from error
    return Tuning(tuple(found), threads, file, "")


def why_busy(share: float, reads: Sequence[float]) -> str:
    """Why a measurement cannot be trusted; empty if it can.

    `share` is the part of the time that the threads had, who wanted all of it, and `reads` the best
    plain reads of memory, in bytes a second, one after another.
    """
    if reads and share < _LEAST_SHARE:
        return f"other programs took {1 - share:.0%} of the CPU's time".replace("%", " %")
    if reads and max(reads) > _READS * min(reads):
        least, most = min(reads) / 1e9, max(reads) / 1e9
        return f"plain reads of memory vary from {least:.1f} to {most:.1f} GB/s"
    return ""


def choose(seconds: dict[str, float], by_rule: str, gain: float) -> str:
    """The fastest variant, or the rules' if the fastest saves less than `gain` of its time."""
    best = min(seconds, key=lambda name: seconds[name])
    if by_rule in seconds and seconds[best] > (1 - gain) * seconds[by_rule]:
        return by_rule
    return best


def forget() -> Path | None:
    """Removes the saved measurement, so that the rules choose again. None if there was none.

    Raises:
        AieError: it cannot be removed.
    """
    path = _native.kernel_measurement()[0]
    if not path:
        return None
    try:
        Path(path).unlink()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AieError(f"{path} cannot be removed: {error.strerror}") from error
    return Path(path)
