"""Which files may include which in src/: layers point one way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"

# A folder, or a file in one -> the files and folders of src/ that it may include besides its own
# folder. The longest name that matches a file counts. A folder does not include its subfolders.
HOST_FOR_NPU = """
    targets/host/attention_inputs.h targets/host/host_target.h targets/host/kernels/kernels.h
    targets/host/projection_rows.h targets/host/scratch.h targets/host/work.h
"""
DOORS = "targets/loader.h targets/session_options.h targets/target.h"
TRACE = "targets/step_span.h targets/trace.h"
MAY_INCLUDE = {
    "base": "",
    "q4nx": "",
    "npu": "base",
    "ops": "base q4nx",
    "graph": "base ops q4nx",
    "graph/fusions": "base graph ops q4nx",
    "targets": "base ops",
    "targets/host": f"base ops q4nx targets/target.h {TRACE} targets/host/kernels",
    # file_forms.h is a table of constants, which only the compiler looks into.
    "targets/host/kernels": "base/platform.h q4nx/file_forms.h targets/host/kernels/generic",
    "targets/npu": f"base npu ops q4nx targets/target.h {TRACE} {HOST_FOR_NPU} "
    "targets/npu/fused_decode targets/npu/schedule",
    # It decides without a device; what the host does with data is in functions that others call.
    "targets/npu/schedule": f"base npu ops q4nx targets/target.h {TRACE} {HOST_FOR_NPU} "
    "targets/npu/buffer.h targets/npu/attention_rows.h targets/npu/conversions.h",
    "targets/npu/fused_decode": f"base npu ops q4nx targets/npu targets/npu/schedule "
    f"targets/target.h {TRACE} {HOST_FOR_NPU}",
    # The library's entry point, and what combines the executor and a device.
    "targets/npu/module.cc": "base targets/module.h targets/npu/xrt targets/sim/control.h",
    "targets/npu/opened_target.cc": "base targets/npu/fused_decode targets/npu/xrt",
    "targets/npu/libuuid/uuid": "",
    # designs.h is a list of names: one, which the scheduler decides by.
    "targets/npu/xrt": "base npu targets/npu/device.h targets/npu/schedule/designs.h "
    "targets/trace.h",
    "targets/sim": "",
    "targets/sim/xrt_standin": "targets/sim/control.h",
    "ort": f"base ops {DOORS} {TRACE} ort/ep/factory.h",
    # The provider packs weights, as `ort-aie compile` does from Python.
    "ort/ep": f"base graph ops q4nx {DOORS} ort",
    "python": "base graph npu ops q4nx targets/host targets/host/kernels targets/npu/schedule "
    "targets/npu/buffer.h targets/npu/fused_decode",
    "stub": "base/libraries.h",
}

# Third-party headers -> the only files that may include them.
ALONE = {
    "xrt/": ("targets/npu/xrt", "targets/sim/xrt_standin"),
    "onnxruntime": ("ort", "stub"),
    "pybind11/": ("python",),
}

# No STL in kernels, and no inline function from other headers: the linker keeps one copy of each,
# which must not be the one compiled for AVX-512. These files are compiled for the baseline.
KERNELS = "targets/host/kernels"
BASELINE = tuple(
    f"{KERNELS}/{file}"
    for file in (
        "amx_permission.cc",
        "choice.cc",
        "choice.h",
        "choice_file.cc",
        "choice_file.h",
        "samples.cc",
        "samples.h",
    )
)
HEADERS_OF_KERNELS = {"immintrin.h", "stddef.h", "stdint.h"}

FILES = sorted(
    path.relative_to(SRC).as_posix()
    for path in SRC.rglob("*")
    if path.suffix in (".cc", ".h", ".inc")
)
pytestmark = pytest.mark.skipif(not FILES, reason="no C++ sources beside the tests")


def includes(file: str) -> list[tuple[bool, str]]:
    """The includes of `file`: whether each is part of this project, and its name."""
    found = re.findall(r'^#\s*include\s*([<"])([^>"]+)', (SRC / file).read_text(), re.MULTILINE)
    return [((SRC / name).is_file(), name) for _, name in found]


def within(name: str, *places: str) -> bool:
    return any(f"{name}/".startswith(f"{place}/") for place in places)


def allowed(file: str, name: str) -> bool:
    folder, its_folder = name.rpartition("/")[0], file.rpartition("/")[0]
    rule = MAY_INCLUDE[max((place for place in MAY_INCLUDE if within(file, place)), key=len)]
    return folder == its_folder or bool({name, folder} & set(rule.split()))


def test_each_layer_includes_only_what_it_may() -> None:
    wrong = [
        f"src/{file} includes {name}"
        for file in FILES
        for ours, name in includes(file)
        if ours and not allowed(file, name)
    ]
    assert wrong == []


def test_only_their_users_include_headers_of_others() -> None:
    wrong = [
        f"src/{file} includes {name}"
        for file in FILES
        for ours, name in includes(file)
        for start, users in ALONE.items()
        if not ours and name.startswith(start) and not within(file, *users)
    ]
    assert wrong == []


def test_kernels_include_no_library() -> None:
    wrong = [
        f"src/{file} includes {name}"
        for file in FILES
        if within(file, KERNELS) and file not in BASELINE
        for ours, name in includes(file)
        if not ours and name not in HEADERS_OF_KERNELS
    ]
    assert wrong == []


def test_a_rule_names_what_there_is() -> None:
    named = {*MAY_INCLUDE, *" ".join(MAY_INCLUDE.values()).split()}
    assert [place for place in named if not (SRC / place).exists()] == []


def test_a_measurement_of_kernels_ends_with_each_of_their_sources() -> None:
    # `ort-aie tune` keeps a hash of these files: other kernels need another measurement.
    cmake = (SRC.parent / "CMakeLists.txt").read_text()
    words = re.findall(r"file\((GLOB\w*) kernel_sources CONFIGURE_DEPENDS([^)]*)\)", cmake)
    ((how, patterns),) = words
    hashed = set()
    for pattern in patterns.split():
        name = pattern.removeprefix("${kernels}/")
        found = (SRC / KERNELS).rglob(name) if how == "GLOB_RECURSE" else (SRC / KERNELS).glob(name)
        hashed |= {path.relative_to(SRC).as_posix() for path in found}
    assert hashed == {file for file in FILES if within(file, KERNELS)}
