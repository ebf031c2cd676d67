"""`ort-aie doctor`: what is installed, whether the host target works, what an NPU needs."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
import numpy.typing as npt

import ort_aie_ep
from ort_aie_ep.errors import AieError
from ort_aie_ep.explain.pages import weight_pages
from ort_aie_ep.machine import XRT_TARGET, Finding, cpu_model, find_npu, npu_device
from ort_aie_ep.models.integrity import CheckedFile, check_files
from ort_aie_ep.progress import Progress
from ort_aie_ep.requirements import RUNTIME, SERVER, install_line, runtime_version
from ort_aie_ep.runtime.core_library import xrt_library

# What each is for, if it is optional, and the modules that are used with it.
_PACKAGES: dict[str, tuple[str, ...]] = {
    "onnxruntime-genai": ("runs whole models", "onnxruntime_genai"),
    "onnx-ir": ("", "onnx_ir"),
    "onnxscript": ("", "onnxscript"),
    "tokenizers": ("", "tokenizers"),
    "gguf": ("for GGUF files", "gguf"),
    "prompt_toolkit": ("for ort-aie chat", "jinja2", "prompt_toolkit"),
    "fastapi": ("for ort-aie serve", *SERVER),
    "huggingface_hub": ("for models by name", "huggingface_hub"),
    "ray": ("for ort-aie batch", "jinja2", "ray"),
    "simpy": ("for the modelled NPU", "simpy"),
}

_REASONS = {"rule": "rule: ", "measured": "measured by ort-aie tune on ", "forced": "forced by "}

# bf16 keeps 8 bits of each factor and of each weight: a product's relative error is below 2^-7.
_RELATIVE_ERROR = 2.0**-7


@dataclass(frozen=True)
class Diagnosis:
    """Everything that doctor found.

    Attributes:
        software: versions, the library, and the headers it was built with.
        host: the CPU, which kernels run on it and why, and whether an operator ran correctly.
        npu: the chain from chip to XRT, the xrt target and its overlays.
        working: whether the host target works.
        files: the models and weights of a compiled folder, if one was given.
    """

    software: tuple[Finding, ...]
    host: tuple[Finding, ...]
    npu: tuple[Finding, ...]
    working: bool
    files: tuple[CheckedFile, ...] = ()

    @property
    def damage(self) -> str:
        """What is wrong with the files; empty if nothing is."""
        return "; ".join(f"{file.name} {file.problem}" for file in self.files if file.problem)


def diagnose(compiled: Path | None = None, progress: Progress | None = None) -> Diagnosis:
    """Looks at everything, also at the files of a compiled folder; `progress` counts their bytes.

    Raises:
        AieError: `compiled` is not a compiled folder. Nothing is raised because something is
            missing.
    """
    # Before the files are read, which takes them into memory in small pages.
    folder = compiled if compiled is None or compiled.is_dir() else compiled.parent
    pages = None if folder is None else weight_pages(folder.rglob("*.onnx.data"))
    files = () if compiled is None else check_files(compiled, progress)
    version = runtime_version()
    software = [
        Finding("Python", platform.python_version()),
        Finding("ort_aie_ep", ort_aie_ep.__version__),
        Finding(RUNTIME, version, "" if version else install_line([RUNTIME])),
        *(_package(name, *about) for name, about in _PACKAGES.items()),
    ]
    host = [Finding("CPU", cpu_model())]
    working = False
    try:
        from ort_aie_ep import _native
        from ort_aie_ep.runtime.kernels import chosen_kernels, tried_kernels

        headers: str = _native.ONNXRUNTIME_HEADERS
        software += [
            Finding("ONNX Runtime headers", headers),
            Finding("library", ort_aie_ep.library_path()),
        ]
        tried: dict[str, str] = {}
        for one in tried_kernels():
            what = f"; with up to {one.threads} threads {one.variant} (measured while running: "
            what += f"{one.time:.2f} of the rule's time, {one.samples} samples)"
            tried[one.role] = tried.get(one.role, "") + what
        host += [
            Finding("kernels available", ", ".join(_native.available_isas())),
            Finding("AMX", f"not used: {no_amx}" if (no_amx := _native.why_no_amx()) else "used"),
            *(
                Finding(
                    f"kernels: {chosen.role}",
                    f"{chosen.variant} ({_REASONS[chosen.origin]}{chosen.why})"
                    + tried.get(chosen.role, ""),
                )
                for chosen in chosen_kernels()
            ),
            _measurement(),
            *([pages] if pages else []),
        ]
        host.append(Finding("an operator in a session", _run_operator()))
        working = True
    except (ImportError, AieError) as error:
        host.append(Finding("an operator in a session", "", str(error)))
    device = npu_device()
    chain = find_npu()
    target = find_xrt_target(xrt=any(link.name == "XRT" and link.found for link in chain))
    # Without the chip, installing anything is of no use.
    tools, rest = find_overlay_tools(), [Finding(target.name, target.found)]
    if device:
        designs = find_designs(device)
        # If all overlays are there, nothing needs to be built.
        rest = [target, designs, tools if designs.remedy else Finding(tools.name, tools.found)]
    elif tools.found:
        rest.append(tools)
    return Diagnosis(tuple(software), tuple(host), (*chain, *rest), working, files)


def find_xrt_target(*, xrt: bool = True) -> Finding:
    """The library of the xrt target, and whether it loads with the installed XRT.

    `xrt`: whether XRT is installed.
    """
    try:
        path = Path(ort_aie_ep.library_path()).with_name(XRT_TARGET)
    except AieError as error:
        return Finding("xrt target", "", str(error))
    if not path.is_file():
        return Finding(
            "xrt target", "",
            "this build of ort_aie_ep was made without XRT's headers: install libxrt-dev 2.25 or "
            "newer and rebuild the package",
        )  # fmt: skip
    try:
        loaded = xrt_library()
    except OSError as error:
        if not xrt:
            return Finding("xrt target", "built; XRT is not installed")
        return Finding("xrt target", "", f"{path} does not load: {error}")
    return Finding("xrt target", f"{path}, with {loaded}" if loaded else str(path))


def find_designs(device: str) -> Finding:
    """The overlays for `device` (npu1 or npu2), or the missing ones, why, and how to build them."""
    from ort_aie_ep.explain.overlays import find_overlays, overlay_folders

    folders = overlay_folders()
    overlays = find_overlays(device, folders)
    name = f"overlays for {device}"
    if not overlays.missing:
        return Finding(name, ", ".join(f"{d} in {f.parent}" for d, f in overlays.found.items()))
    build = "; ".join(
        f"ort-aie kernels build {design} --device {device} --out {folders[-1] / device}"
        for design in (overlays.missing if overlays.found else ("all",))
    )
    refused = "".join(f"; {reason}" for reason in overlays.refused)
    return Finding(
        name, "", f"no package of {', '.join(overlays.missing)}{refused}; build with: {build}"
    )


def find_overlay_tools() -> Finding:
    """The tools that `kernels build` runs: mlir_aie's aiecc, Peano, xclbinutil."""
    from ort_aie_ep.aie_kernels.mlir.toolchain import ToolchainError, find_toolchain

    name = "tools for overlays"
    try:
        tools = find_toolchain()
    except ToolchainError as error:
        missing = str(error).splitlines()[0].rstrip(".")
        return Finding(name, "", f"{missing}; docs/npu-toolchain.md has the commands")
    return Finding(name, f"{tools.aiecc} ({tools.version}), {tools.clang}")


