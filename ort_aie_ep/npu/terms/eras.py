"""Constants that depend on when, and on what platform, they were measured: eras, chosen by name.

"papers" has the constants of 2025, fitted to two papers (`costs`). "mlir-air" has those that the
nightly measurements of AMD's open decoder in 2026 imply, on a Krackan with faster drivers whose
host ran in the platform profile "performance". The same build of that decoder made 42.5 tokens/s in
the profile "balanced" and 64.1 in "performance" (llama-3.2-1b, 18 August 2026). "silicon-2026" is
the same machine with the clock and the kernels' cycles that explain its measured prompts
(lab/silicon_2026).

Limits that must hold everywhere, such as the length of a run before the watchdog acts, come from
"papers". Everything that is not here (streams inside of the array, the command processor) has one
value, in `costs`. NPU1 has its own bandwidth and clock in every era.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.costs import Cost
from ort_aie_ep.npu.terms.device import Device
from ort_aie_ep.npu.terms.errors import DesignError

EraName = Literal["papers", "mlir-air", "silicon-2026"]


@dataclass(frozen=True)
class Platform:
    """The machine on which an era's constants hold, as far as its sources state it."""

    processor: str
    memory: str
    power_mode: str
    profile: str
    driver: str


@dataclass(frozen=True)
class Era:
    """The constants that differ between eras.

    `clock` is that of the array. `shim_channel` is what one channel between DDR and the array
    carries; a stream between two tiles of the array carries `costs.STREAM`. `dispatch` is one run
    alone. `overlay_switch` is one change of overlay as the era's programs make it; `pdi_switch` is
    a change of PDI in one context. `gate_idle` is the time from a push to an idle shim channel
    until its first data.
    """

    name: EraName
    platform: Platform
    clock: Cost
    ddr_read: Cost
    ddr_write: Cost
    shim_channel: Cost
    gate_idle: Cost
    dispatch: Cost
    overlay_switch: Cost
    pdi_switch: Cost

    def ddr(self, architecture: str) -> tuple[Cost, Cost]:
        """The bandwidth of reads and of writes, over all shims of a device with `architecture`."""
        if architecture == "aie2":
            return costs.DDR_NPU1, costs.DDR_NPU1
        return self.ddr_read, self.ddr_write

    def clock_hz(self, device: Device) -> float:
        """The clock of the array of `device`."""
        return device.clock_hz if device.architecture == "aie2" else self.clock.value

    def shim_rate(self, device: Device) -> float:
        """The bytes a second of one shim channel of `device`, in one direction."""
        if device.architecture == "aie2":
            return costs.STREAM.value * device.clock_hz
        return self.shim_channel.value

    def all_costs(self) -> dict[str, Cost]:
        """The era's constants, by field."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Cost)}


PAPERS = Era(
    name="papers",
    platform=Platform(
        "Ryzen AI 5 340, Ryzen AI 7 350 (Krackan)", "DDR5-5600",
        "paper 1: performance, fixed clocks; paper 2: not stated", "not stated",
        "2025, versions not stated",
    ),
    clock=costs.CLOCK,
    ddr_read=costs.DDR_READ,
    ddr_write=costs.DDR_WRITE,
    shim_channel=Cost(
        costs.STREAM.value * costs.CLOCK.value, "B/s", "NPU2",
        "paper 1 counts 4 B x 1.8 GHz for each shim channel", "documented",
    ),
    gate_idle=costs.GATE_IDLE,
    dispatch=costs.DISPATCH,
    overlay_switch=costs.OVERLAY_SWITCH,
    pdi_switch=costs.PDI_SWITCH,
)  # fmt: skip

_DDR = Cost(
    65.1e9, "B/s", "Krackan",
    "mlir-air's nightly sweep of 2026-08-22: llama-3.1-8b reads 4,698 MB of weights in the 72.2 ms "
    "that a straight line through its eight contexts gives for no keys, all other work included. "
    "Its 16 projection cores cannot take more than 65.8 GB/s (140 bundles x 16 a block), so the "
    "memory may give more",
    "inferred",
)  # fmt: skip
MLIR_AIR = Era(
    name="mlir-air",
    platform=Platform(
        "Ryzen AI 5 PRO 340 (Krackan)", "2 x DDR5-5600", "turbo", "performance",
        "nightly builds of August 2026",
    ),
    clock=costs.CLOCK,
    ddr_read=_DDR,
    ddr_write=Cost(
        _DDR.value, "B/s", "Krackan",
        "assumed equal to reads, as for the papers; mlir-air's element-wise add moves 57.7 to 63.0 "
        "GB/s in both directions together", "inferred",
    ),
    shim_channel=Cost(
        10.27e9, "B/s", "Krackan",
        "the same sweep: gemma3-4b's row grows by 1.596 µs for 16 keys of a layer, in which each "
        "of its four channels of keys and values carries 16,384 B. This is more than 4 B at 1.8 "
        "GHz; nobody has published the clock of that machine", "inferred",
    ),
    gate_idle=Cost(
        1086, "cycles", "NPU1",
        "xdna-emu: from the first push after configuration to its data (its fit of cold tasks has "
        "747; only later pushes to an idle channel had 3,050). A layer of mlir-air's stream is a "
        "wave of about 20 µs with 58 tasks and six waits for an idle channel: the tasks take 16.6 "
        "µs at this project's cost of a task, and leave 1,020 cycles for each wait", "inferred",
    ),
    dispatch=Cost(
        75e-6, "s", "Krackan",
        "mlir-air: 70 µs for one XRT dispatch with lock and arguments, 80 µs for the smallest "
        "launch", "measured",
    ),
    overlay_switch=Cost(
        63e-6, "s", "Strix",
        "overlays as PDIs of one context: 60.5 to 65.7 µs a change (dispatch_micro report, XRT "
        "2.23). Changing between contexts costs more; nobody has published how much", "measured",
    ),
    pdi_switch=costs.PDI_SWITCH,
)  # fmt: skip

SILICON_2026 = replace(
    MLIR_AIR,
    name="silicon-2026",
    platform=replace(MLIR_AIR.platform, driver="nightly builds of September 2026"),
    clock=Cost(
        1.66e9, "Hz", "Krackan",
        "mlir-air published its parts on a Strix, at 1.8 GHz as far as anybody says. Its prompts "
        "on this machine take 1.08 times as long as these parts together (lab/silicon_2026, fitted "
        "to 19 of 28 prompts). mlir-air's own note says 1.57 GHz (docs/DFlashFeasibility.md)",
        "inferred", (1.57e9, 1.8e9),
    ),
)  # fmt: skip

ERAS: dict[str, Era] = {era.name: era for era in (PAPERS, MLIR_AIR, SILICON_2026)}


def era(name: str) -> Era:
    """The era called `name`. Raises DesignError, which lists the known names."""
    if name not in ERAS:
        raise DesignError(f"unknown era {name!r}; known: {', '.join(ERAS)}")
    return ERAS[name]
