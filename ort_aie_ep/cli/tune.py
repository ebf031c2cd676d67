"""The command that measures which kernels are fastest on this machine: tune."""

from __future__ import annotations

from typing import Annotated

import typer

from ort_aie_ep.cli import console
from ort_aie_ep.cli.application import app
from ort_aie_ep.cli.options import Json


@app.command("tune")
def tune_command(
    threads: Annotated[int | None, typer.Option(min=1, help="Default: one for each core.")] = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=60, help="For each role, all variants together.")
    ] = 3.0,
    forget: Annotated[
        bool, typer.Option("--forget", help="Remove what was kept: rules choose again.")
    ] = False,
    json: Json = False,
) -> None:
    """Measure which kernels are fastest on this machine, and keep that.

    Without it, rules choose by the CPU's vendor and features. The measurement takes about half a
    minute and wants an otherwise idle machine. What it keeps is a small file in the user's cache,
    which the library reads when a process uses it first; it holds for this CPU and this version's
    kernels alone. `ort-aie doctor` shows the choice:

    ```
    ort-aie tune
    ort-aie tune --forget
    ```
    """
    from ort_aie_ep.cli.tables import tuning_table
    from ort_aie_ep.explain import tune as tuning

    if forget:
        gone = tuning.forget()
        console.note(f"removed: {gone}" if gone else "there was nothing to forget")
        return
    with console.bar("tune", "roles") as progress:
        report = tuning.tune(threads, seconds, progress)
    if json:
        console.print_json(report)
        return
    console.out.print(tuning_table(report))
    console.note(
        f"Least times of {report.threads} threads, variants taking turns. Of read: beside a plain "
        "read of the same weights; what of symmetric ones is skipped counts as read.\n"
        f"kept: {report.file}"
    )
