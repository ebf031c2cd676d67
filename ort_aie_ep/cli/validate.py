"""The command `validate`: try everything on a real NPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ort_aie_ep.cli import console
from ort_aie_ep.cli.application import app
from ort_aie_ep.errors import AieError

if TYPE_CHECKING:
    from ort_aie_ep.bringup import Report


@app.command("validate")
def validate_command(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="FOLDER",
            help="A design package, or a folder of packages. Default: the one in your user cache.",
        ),
    ] = None,
    design: Annotated[
        list[str] | None,
        typer.Option(
            "--design", metavar="NAME", help="Try this design only, and no model. Repeatable."
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="FILE", help="The report. A readable .md page is written beside it."
        ),
    ] = Path("validate.json"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Use small shapes and few runs, and do not simulate.")
    ] = False,
) -> None:
    """Try everything on this machine's NPU, step by step, and summarise the result in three lines.

    The steps are: the chip, the driver and XRT; the overlays; each design at small shapes, starting
    with the one that only copies, then at the shapes of a 1B model, all compared with numpy; the
    constants of the NPU's model; tokens of the demonstration model, compared with the host. After
    a step that fails, the command continues, because a later step may show why. It writes the
    report after each step, so Ctrl-C leaves a valid report. The exit code is 1 unless every step
    succeeds.

    It needs pyxrt, XRT's Python binding (`python3-xrt` on Debian and Ubuntu).

    ```
    ort-aie validate ~/.cache/ort_aie_ep/overlays/npu2 --out validate.json
    ```
    """
    from ort_aie_ep.bringup import validate
    from ort_aie_ep.bringup.report import page_of, verdict, write
    from ort_aie_ep.explain.overlays import overlay_folders
    from ort_aie_ep.machine import npu_device

    if not out.parent.is_dir():
        raise AieError(f"--out {out}: {out.parent} is not a folder. Make it first.")

    def save(report: Report) -> None:
        write(report, out)

    with console.bar("validate", "tests") as progress:
        report = validate(
            folder or overlay_folders()[-1] / (npu_device() or "npu2"), save,
            designs=design or (), quick=quick, progress=progress,
        )  # fmt: skip
    for step in report.steps:
        console.note(f"{step.outcome:12}{step.name}: {step.says}")
    console.note(f"report: {out} and {page_of(out)}")
    for line in verdict(report):
        console.out.print(line, markup=False, highlight=False, soft_wrap=True)
    if report.interrupted:
        raise typer.Exit(130)
    if not report.passed:
        raise typer.Exit(1)
