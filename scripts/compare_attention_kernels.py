"""Published attention kernels beside the counts of their issues, as a table.

    python scripts/compare_attention_kernels.py

The last columns are the cycles that this project's rule gives for them (the count times
`COMPILED`), and how far that is from what was measured.
"""

from __future__ import annotations

from ort_aie_ep.npu.speed.published_attention import FLASH_ATTENTION, flash_attention, published


def main() -> None:
    """Prints the table and the line through flash attention's latencies."""
    print("| kernel | measured | counted | ratio | modelled | |\n|---|---:|---:|---:|---:|---:|")
    for row in published():
        print(
            f"| {row.name} | {row.measured:,.0f} | {row.counted:,.0f} | "
            f"{row.measured / row.counted:.2f} | {row.modelled:,.0f} | "
            f"{row.modelled / row.measured - 1:+.0%} |"
        )
    line = flash_attention()
    errors = [line.seconds(heads, tokens) / (ms / 1e3) - 1 for heads, tokens, ms in FLASH_ATTENTION]
    print(
        f"\nflash attention: {line.run * 1e3:.2f} ms a run, {line.launch * 1e6:.0f} µs a launch, "
        f"{line.score * 1.8e9:.2f} cycles a score; within {max(map(abs, errors)):.0%} of "
        f"{len(errors)} rows"
    )


if __name__ == "__main__":
    main()
