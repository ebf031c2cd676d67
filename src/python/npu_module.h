// The part of _native for src/npu.
#pragma once

#include <pybind11/pybind11.h>

namespace ort_aie::npu {

void DefineNpu(pybind11::module_& m);

}  // namespace ort_aie::npu
