"""Counts of the work of this process's NPU targets, from `libort_aie_ep.so`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import Any

from ort_aie_ep.runtime.core_library import npu_counters_text


@dataclass(frozen=True)
class NpuCounters:
    """Sums over all sessions of the process, including closed ones.

    Attributes:
        runs: instruction streams executed.
        submissions: submissions of one or of a list of them, each with a wait.
        bytes_to: bytes copied or flushed to the device.
        bytes_from: bytes copied or flushed back.
        streams_kept: instruction streams that were reused, as they were or patched.
        streams_built: instruction streams that were built.
        streams_dropped: streams dropped to make room in the device's memory for instructions.
        stream_bytes: that memory's bytes that the kept streams take now.
        buffers: buffers alive now, including those that wait to be reused.
        buffer_bytes: their bytes.
        device_steps: steps of plans that the device executed.
        host_steps: reason → steps that it left to the host.
        host_steps_between: reason → steps that divided a plan into submissions, because the device
            had steps before and after them: steps of the host, and steps of the device that could
            not follow the ones before them.
        widened: reason → matrices of weights that were widened for the overlays, and take more
            bytes there than in the model.
        layer_tokens: tokens whose layers ran on the overlay fused_layer.
        layers_refused: reason → tokens for which that overlay was there, but not used; without
            plans, their attentions.
        fused_tokens: tokens of whole decoders that were one dispatch on an overlay of mlir-air.
        fused_refused: model and reason → tokens for which such an overlay was not used.
        retries: plans that ran again in a fresh context.
        fallbacks: plans that the host executed after a fault.
        cache_rows_sent: rows of K and V, of one head each, sent to the device.
        cache_rows_kept: such rows that the device already had.
        cache_bytes_compared: bytes that were compared to find those rows.
        compare_seconds: seconds that these comparisons took.
    """

    runs: int = 0
    submissions: int = 0
    bytes_to: int = 0
    bytes_from: int = 0
    streams_kept: int = 0
    streams_built: int = 0
    streams_dropped: int = 0
    stream_bytes: int = 0
    buffers: int = 0
    buffer_bytes: int = 0
    device_steps: int = 0
    host_steps: dict[str, int] = field(default_factory=dict)
    host_steps_between: dict[str, int] = field(default_factory=dict)
    widened: dict[str, int] = field(default_factory=dict)
    layer_tokens: int = 0
    layers_refused: dict[str, int] = field(default_factory=dict)
    fused_tokens: int = 0
    fused_refused: dict[str, int] = field(default_factory=dict)
    retries: int = 0
    fallbacks: int = 0
    cache_rows_sent: int = 0
    cache_rows_kept: int = 0
    cache_bytes_compared: int = 0
    compare_seconds: float = 0.0

    def __str__(self) -> str:
        """One line: what ran on the NPU, what did not, and why."""
        host = sum(self.host_steps.values())
        reasons = ", ".join(f"{reason}: {count}" for reason, count in self.host_steps.items())
        return (
            f"NPU: {self.device_steps} steps in {self.submissions} submissions, {self.runs} runs, "
            f"{self.bytes_to / 1e6:.1f} MB sent, {self.bytes_from / 1e6:.1f} MB received"
            + (f" · this CPU: {host} steps ({reasons})" if host else "")
            + (f" · after faults: {self.fallbacks}" if self.fallbacks else "")
        )


def npu_counters() -> NpuCounters:
    """The counters of the xrt and sim targets together; all are 0 until one has been opened.

    Raises:
        AieError: the package was installed without its library.
    """
    targets = json.loads(npu_counters_text()).values()
    by_reason = ("host_steps", "host_steps_between", "widened", "layers_refused", "fused_refused")
    sums: dict[str, Any] = {
        counter.name: sum(target[counter.name] for target in targets)
        for counter in fields(NpuCounters)
        if counter.name not in by_reason
    }
    sums |= {name: _sum_by_reason([target[name] for target in targets]) for name in by_reason}
    return NpuCounters(**sums)


def _sum_by_reason(counts: list[dict[str, int]]) -> dict[str, int]:
    steps: dict[str, int] = {}
    for count in counts:
        for reason, number in count.items():
            steps[reason] = steps.get(reason, 0) + number
    return steps
