"""Published attention kernels beside the counts of their issues, as Markdown.

The last columns of the first table are the cycles that this project's rule gives for them (the
count times `COMPILED`), and how far that is from what was measured. A second table divides the
calls of flash attention into what their scores do not explain and what they do.
"""

from __future__ import annotations

from dataclasses import replace

from npu_papers.attention import flash_attention, published
from npu_papers.kernels import flow_qkv_seconds
from npu_papers.tables import FLASH_ATTENTION
from ort_aie_ep.npu.terms import costs


def print_tables() -> None:
    """Prints both, and the line through flash attention's latencies."""
    print("| kernel of mlir-air, cycles | measured | counted | ratio | modelled | |")
    print("|---|---:|---:|---:|---:|---:|")
    for row in published():
        print(
            f"| {row.name} | {row.measured:,.0f} | {row.counted:,.0f} | "
            f"{row.measured / row.counted:.2f} | {row.modelled:,.0f} | "
            f"{row.modelled / row.measured - 1:+.0%} |"
        )
    line = flash_attention()
    errors = [line.seconds(call) / call.seconds - 1 for call in FLASH_ATTENTION]
    scores = ", ".join(
        f"{seconds * costs.CLOCK.value:.1f} cycles a score of {head_dim}"
        for head_dim, seconds in line.score.items()
    )
    print(
        f"\nflash attention: {line.run * 1e3:.2f} ms a run, {line.launch * 1e6:.0f} µs a launch, "
        f"{scores}; within {max(map(abs, errors)):.0%} of {len(errors)} rows\n"
    )
    print("| ms | measured | run and launches | scores | this project | without its mask |")
    print("|---|---:|---:|---:|---:|---:|")
    for call in FLASH_ATTENTION:
        fixed = line.fixed(call)
        times = (
            call.seconds, fixed, line.seconds(call) - fixed, flow_qkv_seconds(call),
            flow_qkv_seconds(replace(call, causal=False)),
        )  # fmt: skip
        print(f"| {call.name} | {' | '.join(f'{seconds * 1e3:.3g}' for seconds in times)} |")
