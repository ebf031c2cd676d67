"""Build a design package: MLIR, kernels, xclbin, manifest.

    build(fused_dqp.build(device("npu2")), Path("overlays/fused_dqp"))
    build_together([decode.build(npu2), gemm.build(npu2)], Path("overlays"))    # one xclbin

Needs mlir_aie, Peano and XRT's xclbinutil; if one is missing, the error says what to install.
docs/npu-toolchain.md says which of these steps have run with the real tools.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ort_aie_ep import aie_kernels
from ort_aie_ep.aie_kernels.mlir import report
from ort_aie_ep.aie_kernels.mlir.module import object_file, print_module
from ort_aie_ep.aie_kernels.mlir.sequences import Run
from ort_aie_ep.aie_kernels.mlir.toolchain import (
    INSTALL,
    Toolchain,
    ToolchainError,
    find_toolchain,
    run,
)
from ort_aie_ep.formats.q4nx import FORMS, SHIPPING, BlockForm
from ort_aie_ep.npu import peano
from ort_aie_ep.npu.packages.package import (
    MANIFEST,
    MAX_KERNEL_NAME,
    Package,
    manifest,
    require_replaceable,
    write_package,
    xclbin_uuid,
)
from ort_aie_ep.npu.terms.configuration import configure
from ort_aie_ep.npu.terms.design import Design, package_name
from ort_aie_ep.npu.terms.device import Architecture, Device
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.npu.terms.kernel import Kernel
from ort_aie_ep.progress import Count, Progress

SOURCES = Path(__file__).parent

#: The forms of weights for which `kernels build all` builds each design that reads weights: that of
#: .q4nx files; that of the model builder's int4, which is symmetric; and that of AWQ. Weights in
#: other forms are read in the smallest of these that holds them.
BUILT_FORMS = (SHIPPING, BlockForm(minima=False), BlockForm(group=128))

_FIRST_KERNEL_ID = 0x901  # aiecc's
MAX_KERNELS = 32  # of a context: MAX_NUM_CUS of the driver's aie2_msg_priv.h


def find_designs() -> dict[str, Callable[..., Design]]:
    """By name, the `build` of the module `design` of every folder that has one."""
    packages = [m.name for m in pkgutil.iter_modules(aie_kernels.__path__) if m.ispkg]
    return {
        name: importlib.import_module(f"{aie_kernels.__name__}.{name}.design").build
        for name in packages
        if (SOURCES / name / "design.py").is_file()
    }


def find_packages(forms: Iterable[BlockForm] = BUILT_FORMS) -> dict[str, Callable[..., Design]]:
    """The designs, and those that read weights once more for each of the forms, by package."""
    found = find_designs()
    return found | {
        package_name(name, form): partial(make, form=form)
        for form in forms
        for name, make in found.items()
        if "form" in inspect.signature(make).parameters
    }


def designs_on(device: Device, forms: Iterable[BlockForm] = BUILT_FORMS) -> dict[str, Design]:
    """By package, the designs that `device` can run: others' kernels or layouts do not suit it."""
    found = {}
    for name, make in find_packages(forms).items():
        with suppress(DesignError):
            found[name] = make(device)
    return found


def make_design(name: str, device: Device, *, columns: int | None = None) -> Design:
    """The design of the package `name` on `device`, on `columns` of its columns if the design
    allows a choice. Its form need not be one of `BUILT_FORMS`.

    Raises DesignError, which lists the known designs or says that this one takes all columns.
    """
    known = find_packages(FORMS)
    if name not in known:
        raise DesignError(f"unknown design {name!r}; known: {', '.join(find_packages())}")
    if columns is None:
        return known[name](device)
    if "columns" not in inspect.signature(known[name]).parameters:
        raise DesignError(f"{name} takes all columns of {device.name}; choose a narrower device")
    return known[name](device, columns=columns)


