// A Device over XRT.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <vector>

#include "npu/stream_cache.h"
#include "targets/npu/device.h"

namespace ort_aie::npu_target {

// The NPU of this machine, with the packages of these folders (see Overlays). All callers with the
// same folders get the same object, as long as one of them keeps it. The first caller sets how many
// bytes of instruction streams it keeps. Throws DeviceError: kNoDevice.
std::shared_ptr<Device> OpenDevice(const std::vector<std::filesystem::path>& folders,
                                   size_t instruction_bytes = npu::kInstructionBytes);

// Throws DeviceError, kNoOverlay or kWrongOverlay, unless a device of OpenDevice has at least one
// package.
void RequireOverlays(Device& device);

// The device's name in manifests, such as npu2.
const std::string& DeviceKind(const Device& device);

// For all devices that this process has had. The executor counts retries and fallbacks.
Counters CountersOfProcess();

}  // namespace ort_aie::npu_target