def _measurement() -> Finding:
    """What was measured on this machine, and whether it is valid."""
    from ort_aie_ep import _native

    path, state, why, date = _native.kernel_measurement()
    name = "kernels measured"
    if state == "good":
        return Finding(name, f"{f'on {date}' if date else 'while running'}: {path}")
    if state == "none":
        return Finding(name, "no; sessions measure some while they run, and ort-aie tune all")
    return Finding(name, "", f"{path} is not valid: {why}; measure again with ort-aie tune")


def _package(name: str, use: str, *modules: str) -> Finding:
    try:
        return Finding(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(name, "", f"{use and f'optional, {use}: '}{install_line(modules)}")


def _run_operator() -> str:
    """Runs one small aie.Q4NXMatMul through ONNX Runtime and checks the numbers.

    Raises:
        AieError: the library does not load, or computes wrong numbers.
    """
    from ort_aie_ep import _native
    from ort_aie_ep.runtime.sessions import Options, open_operator

    k, n = 256, 32
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, (n, k), np.uint8)
    one, minus_eight = 0x3F80, 0xC100  # as bfloat16: weights are the integers from -8 to 7
    blocks = _native.pack(
        codes, np.full((n, k // 32), one, np.uint16), np.full((n, k // 32), minus_eight, np.uint16)
    )
    a = rng.standard_normal((1, k), np.float32)
    session = open_operator(_model(blocks, n, k), Options(target="host", numerics="bf16"))
    y = np.asarray(session.run(None, {"A": a})[0])
    weights = codes.astype(np.float32).T - 8
    bound = _RELATIVE_ERROR * (np.abs(a) @ np.abs(weights))
    if not (np.abs(y - a @ weights) <= bound).all():
        raise AieError("aie.Q4NXMatMul gave wrong numbers")
    return "aie.Q4NXMatMul on the host target, numbers checked"


def _model(blocks: npt.NDArray[np.uint8], n: int, k: int) -> bytes:
    """A graph of one Q4NXMatMul: A (1, K) float32 to Y (1, N)."""
    import onnx_ir as ir

    from ort_aie_ep import _native

    a = ir.Value(name="A", shape=ir.Shape((1, k)), type=ir.TensorType(ir.DataType.FLOAT))
    w = ir.Value(name="W", const_value=ir.tensor(blocks, name="W"))
    node = ir.node(
        "Q4NXMatMul",
        [a, w],
        {"K": k, "N": n, "accuracy_level": 0, "format": _native.FORMAT},
        domain="aie",
        version=1,
    )
    y = node.outputs[0]
    y.name, y.shape, y.type = "Y", ir.Shape((1, n)), ir.TensorType(ir.DataType.FLOAT)
    graph = ir.Graph([a], [y], nodes=[node], initializers=[w], opset_imports={"": 22, "aie": 1})
    content: bytes = ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString()
    return content
