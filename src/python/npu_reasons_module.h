// The part of _native that tells what the NPU leaves to the host.
#pragma once

#include <pybind11/pybind11.h>

namespace ort_aie::npu_target {

void DefineNpuReasons(pybind11::module_& m);

}  // namespace ort_aie::npu_target
