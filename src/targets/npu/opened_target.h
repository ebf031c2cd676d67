// What the two libraries of module.cc have in common, compiled once: an executor on a device as a
// target.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "targets/npu/device.h"
#include "targets/target.h"

namespace ort_aie::npu_target {

struct ModuleOptions {
  bool raise, quiet;
  std::string overlays;  // folders, with colons between them
};

ModuleOptions ParseOptions(const char* text);

// Throws DeviceError if no package in the folders fits the device.
std::unique_ptr<Target> OpenTarget(const char* name, const std::shared_ptr<Device>& device,
                                   const std::vector<std::filesystem::path>& folders,
                                   const ModuleOptions& options);

// Counters of all targets that this process has opened, as JSON.
std::string CountersText();

}  // namespace ort_aie::npu_target
