// Errors of C++ in Python, for both modules.
#pragma once

#include <pybind11/pybind11.h>

#include <exception>

#include "base/error.h"

namespace ort_aie {

// To be called once by a module: its functions raise ValueError where C++ throws Error.
inline void RaiseErrorsAsValueError() {
  pybind11::register_local_exception_translator([](std::exception_ptr p) {
    try {
      if (p) std::rethrow_exception(p);
    } catch (const Error& error) {
      PyErr_SetString(PyExc_ValueError, error.what());
    }
  });
}

}  // namespace ort_aie
