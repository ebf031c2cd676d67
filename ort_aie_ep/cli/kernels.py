"""Commands on the NPU's designs: list, check, build."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ort_aie_ep.cli import console
from ort_aie_ep.cli.application import app
from ort_aie_ep.cli.options import Json
from ort_aie_ep.errors import AieError

if TYPE_CHECKING:
    from ort_aie_ep.aie_kernels.iron.sequences import Run
    from ort_aie_ep.npu.design import Design

kernels = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")
app.add_typer(
    kernels, name="kernels", help="Designs of the NPU: what there is, does it fit, build."
)

DesignName = Annotated[str, typer.Argument(metavar="DESIGN", help="A name of `list`, or all.")]
DeviceName = Annotated[str, typer.Option("--device", help="A device of `list`.")]


def _designs(name: str, device: str) -> Iterator[Design]:
    """The design `name`, or all that exist for the device; the others are noted."""
    from ort_aie_ep.aie_kernels.build import find_designs, make_design
    from ort_aie_ep.npu.device import device as find_device
    from ort_aie_ep.npu.errors import DesignError

    target = find_device(device)
    if name != "all":
        yield make_design(name, target)
        return
    for known in find_designs():
        try:
            yield make_design(known, target)
        except DesignError as error:
            console.note(f"{known}: {error}")


@kernels.command("list")
def list_command(as_json: Json = False) -> None:
    """The designs, the devices they exist for, and their sequences."""
    from rich import box
    from rich.table import Table

    from ort_aie_ep.aie_kernels.build import find_designs
    from ort_aie_ep.npu.device import DEVICES
    from ort_aie_ep.npu.errors import DesignError

    table = Table("design", "sequences", "devices", box=box.SIMPLE_HEAD, pad_edge=False)
    rows = []
    for name, make in find_designs().items():
        made = {}
        for device in DEVICES.values():
            try:
                made[device.name] = make(device)
            except DesignError:  # its kernels or its layout are not for this one
                continue
        sequences = {
            s.name: list(s.parameters) for d in made.values() for s in d.sequences.values()
        }
        calls = (f"{s}({', '.join(p)})" for s, p in sequences.items())
        table.add_row(name, "\n".join(calls), ", ".join(made))
        rows.append({"design": name, "devices": list(made), "sequences": sequences})
    if as_json:
        print(json.dumps(rows, indent=1))
    else:
        console.out.print(table)


@kernels.command("check")
def check_command(design: DesignName, device: DeviceName = "npu2", as_json: Json = False) -> None:
    """Does a design fit a device, and can it go on? Exit code 1 if not.

    What only the compiler can confirm (program size, stack) is shown as an estimate.
    """
    from ort_aie_ep.npu.check import examine

    reports = []
    for made in _designs(design, device):
        report = examine(made)
        reports.append(report)
        if not as_json:
            console.out.print(report.render())
    if as_json:
        print(json.dumps([report.to_json() for report in reports], indent=1))
    if not all(report.passed for report in reports):
        raise typer.Exit(1)


@kernels.command("build")
def build_command(
    design: DesignName,
    out: Annotated[Path, typer.Option("--out", help="Folder for the packages.")],
    device: DeviceName = "npu2",
    sequence: Annotated[
        str | None,
        typer.Option(help="Also keep the compiler's own instructions for a run of this one."),
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Its parameters, one each.")
    ] = None,
) -> None:
    """Build design packages (overlay.xclbin and manifest.json) with mlir_aie and Peano.

    ```
    ort-aie kernels build fused_dqp --device npu2 --out overlays
    ort-aie kernels build fused_dqp --out cmp --sequence matvec --shape N=512 --shape K=256 ...
    ```
    """
    from ort_aie_ep.aie_kernels.build import build
    from ort_aie_ep.npu.check import check

    for made in _designs(design, device):
        check(made)
        run = None if sequence is None else _run(made, sequence, shape or [])
        package = build(made, out / made.name, sequence=run)
        console.out.print(f"{package.folder}", markup=False, highlight=False, soft_wrap=True)


def _run(design: Design, name: str, shape: list[str]) -> Run:
    from ort_aie_ep.aie_kernels.iron.sequences import Run

    if name not in design.sequences:
        raise AieError(
            f"design {design.name} has no sequence {name!r}; it has {', '.join(design.sequences)}"
        )
    values = {}
    for item in shape:
        key, _, number = item.partition("=")
        if not number.isdecimal():
            raise AieError(f"--shape {item}: expected NAME=VALUE with a whole number")
        values[key] = int(number)
    return Run(design.sequences[name], values)
