"""What things cost on the NPU: every constant with its unit, device, source and status.

The discrete-event simulator and the performance model take all their numbers from this module.
Nobody has published figures for the control path of NPU2; the figures here were measured on NPU1
silicon and are marked so. Sources by name: mlir-aie, IRON and aie-rt are AMD's repositories, AM020
AMD's AIE-ML manual, xdna-emu the repository FIM43-Redeye/xdna-emu, "paper 1" *Efficient LLM
Decoding on Ryzen AI NPUs*, "paper 2" *Mapping Gemma3 onto an Edge Dataflow Architecture*.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["measured", "documented", "inferred", "fitted"]


@dataclass(frozen=True)
class Cost:
    """A constant and where it comes from.

    `device` is the device for which the figure holds; for a measured figure, the device on which it
    was measured. `status` is "measured" (by the source, on silicon), "documented" (by a manual or a
    public source text), "inferred" (by the reasoning in `source`) or "fitted" (by
    `python lab/npu_papers fit` to the papers' tables). For a fitted constant, `interval` is the
    range that its sources allow, in the same unit.
    """

    value: float
    unit: str
    device: str
    source: str
    status: Status
    interval: tuple[float, float] | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        """The range that the sources allow: the value alone if there is no other."""
        return self.interval or (self.value, self.value)


# --- Fitted: three, none of them per model. -------------------------------------------------------

DDR_READ = Cost(
    43.9e9, "B/s", "Krackan",
    "paper 2 section 5: the NPU's reads are capped below 40 GB/s on its Krackan; IRON's GEMM "
    "sustains 41 to 47 GB/s on Strix; mlir-air's element-wise add 57.7 GB/s with writes",
    "fitted", (28.1e9, 57.7e9),
)  # fmt: skip
DISPATCH = Cost(
    210e-6, "s", "Krackan",
    "one run: 22.2 µs in a run list of 64 to 88.7 µs alone (dispatch_micro report, Strix, XRT "
    "2.23), 107 µs (IRON, NPU2), 197 to 200 µs (bitnet-xdna2-strix-halo, XRT 2.25); the 8,000 "
    "cycles that xdna-emu measured on NPU1 for the first wait of a run are included",
    "fitted", (22.2e-6, 200e-6),
)  # fmt: skip
OVERLAY_SWITCH = Cost(
    1.90e-3, "s", "Krackan",
    "to another context; 60.5 to 132.4 µs within one (dispatch_micro report, Strix), 40 ms for "
    "registering another xclbin with a context of its own (same report, cold)",
    "fitted", (60.5e-6, 40e-3),
)  # fmt: skip

PDI_SWITCH = Cost(
    63e-6, "s", "Strix",
    "60.5 to 65.7 µs a change, whatever the columns: LOADPDI in a stream of a full ELF "
    "(dispatch_micro report, XRT 2.23). When a run uses another kernel of the same xclbin, the "
    "firmware loads that kernel's PDI likewise; nobody has published how long this takes",
    "inferred",
)  # fmt: skip

# --- Clock, streams, DDR --------------------------------------------------------------------------

CLOCK = Cost(1.8e9, "Hz", "NPU2", "amdxdna's table of the NPU4 family, highest level", "documented")
STREAM = Cost(
    4, "B/cycle", "NPU1, NPU2",
    "AM020: 32-bit streams; paper 1 counts 4 B x 1.8 GHz a channel on NPU2", "documented",
)  # fmt: skip
DDR_WRITE = Cost(
    DDR_READ.value, "B/s", "Krackan",
    "assumed equal to the fitted read figure: AXI reads and writes have channels of their own, and "
    "mlir-air's element-wise add moves 38.5 GB/s in and 19.2 GB/s out at once", "inferred",
)  # fmt: skip
DDR_NPU1 = Cost(
    28.1e9, "B/s", "NPU1",
    "memcpy of 64 MiB through four channels on an 8700G, each way (ryzen-ai-xdna1-quantization)",
    "measured",
)  # fmt: skip

# --- Tasks of the DMAs ----------------------------------------------------------------------------

BD_SETUP = Cost(4, "cycles", "NPU1", "xdna-emu: from a buffer descriptor to the next", "measured")
LOCK_ACQUIRE = Cost(1, "cycles", "NPU1", "xdna-emu: uncontended, from a core", "measured")
GATE_IDLE = Cost(
    3050, "cycles", "NPU1",
    "xdna-emu: from a push to an idle shim channel to its first data, DDR's latency included",
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

# --- Kernels on AIE2P, as published. aie_kernels/*/kernels.py has the costs of this project's. ----

DEQUANT_BLOCK = Cost(
    2115, "cycles/block", "NPU2", "mlir-aie's kernel table: q4nx dequant of 5,120 B", "measured"
)
GEMM_RATE = Cost(
    128, "MAC/cycle", "NPU2",
    "bf16 through bfp16 as seen in practice (amd/IRON issue 55); the best published 14.71 TFLOP/s "
    "of 32 cores (arXiv 2512.13282) is the same figure", "measured",
)  # fmt: skip
FLOW_KV_RATE = Cost(
    20, "MAC/cycle", "NPU2",
    "mlir-aie's kernel table: matvec bf16 4 x 2048 in 408 cycles", "measured",
)  # fmt: skip
FLOW_QKV_RATE = Cost(
    23, "MAC/cycle", "NPU2",
    "mlir-aie's kernel table: prefill_fv at head dimension 256, 16 x 16 x 256 in 2,707 to 2,963 "
    "cycles", "measured",
)  # fmt: skip
PRODUCT_RATE = Cost(
    107.5, "MAC/cycle", "NPU2",
    "bf16 through bfp16: a core's products in the line through 34 published products of mlir-air, "
    "194 a nanosecond (lab/silicon_2026), at 1.8 GHz. Steps of K, ends of blocks and launches come "
    "on top there", "inferred",
)  # fmt: skip
TOKEN_ATTENTION_RATE = Cost(
    8.3, "MAC/cycle", "Krackan",
    "of a pair of cores, both products, heads of 64: what 16 more keys of a layer take mlir-air's "
    "llama-3.2-1b from 1k to 32k (68.44 and 19.05 tokens/s), 1.19 µs for 8 queries, at 1.66 GHz. "
    "Its own count is 868 + 1,500 bundles, one core after the other", "inferred", (6.9, 8.8),
)  # fmt: skip
WIDE_TOKEN_ATTENTION_RATE = Cost(
    10.4, "MAC/cycle", "Krackan",
    "the same for heads of 128, by qwen3-8b (12.68 and 4.65 tokens/s): 1.91 µs. Its own count is "
    "1,343 + 2,917 bundles", "inferred", (7.7, 11),
)  # fmt: skip
PROMPT_ATTENTION_RATE = Cost(
    35.4, "MAC/cycle", "NPU2",
    "of a core, both products and the softmax: what mlir-air's prompt of 4,096 gained when cores "
    "had half as many keys (pull request #1940: 1,848 to 2,068 tokens/s), at 1.8 GHz "
    "(lab/silicon_2026)", "inferred",
)  # fmt: skip
DQP_BLOCK_2026 = Cost(
    5120 * 16 / 65.1e9 * 1.66e9, "cycles/block", "Krackan",
    "sixteen projection cores of mlir-air's decoder take 65.1 GB/s of blocks of 5,120 B (eras.py), "
    "at 1.66 GHz", "inferred",
)  # fmt: skip
RMS_NORM = Cost(438 / 1024, "cycles/element", "NPU2", "mlir-aie's kernel table", "measured")
ADD = Cost(150 / 1024, "cycles/element", "NPU2", "mlir-aie's kernel table", "measured")
MUL = Cost(142 / 1024, "cycles/element", "NPU2", "mlir-aie's kernel table", "measured")
ROPE = Cost(298 / 1024, "cycles/element", "NPU2", "mlir-aie's kernel table", "measured")
SILU = Cost(211 / 1024, "cycles/element", "NPU2", "mlir-aie's kernel table", "measured")
GELU = Cost(318 / 1024, "cycles/element", "NPU2", "mlir-aie's kernel table", "measured")


def ddr(architecture: str) -> tuple[Cost, Cost]:
    """The bandwidth of reads and of writes, over all shims of a device with `architecture`."""
    return (DDR_NPU1, DDR_NPU1) if architecture == "aie2" else (DDR_READ, DDR_WRITE)


def all_costs() -> dict[str, Cost]:
    """Every constant of this module, by name."""
    return {name: value for name, value in globals().items() if isinstance(value, Cost)}
