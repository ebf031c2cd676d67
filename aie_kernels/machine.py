"""A device as closed forms of costs see it: what a stretch of work needs, and how long that takes.

An operator is a sequence of `Step`s. Within a step, the streams, the kernels and the DDR traffic
overlap and the slowest of them decides; steps follow each other. `aie_kernels/*/cost.py` has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ort_aie_ep.npu.terms import costs

Bound = Literal["DDR", "streams", "kernels", "control"]

CORE_ROWS, ALL_COLUMNS = 4, 8  # of npu2
BF16 = 2  # bytes
SHORT_RUN = 64  # bytes: the smallest transfer from or to DDR


@dataclass(frozen=True)
class Step:
    """A stretch of work in which everything overlaps.

    `shim` are bytes of the busiest channel between DDR and the array, `gates` the cycles that it
    waits between tasks. `streams` and `kernels` are cycles of the busiest channel inside of the
    array and of the busiest core, `commands` those of the command processor, `read` and `write`
    bytes of DDR. `control` are cycles before or after that overlap with nothing; `idle` counts the
    waits for the first data of a channel, during which the command processor has `meanwhile` cycles
    of work.
    """

    shim: float = 0
    gates: float = 0
    streams: float = 0
    kernels: float = 0
    commands: float = 0
    read: float = 0
    write: float = 0
    control: float = 0
    idle: float = 0
    meanwhile: float = 0


@dataclass(frozen=True)
class Machine:
    """npu2 as the model sees it. Bandwidths in bytes a second, the rest in seconds."""

    clock_hz: float = costs.CLOCK.value
    ddr_read: float = costs.DDR_READ.value
    ddr_write: float = costs.DDR_WRITE.value
    shim_channel: float = costs.SHIM_CHANNEL.value
    gate_idle: float = costs.GATE_IDLE.value / costs.CLOCK.value
    dispatch: float = costs.DISPATCH.value
    overlay_switch: float = costs.PDI_SWITCH.value  # all packages share a context

    def seconds(self, steps: tuple[Step, ...]) -> float:
        """The time that steps take, one after another."""
        return sum(self.by_bound(steps).values())

    def by_bound(self, steps: tuple[Step, ...]) -> dict[Bound, float]:
        """The seconds of steps, by what limits them."""
        total: dict[Bound, float] = {"DDR": 0.0, "streams": 0.0, "kernels": 0.0, "control": 0.0}
        for step in steps:
            alone: dict[Bound, float] = {
                "DDR": max(step.read / self.ddr_read, step.write / self.ddr_write),
                "streams": max(
                    step.shim / self.shim_channel + step.gates / self.clock_hz,
                    step.streams / self.clock_hz,
                ),
                "kernels": step.kernels / self.clock_hz,
                "control": step.commands / self.clock_hz,
            }
            slowest = max(alone, key=lambda bound: alone[bound])
            total[slowest] += alone[slowest]
            waits = max(step.idle * self.gate_idle, step.meanwhile / self.clock_hz)
            total["control"] += step.control / self.clock_hz + waits
        return total


#: Cycles of one shim task: eight descriptor words, an address patch and a push.
TASK = (
    costs.BLOCKWRITE.value
    + 8 * costs.BLOCKWRITE_WORD.value
    + costs.DDR_PATCH.value
    + costs.WRITE32.value
)


def weights_bytes(count: int, *, bfp16: bool) -> int:
    """Bytes of so many dequantised weights in bfp16 or bf16."""
    return count // 8 * 9 if bfp16 else count * BF16


def control(tasks: int, words: int = 0) -> float:
    """Cycles before an operator moves: shim tasks, and words of parameters and start locks.

    One of the tasks requests a token, and the operator waits for it. The time until the first data
    arrives is not included: `Step.idle` counts it.
    """
    return (
        tasks * TASK + words * costs.RTP_WORD.value + costs.MASKWRITE.value + costs.TCT_WAIT.value
    )


def stream(size: float) -> float:
    """The cycles that one channel needs for `size` bytes."""
    return size / costs.STREAM.value
