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

// Buffers are locked in memory; the usual reason for a refusal.
std::string MemoryLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return Concat(" (this process may lock ", limit.rlim_cur,
                " bytes of memory, and an NPU needs no limit: '* - memlock unlimited' in ",
                "/etc/security/limits.d/ and a new login)");
}

}  // namespace

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
  throw DeviceError(
      fault, Concat(what, ": ", error.what(), fault == Fault::kAllocation ? MemoryLimit() : ""));
}

}  // namespace ort_aie::npu_target
