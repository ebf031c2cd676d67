"""Composes mlir-air's prompts of 2026 and prints them beside the published table.

    python lab/silicon_2026

Prints how well lines hold the published times of the parts, the parts of four models beside those
that their READMEs state, then every cell of the table of prompts: with nothing fitted, and with two
constants fitted to two thirds of the cells. Needs the package, and nothing of a device.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from ort_aie_ep.prediction.measured import HYBRID, KRACKAN, PROMPTS, STRIX, STRIX_PROMPTS, cells
from silicon_2026 import parts, program


def table(title: str, *columns: str) -> Table:
    """An empty table; all columns but the first are numbers."""
    made = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for index, name in enumerate(columns):
        made.add_column(name, justify="left" if index == 0 else "right", no_wrap=index == 0)
    return made


def lines() -> Iterable[Table]:
    """How well the lines hold."""
    made = table("Lines through published parts (Strix)", "part", "rows", "median error", "worst")
    found = {
        **{f"product, {method}": parts.product_line(method) for method in parts.TILE_M},
        "attention, head-first": parts.attention_line(),
        **{operator: parts.vector_line(operator) for operator in parts.VECTORS},
    }
    for name, line in found.items():
        errors = np.abs(line.errors)
        made.add_row(name, str(len(errors)), f"{np.median(errors):.1%}", f"{errors.max():.1%}")
    yield made
    call, multiply, step, element = parts.product_line("fused-cast").constants
    run, launch = parts.attention_line().constants
    made = table("Constants from these lines", "constant", "value", "unit")
    for name, value, unit in (
        ("two launches of a product and its cast", call * 1e6, "µs"),
        (
            "one launch of a product that casts itself",
            parts.product_line("drain").constants[0] * 1e6,
            "µs",
        ),
        ("a core's products", 1 / multiply / 1e9, "MAC/ns"),
        ("a step of K, in memory tiles", step * 1e6, "µs"),
        ("an element of C in a core, stored and cast", element * 1e9, "ns"),
        ("a call of attention", run * 1e6, "µs"),
        ("a launch of attention", launch * 1e6, "µs"),
        ("a core's seq-first attention", parts.attention_rate() / 1e9, "MAC/ns"),
        ("the vocabulary's weights", 1 / parts.vector_line("gemv").constants[1] / 1e3, "GB/s"),
    ):
        made.add_row(name, f"{value:.3g}", unit)
    yield made


def profiles() -> Iterable[Table]:
    """Parts beside those of READMEs; nothing is fitted to these."""
    made = table(
        f"Parts of a prompt of 2,048, {STRIX}: milliseconds, nothing fitted",
        "part", "published", "composed", "error",
    )  # fmt: skip
    for model, published in parts.PROFILES.items():
        composed = program.prompt(program.MODELS[model], 2048).parts
        for names, value in published.items():
            wanted = names.split(", ")
            seconds = sum(value for part, value in composed.items() if part in wanted)
            made.add_row(
                f"{model}: {names}", f"{value:,.0f}", f"{seconds * 1e3:.0f}",
                f"{seconds * 1e3 / value - 1:+.1%}",
            )  # fmt: skip
    yield made


def prompts() -> Iterable[Table | str]:
    """Every cell of the table of prompts."""
    fitted, held = program.split()
    constants, nothing = program.fit(fitted), program.Constants()
    every = cells(PROMPTS)
    made = table(
        f"Prompts, {KRACKAN}, 2026-09-14: seconds to the first token", "model", "tokens",
        "measured", "composed", "error", "unfitted", "attention", "host", "",
    )  # fmt: skip
    for cell in every:
        one = program.prompt(program.MODELS[cell.model], cell.tokens)
        seconds = one.seconds(constants)
        shares = [
            constants.device * one.parts["attention"],
            one.carried / constants.host,
        ]
        made.add_row(
            cell.model, f"{cell.tokens:,}", f"{cell.seconds:.3f}", f"{seconds:.3f}",
            f"{seconds / cell.seconds - 1:+.1%}", f"{program.error(cell, nothing):+.1%}",
            *(f"{share / seconds:.0%}" for share in shares), "held out" if cell in held else "",
        )  # fmt: skip
    yield made
    yield (
        f"{len(every)} cells; {', '.join(HYBRID)} ({sum(map(len, HYBRID.values()))} cells) is not "
        f"composed. Fitted: device x {constants.device:.3f}, host {constants.host / 1e9:.1f} GB/s."
    )
    worst = max(abs(program.error(cell, constants)) for cell in held)
    yield (
        f"Median error: {program.median_error(every, constants):.1%} of all, "
        f"{program.median_error(fitted, constants):.1%} of the {len(fitted)} fitted, "
        f"{program.median_error(held, constants):.1%} of the {len(held)} held out "
        f"(worst {worst:.1%}); {program.median_error(every, nothing):.1%} with nothing fitted."
    )
    others = []
    for first in range(program.HELD_OUT):
        fit, out = program.split(first)
        others.append(f"{program.median_error(out, program.fit(fit)):.1%}")
    yield f"Median of the held out, with each third held out in turn: {', '.join(others)}."
    made = table(
        f"Prompts on another machine, {STRIX}, by the same constants", "model", "tokens",
        "measured", "composed", "error",
    )  # fmt: skip
    for cell in cells(STRIX_PROMPTS):
        seconds = program.prompt(program.MODELS[cell.model], cell.tokens).seconds(constants)
        made.add_row(
            cell.model, f"{cell.tokens:,}", f"{cell.seconds:.3f}", f"{seconds:.3f}",
            f"{seconds / cell.seconds - 1:+.1%}",
        )  # fmt: skip
    yield made


def main() -> int:
    """Prints all tables."""
    console = Console(width=max(110, Console().width))
    for shown in (*lines(), *profiles(), *prompts()):
        console.print(shown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
