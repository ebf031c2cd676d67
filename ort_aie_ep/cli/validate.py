"""The commands `validate` and `first-day`: design packages on a real NPU, against numpy."""

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
        Path, typer.Argument(metavar="PACKAGE", help="A design package, or a folder of them.")
    ],
    out: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the report here too.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small shapes, few runs, no simulation.")
    ] = False,
) -> None:
    """Run every design of PACKAGE on this machine's NPU, against numpy. Exit code 1 if not right.

    Needs pyxrt, XRT's Python binding (`python3-xrt` on Debian and Ubuntu). Small shapes come first,
    then those of a layer of a 1B model; after that the costs of the control path are measured, and
    stand beside those that the model of the NPU uses. The report has the device and all versions:
    it is what to attach to a bug report.

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
            help="A folder of design packages; without it the one in the user's cache.",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="The report; a page .md stands beside it.")
    ] = Path("first-day.json"),
    build: Annotated[
        bool, typer.Option("--build", help="Build the overlays that are missing, with mlir_aie.")
    ] = False,
) -> None:
    """Try everything on this machine's NPU, in order, and say in three lines how it went.

    Chip, driver and XRT; the overlays; each design at small shapes, the one that only copies first,
    then at those of a layer; the constants of the NPU's model; tokens of the demonstration model,
    beside the host's. A step that fails is no end: the next one may tell why. The report is written
    after each, and Ctrl-C leaves what was found. Exit code 1 unless everything is right.

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
        return list(designs_on(find_device(device)))

    folder = overlays or overlay_folders()[-1] / (npu_device() or "npu2")
    if not out.parent.is_dir():
        raise AieError(f"--out {out}: {out.parent} is not a folder; make it first")
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
