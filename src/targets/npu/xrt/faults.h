// Translates exceptions of XRT into faults of the device.
#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "targets/npu/device.h"

namespace ort_aie::npu_target {

// How much memory this process may lock, and how to change that; empty if it is not limited.
std::string MemoryLimit();

// Throws the fault that `error` means, which came from XRT during `what`. It is `fault`, unless the
// error's number says that the device is gone, or that a context was refused because of its
// overlay.
[[noreturn]] void ThrowFault(Fault fault, std::string_view what, const std::exception& error);

// Calls call(), which uses XRT, and translates its exceptions.
template <typename Call>
auto Ask(Fault fault, std::string_view what, const Call& call) {
  try {
    return call();
  } catch (const DeviceError&) {
    throw;
  } catch (const std::exception& error) {
    ThrowFault(fault, what, error);
  }
}

}  // namespace ort_aie::npu_target