def compile_command(
    tools: Toolchain, architecture: Architecture, source: Path, target: Path
) -> list[str]:
    """The command that compiles one kernel source for the tiles.

    The flags are those of mlir-aie's own driver (python/utils/compile/utils.py), with sections per
    function, so that a core links only the functions it calls, with stack sizes, which aiecc
    measures, and at the level that `peano` gives for the source.
    """
    return [
        str(tools.clang), str(source), "-c", "-o", str(target), f"-I{tools.include}", "-std=c++20",
        "-Wno-parentheses", "-Wno-attributes", "-Wno-macro-redefined", "-Wno-empty-body",
        peano.level(source.name).option, "-DNDEBUG", "-D__AIE_API_AIE_ADF_HPP__",
        f"--target={architecture}-none-unknown-elf",
        "-ffunction-sections", "-fdata-sections", "-fstack-size-section",
    ]  # fmt: skip


@dataclass(frozen=True)
class SharedXclbin:
    """A design's place in an xclbin of several: its kernel, and the xclbin of those before it."""

    kernel: str
    number: int  # from 0
    before: Path | None

    @property
    def options(self) -> list[str]:
        """Options of aiecc that add the PDI and the kernel to an xclbin (tools/aiecc/aiecc.cpp)."""
        return [
            f"--xclbin-kernel-name={self.kernel}", f"--xclbin-instance-name={self.kernel}",
            f"--xclbin-kernel-id={_FIRST_KERNEL_ID + self.number:#x}",
            *([] if self.before is None else [f"--xclbin-input={self.before}"]),
        ]  # fmt: skip


def aiecc_command(
    tools: Toolchain,
    folder: Path,
    mlir: Path,
    *,
    instructions: bool = False,
    shared: SharedXclbin | None = None,
) -> list[str]:
    """The command that makes `overlay.xclbin` and the report on addresses from an MLIR file.

    aiecc first tries to allocate by banks. That scheme counts a pinned buffer only in the bank
    where it begins, and refuses one that reaches into the next bank (AIEAssignBuffers.cpp). The
    sequential scheme keeps every buffer where it is.
    """
    return [
        str(tools.aiecc), f"--peano={tools.peano}",
        "--get-xclbin", f"--xclbin-name={folder / 'overlay.xclbin'}",
        *([] if shared is None else shared.options),
        *(["--get-npu-insts", f"--npu-insts-name={folder / 'insts.bin'}"] if instructions else []),
        "--alloc-scheme=basic-sequential",
        "--get-input-with-addresses", f"--output-dir={folder}", f"--tmpdir={folder}", str(mlir),
    ]  # fmt: skip


def tool_runs(design: Design) -> int:
    """How often `build` runs a compiler: for each source of kernels, and aiecc for the design."""
    return len(_kernels(design)) + 1


def build(
    design: Design, folder: Path, *, sequence: Run | None = None, progress: Progress | None = None
) -> Package:
    """Build the package of `design` in `folder`. `progress` counts runs of compilers.

    With `sequence`, the compiler's own instructions for that run are written beside the package as
    `<folder>.insts.bin`, to be compared with those that src/npu writes; the overlay is the same.
    Raises DesignError for what the dialect cannot express, and ToolchainError when a tool is
    missing or fails, or when the compiler has placed something elsewhere than it was told to.
    """
    tools = find_toolchain()
    versions = _versions(tools)
    with tempfile.TemporaryDirectory(prefix=f"{design.package}-") as name:
        work = Path(name)
        count = Count(progress, tool_runs(design))
        overlay = _overlay(tools, design, work, sequence, count)
        finished = manifest(design, toolchain=versions, uuid=xclbin_uuid(overlay))
        instructions = None if sequence is None else _output(work / "insts.bin")
        package = write_package(folder, finished, overlay)
        if instructions is not None:
            shutil.move(instructions, folder.with_name(f"{folder.name}.insts.bin"))
    return package


