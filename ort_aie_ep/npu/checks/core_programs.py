"""What Peano may make of a core's kernels: bytes of program, time to compile, stack, room in L1.

Only the compiler knows. These are ranges from the vector operations that the sources ask for, with
the loops unrolled that ask for it. They were counted on 2026-11-28 in assembly of g++, with each
function of the AIE API left as a call: one for each register of 512 bits of its widest vector, a
product for each instruction that the core needs for its lanes, moves between registers for nothing,
and the larger count of both architectures.

Bytes of an operation come from a kernel that others have compiled, counted in the same way:
mlir-air's GEMV of 4 bits (`fused_decode/kernels/q4_k.h`). Of its forms, 142 operations became 140
bundles, 187 also 140, and 155 became 113. A bundle has at most 16 bytes; objects of such GEMVs are
published at 1,360 bytes, 10 to a bundle. So an operation takes 7 to 16 bytes. A body that spills
takes more: that of 187 became 355 bundles with another correction of signs.

mlir-air's DFlashFeasibility.md has the times of fully unrolled bodies: 3 minutes for 3,400
bundles, 22 for twice as many. 16 KB hold 1,024 bundles of 16 bytes, so what fits compiles soon.

A stack that is too small is the most frequent mistake (mlir-aie #2275, #2280, #2345, mlir-air
#1980): it grows into the first buffer without a fault. mlir-air's frames of products grew from 960
to 1,216 bytes with LLVM 22, and exceeded the default of 1,024: answers became NaN. Newer aiecc
measures frames and refuses (mlir-aie #3613), which is why kernels are compiled with
-fstack-size-section.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from ort_aie_ep.npu import peano
from ort_aie_ep.npu.checks.report import Estimate, Findings
from ort_aie_ep.npu.checks.static_data import host_bytes
from ort_aie_ep.npu.terms.configuration import Configuration
from ort_aie_ep.npu.terms.design import Worker
from ort_aie_ep.npu.terms.device import PROGRAM_BYTES, TILES
from ort_aie_ep.npu.terms.kernel import Kernel

BARE_PROGRAM = 1024  # bytes: start-up code, locks and loops of a body; a guess
LEAST_BYTES, MOST_BYTES = 7, 16  # of an operation
KERNEL_BYTES = 64  # of a kernel beside its operations: arguments, loops, return

#: Operations from which a kernel needs more registers than a core has for vectors, so that its
#: frame is not empty; and what such a frame took in AMD's kernels without arrays of their own.
SPILLING_OPERATIONS = 50
LEAST_FRAME, MOST_FRAME = 960, 1216

#: AMD's figure for what buffers can use of L1: 64 KiB less 0xD00, the stack of its matrix product.
USABLE_L1 = 62_208

SLOW_BUNDLES = 3_400  # a body that took three minutes

_OPERATIONS = {
    "gelu_mul": 118, "silu_mul": 106, "copy_large": 2, "copy_small": 2,
    "q4nx_dequant": 78, "q4nx_dequant_step": 156, "q4nx_dequant_bfp16": 44, "flow_kv_begin": 4,
    "flow_kv_give_maxima": 3, "flow_kv_load_q": 2, "flow_kv_merge": 115, "flow_kv_output": 19,
    "flow_kv_pass": 5, "flow_kv_scores": 451, "flow_kv_values": 638, "flow_kv_values_begin": 2,
    "flow_qkv_begin": 4, "flow_qkv_load_q": 14, "flow_qkv_output": 22, "flow_qkv_schedule": 0,
    "flow_qkv_scores": 913, "flow_qkv_values": 410, "flow_qkv_values_begin": 2, "dqp_block": 241,
    "dqp_finish": 10, "dqp_load_bias": 2, "dqp_load_x": 54, "dqp_zero": 4, "gemm_store_bf16": 8,
    "gemm_tile": 72, "gemm_zero": 4, "gemm_tile_bfp16": 50,
    "layer_gate": 224, "layer_gather": 2, "layer_add": 7, "layer_norm": 13,
    "layer_norm_output": 13, "layer_scale": 104, "layer_pick": 2, "layer_select": 2,
    "layer_copy": 2, "layer_half": 2, "layer_load": 2, "layer_pass": 2, "layer_place": 2,
    "rms_add": 20, "rms_begin": 2, "rms_finish": 13, "rms_load": 15, "rms_scale": 93,
    "rms_sum": 2, "layer_rotate": 142, "qk_norm": 115, "rope": 27, "rows_begin": 0,
    "rows_prepare": 113, "rows_store": 5, "rows_take": 452,
}  # fmt: skip

#: Arrays that kernels keep on the stack (bytes).
_ARRAYS = {"flow_kv_scores": 6912, "flow_kv_merge": 128}

_PROGRAM_BASIS = (
    f"program bytes are {LEAST_BYTES} to {MOST_BYTES} for each vector operation that the kernels' "
    f"sources ask for once unrolled (142 to 187 were 140 bundles of 10 to 16 bytes in mlir-air's "
    f"GEMV), and {BARE_PROGRAM:,} for the rest; only the linker knows"
)
_STACK_BASIS = (
    f"stack is the kernels' arrays and {LEAST_FRAME} to {MOST_FRAME:,} bytes for what does not "
    "stay in registers, as AMD's products took by version of LLVM (mlir-air #1980), of what is "
    "reserved; only the compiler knows"
)
_L1_BASIS = (
    f"L1 bytes are buffers, and with the kernels' static data, of {USABLE_L1:,} that AMD states as "
    "usable (64 KiB less its stack of 0xD00), or of what a larger stack leaves"
)


def operations(kernel: Kernel) -> int | None:
    """How many vector operations the kernel's source asks for; None if it was not counted."""
    return _OPERATIONS.get(kernel.name)


