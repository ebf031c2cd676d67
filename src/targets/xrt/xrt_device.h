// A Device over XRT.
#pragma once

#include <memory>
#include <string_view>

#include "targets/xrt/device.h"

namespace ort_aie::xrt {

// The NPU of this machine: one object for all who ask with the same option `overlays` (see
// OverlayFolders) for as long as one of them keeps it. Throws DeviceError: kNoDevice.
std::shared_ptr<Device> OpenDevice(std::string_view overlays);

// Of all devices that this process has had. Retries and fallbacks are the executor's.
Counters CountersOfProcess();

}  // namespace ort_aie::xrt
