"""The commands `validate` and `first-day`: compare design packages on a real NPU with numpy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ort_aie_ep.cli import console
from ort_aie_ep.cli.application import app
from ort_aie_ep.errors import AieError
from ort_aie_ep.requirements import GET_RUNTIME, runtime_version

if TYPE_CHECKING:
    from ort_aie_ep.explain.machine import Finding
    from ort_aie_ep.npu.validate.first_day import FirstDay, Token


@app.command("validate")
def validate_command(
    package: Annotated[
        Path, typer.Argument(metavar="PACKAGE", help="A design package, or a folder of packages.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Also write the report to this file."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use small shapes and few runs, and do not simulate.")
    ] = False,
) -> None:
    """Run every design of PACKAGE on this machine's NPU and compare the results with numpy.

    The command needs pyxrt, XRT's Python binding (`python3-xrt` on Debian and Ubuntu). It runs
    small shapes first, then the shapes of a layer of a 1B model. It then measures the costs of the
    control path and shows them beside the costs that the model of the NPU uses. The report contains
    the device and all versions: attach it to a bug report. The exit code is 1 if a result is wrong
    or a run fails.

    ```
    ort-aie kernels build all --device npu2 --out overlays
    ort-aie validate overlays --json report.json
    ```
    """
    from ort_aie_ep.aie_kernels.build import make_design
    from ort_aie_ep.npu.validate import validate
    from ort_aie_ep.npu.validate.report import render, write

    with console.bar("validate", "tests") as progress:
        report = validate(package, quick=quick, make_design=make_design, progress=progress)
    console.out.print(render(report), markup=False, highlight=False, soft_wrap=True)
    if out is not None:
        write(report, out)
    if not report.passed:
        raise typer.Exit(1)


@app.command("first-day")
def first_day_command(
    overlays: Annotated[
        Path | None,
        typer.Argument(
            metavar="OVERLAYS",
            help="A folder of design packages. Default: the one in your user cache.",
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="FILE", help="The report. A readable .md page is written beside it."
        ),
    ] = Path("first-day.json"),
    build: Annotated[
        bool, typer.Option("--build", help="Build missing overlays with mlir_aie.")
    ] = False,
) -> None:
    """Try everything on this machine's NPU, step by step, and summarise the result in three lines.

    The steps are: the chip, the driver and XRT; the overlays; each design at small shapes, starting
    with the one that only copies, then at the shapes of a layer; the constants of the NPU's model;
    tokens of the demonstration model, compared with the host's. The command continues after a step
    that fails, because a later step may show why. It writes the report after each step, so Ctrl-C
    leaves a valid report. The exit code is 1 unless every step succeeds.

    ```
    ort-aie first-day ~/.cache/ort_aie_ep/overlays/npu2 --out first-day.json
    ```
    """
    from ort_aie_ep.aie_kernels.build import designs_on, make_design
    from ort_aie_ep.explain.machine import npu_device
    from ort_aie_ep.explain.overlays import overlay_folders
    from ort_aie_ep.npu.validate.first_day import Means, first_day
    from ort_aie_ep.npu.validate.first_day_report import page_of, verdict, write
    from ort_aie_ep.npu.vocabulary.device import device as find_device

    def wanted(device: str) -> list[str]:
        return list(designs_on(find_device(device), ()))

    folder = overlays or overlay_folders()[-1] / (npu_device() or "npu2")
    if not out.parent.is_dir():
        raise AieError(f"--out {out}: {out.parent} is not a folder. Make it first.")
    with console.bar("first-day", "tests") as progress:
        means = Means(
            look=_look, wanted=wanted, token=_token, make_design=make_design,
            build=_build if build else None, progress=progress,
        )  # fmt: skip

        def save(day: FirstDay) -> None:
            write(day, out)

        day = first_day(folder, means, save)
    for step in day.steps:
        console.note(f"{step.outcome:12}{step.name}: {step.says}")
    console.note(f"report: {out} and {page_of(out)}")
    for line in verdict(day):
        console.out.print(line, markup=False, highlight=False, soft_wrap=True)
    if day.interrupted:
        raise typer.Exit(130)
    if not day.passed:
        raise typer.Exit(1)


def _look() -> list[Finding]:
    from ort_aie_ep.explain.doctor import find_xrt_target
    from ort_aie_ep.explain.machine import Finding, find_npu

    version = runtime_version()
    runtime = Finding("ONNX Runtime", version, "" if version else GET_RUNTIME)
    return [runtime, *find_npu(), find_xrt_target()]


def _token(overlays: Path) -> Token:
    from ort_aie_ep.npu.validate.first_day import Token
    from ort_aie_ep.tools.first_token import run_apart

    return Token(**run_apart(overlays))


def _build(name: str, device: str, folder: Path) -> None:
    from ort_aie_ep.aie_kernels.build import build, make_design
    from ort_aie_ep.npu.checks.check import check
    from ort_aie_ep.npu.vocabulary.device import device as find_device

    design = make_design(name, find_device(device))
    check(design)
    build(design, folder)
