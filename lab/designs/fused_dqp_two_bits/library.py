"""The kernels of this design and of FusedDQP, compiled for this CPU."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from ort_aie_ep.npu.kernels import Kernels

HERE = Path(__file__).parent
KERNELS = HERE.parents[2] / "aie_kernels"
NUMBERS = {"aie2": 20, "aie2p": 21}  # __AIE_ARCH__
SOURCES = (
    KERNELS / "host" / "core_state.cc",
    KERNELS / "fused_dqp" / "fused_dqp.cc",
    HERE / "fused_dqp_two_bits.cc",
)


def kernels(architecture: str, folder: Path) -> Kernels:
    """The kernels, from a library that the compiler ($CXX, or c++) writes into `folder`.

    Raises:
        CalledProcessError: the compiler fails.
    """
    library = folder / f"libtwo_bits_{architecture}.so"
    words = [
        os.environ.get("CXX", "c++"), "-std=c++20", "-O2", "-w", "-Wno-psabi", "-fPIC", "-shared",
        "-ffp-contract=off", f"-D__AIE_ARCH__={NUMBERS[architecture]}", f"-I{KERNELS / 'host'}",
        f"-Wl,--version-script={KERNELS / 'host' / 'exports.map'}", *SOURCES, "-o", library,
    ]  # fmt: skip
    subprocess.run(words, check=True)
    return Kernels(architecture, library)
