// Exceptions of XRT as faults of the device.
#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "targets/npu/device.h"

namespace ort_aie::npu_target {

// How much memory this process may lock, with what to do about it; empty where there is no limit.
std::string MemoryLimit();

// Throws what `error`, which came from XRT while it did `what`, means: `fault`, unless the error's
// number says that the device is gone, or that a context was refused because of its overlay.
[[noreturn]] void ThrowFault(Fault fault, std::string_view what, const std::exception& error);

// call(), which asks something of XRT.
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
