// A Device over XRT.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <vector>

#include "npu/stream_cache.h"
#include "targets/npu/device.h"

namespace ort_aie::npu_target {

// The NPU of this machine, with the packages of these folders (see Overlays): one object for all
// who ask with the same folders, for as long as one of them keeps it; who comes first says how many
// bytes of instruction streams it keeps. Throws DeviceError: kNoDevice.
std::shared_ptr<Device> OpenDevice(const std::vector<std::filesystem::path>& folders,
                                   size_t instruction_bytes = npu::kInstructionBytes);

// Throws DeviceError, kNoOverlay or kWrongOverlay, unless a device of OpenDevice has some package.
void RequireOverlays(Device& device);

// The device as manifests have it, such as npu2.
const std::string& DeviceKind(const Device& device);

// Of all devices that this process has had. Retries and fallbacks are the executor's.
Counters CountersOfProcess();

}  // namespace ort_aie::npu_target
