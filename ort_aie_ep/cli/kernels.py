"""The commands `kernels ...` for the NPU's designs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ort_aie_ep.cli import console
from ort_aie_ep.cli.application import app
from ort_aie_ep.cli.options import Json
from ort_aie_ep.errors import AieError
from ort_aie_ep.progress import Count, within

if TYPE_CHECKING:
    from ort_aie_ep.aie_kernels.mlir.sequences import Run
    from ort_aie_ep.npu.simulator.machine import Result
    from ort_aie_ep.npu.terms.design import Design
    from ort_aie_ep.npu.terms.sequence import Sequence

kernels = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")
app.add_typer(
    kernels,
    name="kernels",
    help="List, check, simulate, print and build the designs for the NPU.",
)

DesignName = Annotated[
    str,
    typer.Argument(
        metavar="DESIGN",
        help="A name from `kernels list`, or all. decode_128 is decode for groups of 128.",
    ),
]
OneDesign = Annotated[
    str,
    typer.Argument(
        metavar="DESIGN",
        help="A name from `kernels list`. decode_128 is decode for groups of 128.",
    ),
]
DeviceName = Annotated[str, typer.Option("--device", help="A device from `kernels list`.")]
Columns = Annotated[
    int | None, typer.Option(help="Number of columns, for a design that can use fewer than all.")
]


def _designs(name: str, device: str, columns: int | None = None) -> list[Design]:
    """The design `name`, or all designs that exist for the device; a note names the others."""
    from ort_aie_ep.aie_kernels.build import find_packages, make_design
    from ort_aie_ep.npu.terms.device import device as find_device
    from ort_aie_ep.npu.terms.errors import DesignError

    target = find_device(device)
    if name != "all":
        return [make_design(name, target, columns=columns)]
    if columns is not None:
        raise AieError(f"--columns {columns} works with one design, not with all: name a design")
    made = []
    for known, make in find_packages().items():
        try:
            made.append(make(target))
        except DesignError as error:
            console.note(f"{known}: {error}")
    return made


@kernels.command("list")
def list_command(as_json: Json = False) -> None:
    """List the designs, the devices they exist for, and their sequences."""
    from rich import box
    from rich.table import Table

    from ort_aie_ep.aie_kernels.build import designs_on, find_designs
    from ort_aie_ep.npu.terms.device import DEVICES

    table = Table("design", "sequences", "devices", box=box.SIMPLE_HEAD, pad_edge=False)
    rows = []
    there = {device.name: designs_on(device, ()) for device in DEVICES.values()}
    for name in find_designs():
        made = {device: designs[name] for device, designs in there.items() if name in designs}
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
def check_command(
    design: DesignName, device: DeviceName = "npu2", columns: Columns = None, as_json: Json = False
) -> None:
    """Check that a design fits a device and makes progress.

    The exit code is 1 if a design fails. Sizes of programs and stacks are not checked: only the
    compiler knows them.
    """
    from ort_aie_ep.npu.checks.check import examine

    designs, reports = _designs(design, device, columns), []
    with console.bar("kernels check", "designs") as progress:
        count = Count(progress, len(designs))
        for made in designs:
            count.begin(made.package)
            reports.append(examine(made))
            count.step()
    if as_json:
        print(json.dumps([report.to_json() for report in reports], indent=1))
    else:
        for report in reports:
            console.out.print(report.render())
    if not all(report.passed for report in reports):
        raise typer.Exit(1)


@kernels.command("simulate")
def simulate_command(
    design: OneDesign,
    sequence: Annotated[
        str, typer.Argument(metavar="SEQUENCE", help="One of the design's sequences.")
    ],
    shape: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A parameter of the sequence. Repeat for each."),
    ] = None,
    device: DeviceName = "npu2",
    columns: Columns = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a timeline to this file; open it in ui.perfetto.dev.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a sequence on the modelled NPU with random data, and report times, bytes and waits.

    ```
    ort-aie kernels simulate fused_dqp matvec --shape N=2048 --shape K=2048 --shape bias=0 \\
      --trace dqp.json
    ```
    """
    from ort_aie_ep.aie_kernels.build import make_design
    from ort_aie_ep.npu.checks.check import check
    from ort_aie_ep.npu.simulator.session import Session, random_buffers
    from ort_aie_ep.npu.terms.device import device as find_device

    made = make_design(design, find_device(device), columns=columns)
    check(made)
    values = _values(_sequence(made, sequence), shape or [])
    buffers = random_buffers(made, sequence, values)
    session = Session(made, trace=trace is not None)
    with console.bar("kernels simulate", "operations") as progress:
        results = session.run(sequence, values, buffers, progress)
    if as_json:
        print(json.dumps([dataclasses.asdict(result) for result in results], indent=1))
    else:
        for result in results:
            console.out.print(_summary(made, result), highlight=False)
    if trace is not None:
        try:
            session.machine.trace.write(trace)
        except (OSError, ValueError) as error:  # ValueError: a path without a name
            raise AieError(f"{trace} cannot be written: {error}") from None


