#pragma once

#include <pybind11/pybind11.h>

namespace ort_aie::npu_target {

void DefineNpuSchedule(pybind11::module_& m);

}  // namespace ort_aie::npu_target
