// The part of _native for src/targets/npu/fused_decode.
#pragma once

#include <pybind11/pybind11.h>

namespace ort_aie::fused_decode {

void DefineFusedDecode(pybind11::module_& m);

}  // namespace ort_aie::fused_decode
