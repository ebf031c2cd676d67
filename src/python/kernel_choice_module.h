// The part of _native that tells which kernels a CPU runs, and why.
#pragma once

#include <pybind11/pybind11.h>

namespace ort_aie::host {

void DefineKernelChoice(pybind11::module_& m);

}  // namespace ort_aie::host
