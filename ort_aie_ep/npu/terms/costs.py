"""Constants of the performance model, in one place, each with its source: one set.

They are those of the machine on which others measured AMD's open programs in 2026, a Ryzen AI 5 PRO
340 (Krackan) with 2 x DDR5-5600 in the NPU's power mode "turbo", whose host ran in the platform
profile "performance". The control path was measured on NPU1 only, and nothing by this project.

`SLOWEST_DDR`, `SLOWEST_GATE_IDLE` and the clock of `device.py` are not predictions: manifests carry
them, so that the runs that streams are divided into end before the driver's watchdog acts on the
slowest machine that was published, too.

mlir-air, mlir-aie, IRON and aie-rt are AMD's repositories, AM020 AMD's AIE-ML manual, xdna-emu the
repository FIM43-Redeye/xdna-emu, dispatch_micro a report of mlir-air, "paper 1" *Efficient LLM
Decoding on Ryzen AI NPUs*, "paper 2" *Mapping Gemma3 onto an Edge Dataflow Architecture*.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ort_aie_ep.npu.terms.device import Device

Status = Literal["measured", "documented", "inferred"]


@dataclass(frozen=True)
class Cost:
    """A constant and where it comes from.

    `device` is the device for which the figure holds; for a measured figure, the device on which it
    was measured. `status` is "measured" (by the source, on silicon), "documented" (by a manual or a
    public source text) or "inferred" (by the reasoning in `source`).
    """

    value: float
    unit: str
    device: str
    source: str
    status: Status


PROCESSOR = "Ryzen AI 5 PRO 340 (Krackan)"

# --- Clock, streams, DDR --------------------------------------------------------------------------

CLOCK = Cost(
    1.66e9, "Hz", "Krackan",
    "of npu2. mlir-air published its parts on a Strix, at 1.8 GHz as far as anybody says. Its "
    "prompts on this machine take 1.08 times as long as these parts together. mlir-air's own note "
    "says 1.57 GHz (docs/DFlashFeasibility.md)", "inferred",
)  # fmt: skip
STREAM = Cost(
    4, "B/cycle", "NPU1, NPU2",
    "AM020: 32-bit streams; paper 1 counts 4 B x 1.8 GHz a channel on NPU2", "documented",
)  # fmt: skip
SHIM_CHANNEL = Cost(
    10.27e9, "B/s", "Krackan",
    "mlir-air's sweep of 2026-08-22: gemma3-4b's row grows by 1.596 µs for 16 keys of a layer, in "
    "which each of its four channels of keys and values carries 16,384 B. This is more than 4 B at "
    "1.8 GHz", "inferred",
)  # fmt: skip
DDR_READ = Cost(
    65.1e9, "B/s", "Krackan",
    "the same sweep: llama-3.1-8b reads 4,698 MB of weights in the 72.2 ms that a straight line "
    "through its eight contexts gives for no keys, all other work included. Its 16 projection "
    "cores cannot take more than 65.8 GB/s (140 bundles x 16 a block), so the memory may give more",
    "inferred",
)  # fmt: skip
DDR_WRITE = Cost(
    DDR_READ.value, "B/s", "Krackan",
    "assumed equal to reads: AXI reads and writes have channels of their own, and mlir-air's "
    "element-wise add moves 38.5 GB/s in and 19.2 GB/s out at once", "inferred",
)  # fmt: skip
DDR_NPU1 = Cost(
    28.1e9, "B/s", "NPU1",
    "memcpy of 64 MiB through four channels on an 8700G, each way (ryzen-ai-xdna1-quantization)",
    "measured",
)  # fmt: skip
SLOWEST_DDR = Cost(
    43.9e9, "B/s", "Krackan",
    "what explains paper 1's tokens (a fit, 2026-11-28); paper 2 section 5 caps the NPU's reads "
    "below 40 GB/s on its Krackan, and IRON's GEMM sustains 41 to 47 GB/s on Strix", "inferred",
)  # fmt: skip

# --- Runs and overlays ----------------------------------------------------------------------------

DISPATCH = Cost(
    75e-6, "s", "Krackan",
    "mlir-air: 70 µs for one XRT dispatch with lock and arguments, 80 µs for the smallest launch",
    "measured",
)  # fmt: skip
PDI_SWITCH = Cost(
    63e-6, "s", "Strix",
    "60.5 to 65.7 µs a change, whatever the columns: LOADPDI in a stream of a full ELF "
    "(dispatch_micro, XRT 2.23). When a run uses another kernel of the same xclbin, the firmware "
    "loads that kernel's PDI likewise; nobody has published how long this takes", "inferred",
)  # fmt: skip
OVERLAY_SWITCH = Cost(
    1.90e-3, "s", "Krackan",
    "to another context, where overlays do not share one: what explains Gemma3-1B's prompt of 1k "
    "in paper 2 (a fit, 2026-11-28); registering another xclbin with a context of its own takes 40 "
    "ms (dispatch_micro, cold). Predictions have one context", "inferred",
)  # fmt: skip

# --- Tasks of the DMAs ----------------------------------------------------------------------------

BD_SETUP = Cost(4, "cycles", "NPU1", "xdna-emu: from a buffer descriptor to the next", "measured")
LOCK_ACQUIRE = Cost(1, "cycles", "NPU1", "xdna-emu: uncontended, from a core", "measured")
GATE_IDLE = Cost(
    1086, "cycles", "NPU1",
    "xdna-emu: from the first push after configuration to its data (its fit of cold tasks has "
    "747). A layer of mlir-air's stream is a wave of about 20 µs with 58 tasks and six waits for "
    "an idle channel: the tasks take 16.6 µs at the cost of a task here, and leave 1,020 cycles "
    "for each wait", "inferred",
)  # fmt: skip
SLOWEST_GATE_IDLE = Cost(
    3050, "cycles", "NPU1",
    "xdna-emu: from a later push to an idle shim channel to its first data, DDR's latency included",
    "measured",
)  # fmt: skip
GATE_PIPELINED = Cost(
    520, "cycles", "NPU1", "xdna-emu: the same with pushes waiting in the queue", "measured"
)

# --- The command processor ------------------------------------------------------------------------

WRITE32 = Cost(100.5, "cycles", "NPU1", "xdna-emu: 87 to 114", "measured")
RTP_WORD = Cost(100.5, "cycles", "NPU1", "xdna-emu: a WRITE32 to a core's memory", "measured")
MASKWRITE = Cost(210, "cycles", "NPU1", "xdna-emu", "measured")
BLOCKWRITE_WORD = Cost(13, "cycles/word", "NPU1", "xdna-emu: each further word", "measured")
BLOCKWRITE = Cost(
    99, "cycles", "NPU1", "xdna-emu: 203 cycles with 8 words, less 8 x 13", "inferred"
)
DDR_PATCH = Cost(
    210, "cycles", "NPU1",
    "not measured: assumed equal to a MASKWRITE, since it reads, adds and writes back", "inferred",
)  # fmt: skip
TCT_WAIT = Cost(
    100.5, "cycles", "NPU1", "assumed equal to a WRITE32, once the token is there", "inferred"
)
WATCHDOG_BUDGET = Cost(
    0.5, "s", "NPU1, NPU2",
    "a quarter of amdxdna's watchdog of 2 s: longer work is divided into runs", "inferred",
)  # fmt: skip


def ddr(architecture: str) -> tuple[Cost, Cost]:
    """The bandwidth of reads and of writes, over all shims of a device with `architecture`."""
    return (DDR_NPU1, DDR_NPU1) if architecture == "aie2" else (DDR_READ, DDR_WRITE)


def clock_hz(device: Device) -> float:
    """The clock of the array of `device`."""
    return device.clock_hz if device.architecture == "aie2" else CLOCK.value


def shim_rate(device: Device) -> float:
    """The bytes a second of one shim channel of `device`, in one direction."""
    if device.architecture == "aie2":
        return STREAM.value * device.clock_hz
    return SHIM_CHANNEL.value


def all_costs() -> dict[str, Cost]:
    """Every constant of this module, by name."""
    return {name: value for name, value in globals().items() if isinstance(value, Cost)}
