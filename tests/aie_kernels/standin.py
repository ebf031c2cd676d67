"""Compiles with the stand-in for the AIE API; models of its numerics in numpy."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from ort_aie_ep.formats import bfp16

Array = npt.NDArray[Any]
bfloat16 = np.dtype(ml_dtypes.bfloat16)

HERE = Path(__file__).parent
HOST = HERE.parents[1] / "aie_kernels" / "host"
ARCHITECTURES = {"aie2": 20, "aie2p": 21}
BFP16 = "-DAIE_API_EMULATE_BFLOAT16_MMUL_WITH_BFP16"


@cache
def compiler() -> str:
    found = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")
    if found is None:
        pytest.skip("the stand-in of the AIE API is tested with a C++ compiler: set CXX")
    return found


def compile(source: str, arch: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            compiler(), "-std=c++20", "-ffp-contract=off", "-Wall", "-Wextra",
            f"-D__AIE_ARCH__={ARCHITECTURES[arch]}", f"-I{HOST}", *options, "-x", "c++", source,
        ],
        env={**os.environ, "LC_ALL": "C"},  # quotes and words as tests expect them
        capture_output=True,
        text=True,
    )  # fmt: skip


@cache
def _probe(arch: str, *options: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "probe.so"
        done = compile(
            str(HERE / "standin_probe.cc"), arch, "-O1", "-shared", "-fPIC", "-o", str(library),
            f"-Wl,--version-script={HOST / 'exports.map'}", *options,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return library.read_bytes()


def build_probe(folder: Path, arch: str, *options: str) -> ctypes.CDLL:
    """A library in `folder`."""
    library = folder / f"probe_{arch}_{len(options)}.so"
    library.write_bytes(_probe(arch, *options))
    return ctypes.CDLL(str(library))


def aligned(values: Array, dtype: Any = None) -> Array:
    """A copy of `values` at a multiple of 64 bytes."""
    values = np.asarray(values, dtype)
    raw = np.empty(values.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    copy: Array = raw[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy


def pointer(array: Array) -> ctypes.c_void_p:
    """Keeps the array alive."""
    return array.ctypes.data_as(ctypes.c_void_p)


def run(function: Any, *inputs: Array, out: Any = np.float32, lanes: int = 64) -> Array:
    """The contents of the last array after `function(inputs..., y)`."""
    result = aligned(np.zeros(lanes, out))
    arrays = [aligned(x) for x in inputs]
    function(*(pointer(x) for x in arrays), pointer(result))
    return result


def bits16(x: Array) -> Array:
    return np.ascontiguousarray(x).view(np.uint16)


def bits32(x: Array) -> Array:
    return np.ascontiguousarray(x, np.float32).view(np.uint32)


def flush(x: Array) -> Array:
    """Rounds to float32; subnormal results become zeros with their sign."""
    with np.errstate(over="ignore"):
        x = np.asarray(x).astype(np.float32)
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


def f64(x: Array) -> Array:
    return np.asarray(x).astype(np.float64)


def to_bf16(x: Array) -> Array:
    """Rounds to the nearest, ties to even."""
    return np.asarray(x, np.float32).astype(bfloat16)


def to_bfp16(x: Array) -> Array:
    """Blocks of 8 along the last axis as bfp16ebs8, back as float64."""
    return bfp16.decode(bfp16.encode(np.asarray(x)))
