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
  std::string uuid;               // of the xclbin and of the manifest
  npu::Manifest manifest;
};

// The packages of one device. Not for several threads at once.
class Overlays {
 public:
  // `device` as manifests have it, such as npu2. In each folder, the package of a design is sought
  // in <folder>/<design> and <folder>/<device>/<design>; the first one that fits is taken.
  Overlays(std::string device, std::vector<std::filesystem::path> folders);

  const std::string& device() const { return device_; }

  // Null if there is none, or none that fits.
  const Package* Find(std::string_view design);

  // The package. Throws DeviceError: kNoOverlay with the command that builds it, or kWrongOverlay
  // with what is wrong with each that was found.
  const Package& Get(std::string_view design);

 private:
  struct Result {
    std::optional<Package> package;
    std::string refusals;  // of packages that were found and do not fit
  };

  const Result& Look(std::string_view design);

  const std::string device_;
  const std::vector<std::filesystem::path> folders_;
  std::map<std::string, Result, std::less<>> results_;
};

// The uuid in an xclbin's header, in the usual notation. Throws Error for a file that is none.
std::string UuidOf(const std::filesystem::path& xclbin);

// Folders with : between, as option `overlays` has them.
std::vector<std::filesystem::path> FoldersOf(std::string_view option);

// Where packages are sought after those: the folder that ort_aie_ep was installed with.
std::filesystem::path InstalledOverlays();

// `name` in the user's cache of ort_aie_ep; empty for a user without a home.
std::filesystem::path CacheFolder(std::string_view name);

}  // namespace ort_aie::npu_target
