"""The command `validate`: design packages on a real NPU, against numpy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ort_aie_ep.cli import console
from ort_aie_ep.cli.application import app

if TYPE_CHECKING:
    from ort_aie_ep.npu.design import Design
    from ort_aie_ep.npu.device import Device


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
    from ort_aie_ep.npu.validate import validate
    from ort_aie_ep.npu.validate.report import render, write

    report = validate(package, quick=quick, make_design=_design, progress=console.note)
    console.out.print(render(report), markup=False, highlight=False, soft_wrap=True)
    if out is not None:
        write(report, out)
    if not report.passed:
        raise typer.Exit(1)


def _design(name: str, device: Device) -> Design:
    """The library's design for a package called `name`: a design's own name, or that with a
    variant (gemm_bf16)."""
    from ort_aie_ep.aie_kernels.build import find_designs, make_design

    known = [each for each in find_designs() if f"{name}_".startswith(f"{each}_")]
    return make_design(max(known, key=len, default=name), device)