def program_bytes(worker: Worker) -> tuple[int, int] | None:
    """The least and the most that the worker's program takes; None if a kernel is unknown."""
    counts = [operations(kernel) for kernel in worker.kernels]
    if None in counts:
        return None
    total = sum(count for count in counts if count is not None)
    beside = BARE_PROGRAM + KERNEL_BYTES * len(counts)
    return beside + LEAST_BYTES * total, beside + MOST_BYTES * total


def stack_bytes(worker: Worker) -> tuple[int, int] | None:
    """The least and the most that the worker's kernels need; None if a kernel is unknown."""
    least = most = 0
    for kernel in worker.kernels:
        count, arrays = operations(kernel), _ARRAYS.get(kernel.name, 0)
        if count is None:
            return None
        spills = count >= SPILLING_OPERATIONS
        least = max(least, arrays + (LEAST_FRAME if spills else 0))
        most = max(most, arrays + (MOST_FRAME if spills else 0))
    return least, most


def estimates(configuration: Configuration) -> Iterator[Estimate]:
    """The ranges of every worker whose kernels are known."""
    for worker in configuration.design.workers.values():
        tile = worker.tile
        program, stack = program_bytes(worker), stack_bytes(worker)
        if program is not None:
            yield Estimate(tile, "program bytes", *program, PROGRAM_BYTES, _PROGRAM_BASIS)
        if stack is not None:
            yield Estimate(tile, "stack bytes", *stack, worker.stack, _STACK_BASIS)
        buffers = configuration.memory[tile] - worker.stack
        data = host_bytes(worker)
        if data is not None:
            left = min(USABLE_L1, TILES[tile.kind].memory - worker.stack)
            yield Estimate(tile, "L1 bytes", buffers, buffers + data, left, _L1_BASIS)


def core_programs(findings: Findings, configuration: Configuration) -> None:
    """Refuse sources that Peano is known to compile wrongly, and programs and stacks whose least
    exceeds the limit; note what compiles slowly; say at which level sources are compiled."""
    slow: set[str] = set()
    unknown: set[str] = set()
    levels: dict[tuple[str, str], set[str]] = defaultdict(set)
    for worker in configuration.design.workers.values():
        for kernel in worker.kernels:
            level = peano.level(kernel.source)
            levels[level.option, level.reason].add(Path(kernel.source).name)
            if operations(kernel) is None:
                unknown.add(kernel.name)
            for mistake in peano.mistakes_of(kernel.source):
                findings.refuse(worker.tile, "source", mistake)
        for what, range_, limit, basis in (
            ("program bytes", program_bytes(worker), PROGRAM_BYTES, _PROGRAM_BASIS),
            ("stack bytes", stack_bytes(worker), worker.stack, _STACK_BASIS),
        ):
            if range_ is not None and range_[0] > limit:
                text = f"{range_[0]:,} at least; the limit is {limit:,} ({basis})"
                findings.refuse(worker.tile, what, text)
        slow |= {k.name for k in worker.kernels if (operations(k) or 0) >= SLOW_BUNDLES}
    for (option, reason), sources in levels.items():
        findings.facts.append(f"{option} for {', '.join(sorted(sources))}: {reason}")
    if unknown:
        findings.facts.append(
            f"no range of program and stack: kernels {', '.join(sorted(unknown))} were not counted"
        )
    for name in sorted(slow):
        findings.notes.append(
            f"kernel {name} is {_OPERATIONS[name]:,} operations once unrolled: Peano took 3 "
            "minutes for 3,400 bundles and 22 for twice as many (mlir-air, DFlashFeasibility.md)"
        )
