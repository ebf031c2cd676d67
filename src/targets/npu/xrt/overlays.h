// Design packages: folders with overlay.xclbin and manifest.json, matched to a device.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "npu/manifest.h"

namespace ort_aie::npu_target {

struct Package {
  std::filesystem::path overlay;  // the xclbin
  std::string uuid;               // the same in the xclbin and in the manifest
  npu::Manifest manifest;
};

// The packages of one device. Not thread-safe.
class Overlays {
 public:
  // `device` is named as in manifests, such as npu2. The package of a design may be in
  // <folder>/<design> and in <folder>/<device>/<design>; the first one that fits is used.
  Overlays(std::string device, std::vector<std::filesystem::path> folders);

  const std::string& device() const { return device_; }

  // Null if there is none, or none fits.
  const Package* Find(std::string_view design);

  // The package. Throws DeviceError: kNoOverlay with the command that builds it, or kWrongOverlay
  // with what is wrong with each package that was found.
  const Package& Get(std::string_view design);

 private:
  struct Result {
    std::optional<Package> package;
    std::string refusals;  // of packages that do not fit
  };

  const Result& Look(std::string_view design);

  const std::string device_;
  const std::vector<std::filesystem::path> folders_;
  std::map<std::string, Result, std::less<>> results_;
};

// The uuid in an xclbin's header, in the usual notation. Throws Error if the file is not an xclbin.
std::string UuidOf(const std::filesystem::path& xclbin);

// Folders separated by :, as in the option `overlays`.
std::vector<std::filesystem::path> FoldersOf(std::string_view option);

// The folder searched after those: the one that ort_aie_ep was installed with.
std::filesystem::path InstalledOverlays();

// `name` in the user's cache of ort_aie_ep; empty if the user has no home folder.
std::filesystem::path CacheFolder(std::string_view name);

}  // namespace ort_aie::npu_target