def build_together(
    designs: Sequence[Design], folder: Path, *, progress: Progress | None = None
) -> list[Package]:
    """Build packages `folder`/<package> that share one xclbin, with a kernel for each design.
    `progress` counts runs of compilers.

    The packages share a hardware context. They are replaced one by one, once the xclbin is
    complete. Raises DesignError for designs of several devices, for names that kernels cannot have
    and for too many designs; otherwise as `build` does.
    """
    devices = {design.device.name for design in designs}
    if len(devices) != 1:
        raise DesignError(f"one xclbin is for one device; the designs are for {sorted(devices)}")
    names = [design.package for design in designs]
    if len(set(names)) < len(names) or max(map(len, names)) > MAX_KERNEL_NAME:
        raise DesignError(
            f"the kernels of one xclbin have different names of at most {MAX_KERNEL_NAME} "
            f"characters, got {', '.join(names)}"
        )
    if len(designs) > MAX_KERNELS:
        raise DesignError(f"a context has {MAX_KERNELS} kernels at most, got {len(designs)}")
    for design in designs:
        require_replaceable(folder / design.package, MANIFEST)
    tools = find_toolchain()
    versions = _versions(tools)
    with tempfile.TemporaryDirectory(prefix="together-") as name:
        overlay = None
        count = Count(progress, sum(map(tool_runs, designs)))
        for number, design in enumerate(designs):
            work = Path(name) / design.package
            work.mkdir()
            shared = SharedXclbin(design.package, number, overlay)
            overlay = _overlay(tools, design, work, None, count, shared)
        assert overlay is not None
        uuid = xclbin_uuid(overlay)
        return [
            write_package(
                folder / design.package,
                manifest(design, toolchain=versions, uuid=uuid, kernel=design.package),
                overlay,
            )
            for design in designs
        ]


def _overlay(
    tools: Toolchain,
    design: Design,
    work: Path,
    sequence: Run | None,
    count: Count,
    shared: SharedXclbin | None = None,
) -> Path:
    """Build the xclbin of `design` in the folder `work`."""
    text = print_module(design, sequence)
    for kernel in _kernels(design):
        count.begin(f"{design.package}: {kernel.source}")
        _compile(tools, design.device.architecture, kernel, work)
        count.step()
    mlir = work / "aie.mlir"
    mlir.write_text(text)
    # In the folder of the objects: link_with is relative to the MLIR.
    command = aiecc_command(tools, work, mlir, instructions=sequence is not None, shared=shared)
    count.begin(f"{design.package}: aiecc")
    run(command, "aiecc", work)
    count.step()
    overlay = _output(work / "overlay.xclbin")
    report.compare(configure(design), _output(work / "input_with_addresses.mlir").read_text())
    return overlay


def _versions(tools: Toolchain) -> dict[str, str]:
    """The compilers' versions, for the manifest. Raises ToolchainError for a Peano that is known to
    compile wrongly."""
    version = tools.peano_version()
    for known in (tools.peano_package, version):
        what = peano.wrong_version(known)
        if what is not None:
            raise ToolchainError(f"Peano {known} {what}; install another (see below).\n{INSTALL}")
    return {"mlir_aie": tools.version, "peano": version}


def _kernels(design: Design) -> list[Kernel]:
    """One kernel for each source that the workers need."""
    by_source = {k.source: k for w in design.workers.values() for k in w.kernels}
    return [by_source[source] for source in sorted(by_source)]


def _compile(tools: Toolchain, architecture: Architecture, kernel: Kernel, folder: Path) -> None:
    source = SOURCES / kernel.source
    if not source.is_file():
        raise ToolchainError(f"kernel {kernel.name}: there is no source {source}")
    mistakes = peano.mistakes_of(kernel.source)
    if mistakes:
        raise ToolchainError("\n".join(("Peano would compile this wrongly:", *mistakes)))
    command = compile_command(tools, architecture, source, folder / object_file(kernel))
    run(command, f"Peano on {kernel.source}", folder)


def _output(path: Path) -> Path:
    if not path.is_file():
        raise ToolchainError(f"aiecc ended well and did not write {path.name}")
    return path
