"""Small kernels that do what the chip gets silently wrong: the stand-in stops them."""

from __future__ import annotations

import ctypes
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from standin import BFP16, HOST, aligned, bfloat16, compile

SOURCE = """
#include "core_state.cc"

using floats = aie::vector<float, 16>;
using sums = aie::accum<accfloat, 16>;

extern "C" {

void rounds(const float* x, bfloat16* y) {
  aie::store_v(y, sums(aie::load_v<16>(x)).to_vector<bfloat16>());
}
void sets_and_rounds(const float* x, bfloat16* y) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  rounds(x, y);
}
void adds(const float* x, bfloat16* y) {
  const auto v = aie::load_v<16>(y);
  aie::store_v(y, aie::add(v, v));
}
void rounds_a_scalar(const float* x, bfloat16* y) { y[0] = static_cast<bfloat16>(x[0]); }
void multiplies(const float* x, bfloat16* y) {
  aie::mmul<8, 8, 8, bfloat16, bfloat16> tile;
  tile.mac(aie::load_v<64>(y), aie::load_v<64>(y));
}
void copies(const bfloat16* x, bfloat16* y) { aie::store_v(y, aie::load_v<32>(x)); }
void widens(const bfloat16* x, float* y) {
  aie::store_v(y, aie::accum<accfloat, 32>(aie::load_v<32>(x)).to_vector<float>());
}
void loads(const float* x, bfloat16* y, int32_t at) {
  aie::load_v<16>(x + at);
}
void loads_half(const float* x, bfloat16* y, int32_t at) {
  aie::load_v<8>(x + at);
}
void stores_wide(float* x, bfloat16* y, int32_t at) {
  aie::store_v(x + at, aie::zeros<float, 32>());
}

}
"""

Word = ctypes.c_ssize_t * 16


@cache
def _library(arch: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernels.cc"
        source.write_text(SOURCE)
        built = Path(folder) / "kernels.so"
        options = ("-O1", "-w", "-shared", "-fPIC", BFP16, f"-I{HOST}")
        done = compile(str(source), arch, *options, "-o", str(built))
        assert done.returncode == 0, done.stderr
        return built.read_bytes()


@pytest.fixture
def library(arch: str, tmp_path: Path) -> ctypes.CDLL:
    path = tmp_path / "kernels.so"
    path.write_bytes(_library(arch))
    library = ctypes.CDLL(str(path))
    library.aie_host_call.restype = ctypes.c_char_p
    return library


@pytest.fixture(params=["aie2", "aie2p"])
def arch(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def promise(library: ctypes.CDLL, kernel: str, *scalars: int) -> str:
    """What `kernel` broke, or ''."""
    x, y = aligned(np.full(64, 1 + 2**-9, np.float32)), aligned(np.zeros(64, bfloat16))
    words = Word(x.ctypes.data, y.ctypes.data, *scalars)
    broken = library.aie_host_call(getattr(library, kernel), words)
    return "" if broken is None else broken.decode()


@pytest.mark.parametrize("kernel", ["rounds", "adds", "rounds_a_scalar"])
def test_a_kernel_that_rounds_without_a_mode_is_stopped(library: ctypes.CDLL, kernel: str) -> None:
    assert "without having set a rounding mode" in promise(library, kernel)


def test_a_matrix_product_in_bfp16_needs_a_mode(library: ctypes.CDLL, arch: str) -> None:
    assert bool(promise(library, "multiplies")) == (arch == "aie2p")


@pytest.mark.parametrize("kernel", ["sets_and_rounds", "copies", "widens"])
def test_a_kernel_that_sets_a_mode_or_rounds_nothing_runs(
    library: ctypes.CDLL, kernel: str
) -> None:
    assert promise(library, kernel) == ""


def test_a_mode_does_not_outlive_the_call(library: ctypes.CDLL) -> None:
    assert promise(library, "sets_and_rounds") == ""
    assert promise(library, "rounds") != ""


@pytest.mark.parametrize(
    ("kernel", "at", "aie2", "aie2p"),
    [
        ("loads", 16, True, True),
        ("loads", 8, True, False),  # 32 bytes
        ("loads", 4, False, False),
        ("loads_half", 8, True, True),
        ("loads_half", 4, False, False),
        ("stores_wide", 16, True, True),  # 1,024 bits, at 64 bytes
        ("stores_wide", 8, True, False),
    ],
)
def test_an_access_below_its_alignment_is_stopped(
    library: ctypes.CDLL, arch: str, kernel: str, at: int, aie2: bool, aie2p: bool
) -> None:
    broken = promise(library, kernel, at)
    assert ("misaligned" not in broken) == (aie2 if arch == "aie2" else aie2p)
