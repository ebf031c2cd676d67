"""The command `tune`: measures which kernels are fastest on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from ort_aie_ep.cli import console
from ort_aie_ep.cli.application import app
from ort_aie_ep.cli.options import Json


@app.command("tune")
def tune_command(
    threads: Annotated[
        int | None, typer.Option(min=1, help="Number of threads. Default: one for each core.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=60, help="Seconds for each role, all variants together.")
    ] = 3.0,
    forget: Annotated[
        bool,
        typer.Option(
            "--forget",
            help="Remove the stored result and the samples of sessions.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Measure which kernels are fastest on this machine, and store the result.

    The measurement takes about half a minute. On a busy machine nothing is stored. Else it stores a
    small file in your user cache, valid only for this CPU and this version's kernels, which each
    process reads once. Without it, rules choose the kernels by the CPU's vendor and features, and
    sessions try others that give the same bits while they run. `ort-aie doctor` shows the choice:

    ```
    ort-aie tune
    ort-aie tune --forget
    ```
    """
    from ort_aie_ep.cli.tables import tuning_table
    from ort_aie_ep.explain import tune as tuning

    if forget:
        gone = tuning.forget()
        console.note(f"removed: {gone}" if gone else "there is no stored result to remove")
        return
    with console.bar("tune", "roles") as progress:
        report = tuning.tune(threads, seconds, progress)
    if json:
        console.print_json(report)
        return
    console.out.print(tuning_table(report))
    console.heading(
        f'Shortest times with {report.threads} threads, in interleaved rounds. "Of read" compares '
        "with a plain read of the same weights. Bytes of symmetric weights that a kernel skips "
        "count as read."
    )
    if report.busy:
        console.note(f"nothing is stored, as this machine is busy: {report.busy}; try again later")
    else:
        console.note(f"stored: {report.file}")
