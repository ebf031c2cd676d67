"""Small kernels that do what the chip gets silently wrong: the stand-in stops them."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
from standin import BFP16, HOST, aligned, bfloat16, compile

SOURCE = """
#include "core_state.cc"

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
void loads(const float* x, bfloat16* y, int32_t at) { aie::load_v<16>(x + at); }
void loads_half(const float* x, bfloat16* y, int32_t at) { aie::load_v<8>(x + at); }
void stores_wide(float* x, bfloat16* y, int32_t at) {
  aie::store_v(x + at, aie::zeros<float, 32>());
}

}
"""
MODE, MISALIGNED = "without having set a rounding mode", "misaligned"
Word = ctypes.c_ssize_t * 16


@pytest.mark.parametrize("arch", ["aie2", "aie2p"])
def test_a_promise_that_a_kernel_breaks_is_named(arch: str, tmp_path: Path) -> None:
    (tmp_path / "kernels.cc").write_text(SOURCE)
    options = ("-O1", "-w", "-shared", "-fPIC", BFP16, f"-I{HOST}", "-o", str(tmp_path / "k.so"))
    done = compile(str(tmp_path / "kernels.cc"), arch, *options)
    assert done.returncode == 0, done.stderr
    library = ctypes.CDLL(str(tmp_path / "k.so"))
    library.aie_host_call.restype = ctypes.c_char_p
    bfp16 = arch == "aie2p"
    for kernel, at, said in [
        ("rounds", 0, MODE), ("adds", 0, MODE), ("rounds_a_scalar", 0, MODE),
        ("multiplies", 0, MODE if bfp16 else ""),  # rounds its operands to bfp16
        ("copies", 0, ""), ("widens", 0, ""),
        ("sets_and_rounds", 0, ""), ("rounds", 0, MODE),  # a mode does not outlive the call
        ("loads", 16, ""), ("loads", 8, MISALIGNED if bfp16 else ""), ("loads", 4, MISALIGNED),
        ("loads_half", 8, ""), ("loads_half", 4, MISALIGNED),
        # 1,024 bits, at 64 bytes.
        ("stores_wide", 16, ""), ("stores_wide", 8, MISALIGNED if bfp16 else ""),
    ]:  # fmt: skip
        x, y = aligned(np.full(64, 1 + 2**-9, np.float32)), aligned(np.zeros(64, bfloat16))
        call = getattr(library, kernel)
        broken = library.aie_host_call(call, Word(x.ctypes.data, y.ctypes.data, at))
        text = "" if broken is None else broken.decode()
        assert (said in text) if said else text == "", (kernel, at, text)
