#pragma once

#include <pybind11/pybind11.h>

namespace ort_aie {

// The forms of GGUF files: the table, packing, and what blocks mean.
void DefineFileForms(pybind11::module_& m);

}  // namespace ort_aie