def _summary(design: Design, result: Result) -> str:
    busiest = max(result.workers, key=lambda n: result.workers[n]["kernel"])
    at_work = result.workers[busiest]["kernel"] / result.seconds
    channel = max(result.channels, key=lambda n: result.channels[n])
    return (
        f"{design.name} on {design.device.name}: {result.seconds * 1e6:.1f} µs on the modelled NPU "
        "(costs of the control path measured on NPU1; nothing here has run on an NPU yet)\n"
        f"  {result.operations} operations, {result.read:,} bytes read "
        f"({result.read / result.seconds / 1e9:.1f} GB/s), {result.written:,} written\n"
        f"  busiest core: {busiest}, in kernels {at_work:.0%}\n"
        f"  busiest channel: {channel}, {result.channels[channel] / result.seconds:.0%}"
    )


@kernels.command("print")
def print_command(
    design: OneDesign,
    device: DeviceName = "npu2",
    columns: Columns = None,
    sequence: Annotated[
        str | None, typer.Option(help="Include the instructions for a run of this sequence.")
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A parameter of the sequence. Repeat for each."),
    ] = None,
) -> None:
    """Print a design as MLIR in mlir-aie's aie dialect, as `build` passes it to aiecc."""
    from ort_aie_ep.aie_kernels.build import make_design
    from ort_aie_ep.aie_kernels.mlir.module import print_module
    from ort_aie_ep.npu.terms.device import device as find_device

    made = make_design(design, find_device(device), columns=columns)
    run = _run(made, sequence, shape or [])
    print(print_module(made, run), end="")


@kernels.command("build")
def build_command(
    design: DesignName,
    out: Annotated[Path, typer.Option("--out", help="Folder to write the packages to.")],
    device: DeviceName = "npu2",
    columns: Columns = None,
    sequence: Annotated[
        str | None,
        typer.Option(help="Also keep aiecc's own instructions for a run of this sequence."),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A parameter of the sequence. Repeat for each."),
    ] = None,
    together: Annotated[
        bool,
        typer.Option(
            "--together",
            help="With all: build one xclbin, so that all designs share one hardware context.",
        ),
    ] = False,
) -> None:
    """Build design packages (overlay.xclbin and manifest.json) with mlir_aie and Peano.

    ```
    ort-aie kernels build fused_dqp --device npu2 --out overlays
    ort-aie kernels build all --device npu2 --out overlays --together
    ort-aie kernels build fused_dqp --out cmp --sequence matvec --shape N=512 --shape K=256 ...
    ```
    """
    from ort_aie_ep.aie_kernels.build import build, build_together, tool_runs
    from ort_aie_ep.npu.checks.check import check

    if together and (design != "all" or sequence is not None or shape):
        raise AieError(
            "--together builds all designs and keeps no instructions: give the design all, and "
            "leave out --sequence and --shape"
        )
    designs = _designs(design, device, columns)
    with console.bar("kernels build", "designs", "checking") as progress:
        count = Count(progress, len(designs))
        for made in designs:
            count.begin(made.package)
            check(made)
            count.step()
    built: list[Path] = []
    try:
        with console.bar("kernels build", "compilations") as progress:
            if together:
                built += (p.folder for p in build_together(designs, out, progress=progress))
                return
            done, total = 0, sum(map(tool_runs, designs))
            for made in designs:
                run, part = _run(made, sequence, shape or []), within(progress, done, total)
                built.append(build(made, out / made.package, sequence=run, progress=part).folder)
                done += tool_runs(made)
    finally:  # also names the packages that were built before a failure
        for folder in built:
            console.out.print(str(folder), markup=False, highlight=False, soft_wrap=True)


def _run(design: Design, name: str | None, shape: list[str]) -> Run | None:
    from ort_aie_ep.aie_kernels.mlir.sequences import Run

    if name is None:
        if shape:
            raise AieError(f"--shape {shape[0]} needs a sequence: give --sequence NAME too")
        return None
    sequence = _sequence(design, name)
    return Run(sequence, _values(sequence, shape))


def _sequence(design: Design, name: str) -> Sequence:
    if name not in design.sequences:
        raise AieError(
            f"design {design.name} has no sequence {name!r}; it has {', '.join(design.sequences)}"
        )
    return design.sequences[name]


def _values(sequence: Sequence, shape: list[str]) -> dict[str, int]:
    """The values of --shape, one for each parameter of the sequence."""
    values: dict[str, int] = {}
    for item in shape:
        key, _, number = item.partition("=")
        if not number.isdecimal():
            raise AieError(f"--shape {item}: expected NAME=VALUE with a whole number")
        if key in values:
            raise AieError(f"--shape {item}: {key} was already given as {values[key]}")
        values[key] = int(number)
    if set(values) != set(sequence.parameters):
        raise AieError(
            f"sequence {sequence.name} takes {', '.join(sequence.parameters) or 'nothing'}; got "
            f"{', '.join(values) or 'nothing'}: give --shape NAME=VALUE for each"
        )
    return values
