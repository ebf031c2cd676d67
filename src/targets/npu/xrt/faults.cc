#include "targets/npu/xrt/faults.h"

#include <sys/resource.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "base/error.h"

namespace ort_aie::npu_target {
namespace {

int NumberOf(const std::exception& error) {
  const auto* numbered = dynamic_cast<const std::system_error*>(&error);
  return numbered == nullptr ? 0 : numbered->code().value();
}

}  // namespace

// The usual reason for a refusal. All pinned pages of the caller count towards it (xdna-driver:
// amdxdna_get_ubuf in amdxdna_ubuf.c); buffers do too, because they are mapped with MAP_LOCKED
// (mmap_ptr in shim/buffer.cpp).
std::string MemoryLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return Concat(
      " (this process may lock ", limit.rlim_cur,
      " bytes of memory, RLIMIT_MEMLOCK, but an NPU needs this to be unlimited: set '* - memlock ",
      "unlimited' in /etc/security/limits.d/ and log in again; see docs/ryzen-ai.md, ",
      "section 3)");
}

void ThrowFault(Fault fault, std::string_view what, const std::exception& error) {
  switch (NumberOf(error)) {
    case ENODEV:
    case ENXIO:
    case ESHUTDOWN:
      throw DeviceError(Fault::kDeviceLost, Concat(what, ": the device is gone: ", error.what()));
    case EINVAL:
      if (fault == Fault::kContextRefused) fault = Fault::kWrongOverlay;
      break;
    default:
      break;
  }
  // If the heap of instructions is full (ENOSPC of amdxdna_gem_heap_alloc), the limit is not the
  // cause.
  const bool limited = fault == Fault::kAllocation && NumberOf(error) != ENOSPC;
  throw DeviceError(fault, Concat(what, ": ", error.what(), limited ? MemoryLimit() : ""));
}

}  // namespace ort_aie::npu_target
