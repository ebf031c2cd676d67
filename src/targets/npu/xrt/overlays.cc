#include "targets/npu/xrt/overlays.h"

#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/libraries.h"
#include "base/platform.h"
#include "targets/npu/device.h"

namespace ort_aie::npu_target {
namespace fs = std::filesystem;
namespace {

constexpr char kManifest[] = "manifest.json";
constexpr char kOverlay[] = "overlay.xclbin";

// struct axlf of XRT's xclbin.h (2.25): the magic comes first; the uuid follows lengths, times,
// versions, mode and platform name.
constexpr char kMagic[] = "xclbin2";
constexpr size_t kUuidOffset = 416, kUuidBytes = 16;

// Throws Error if the folder is not a package of the design for the device.
Package ReadPackage(const fs::path& folder, std::string_view design, const std::string& device) {
  const std::uintmax_t bytes = fs::file_size(folder / kManifest);
  Require(bytes <= npu::kMaxManifestBytes, kManifest, " has ", bytes, " bytes, expected at most ",
          npu::kMaxManifestBytes);
  std::ifstream file(folder / kManifest);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  Package package{folder / kOverlay, "", npu::ParseManifest(text)};
  const npu::Manifest& manifest = package.manifest;
  const std::string name = npu::PackageName(manifest.name, manifest.weights);
  Require(name == design, "its manifest is for the design ", name);
  Require(manifest.device == device, "it was built for ", manifest.device, ", and the device is ",
          device);
  const nlohmann::json uuid = nlohmann::json::parse(text).at("uuid");
  Require(uuid.is_string(), "its manifest has no uuid: the package was never built");
  package.uuid = UuidOf(package.overlay);
  Require(uuid.get<std::string>() == package.uuid, "its manifest belongs to the xclbin ",
          uuid.get<std::string>(), ", but ", kOverlay, " is ", package.uuid);
  return package;
}

}  // namespace

std::string UuidOf(const fs::path& xclbin) {
  std::error_code ignored;
  const std::string name = xclbin.filename().string();
  Require(fs::is_regular_file(xclbin, ignored), name, " is not a regular file");
  std::ifstream file(xclbin, std::ios::binary);
  std::array<char, kUuidOffset + kUuidBytes> header{};
  file.read(header.data(), header.size());
  Require(file.gcount() == static_cast<std::streamsize>(header.size()) &&
              std::memcmp(header.data(), kMagic, sizeof(kMagic)) == 0,
          name, " is not an xclbin: it does not start with an axlf header");
  std::string uuid;
  for (size_t i = 0; i < kUuidBytes; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x",
                  static_cast<unsigned>(static_cast<unsigned char>(header[kUuidOffset + i])));
    if (i == 4 || i == 6 || i == 8 || i == 10) uuid += '-';
    uuid += digits;
  }
  return uuid;
}

Overlays::Overlays(std::string device, std::vector<fs::path> folders)
    : device_(std::move(device)), folders_(std::move(folders)) {}

const Overlays::Result& Overlays::Look(std::string_view design) {
  const auto known = results_.find(design);
  if (known != results_.end()) return known->second;
  Result result;
  for (const fs::path& folder : folders_) {
    for (const fs::path& candidate : {folder / design, folder / device_ / design}) {
      std::error_code ignored;
      if (result.package || !fs::is_regular_file(candidate / kManifest, ignored)) continue;
      try {
        result.package = ReadPackage(candidate, design, device_);
      } catch (const std::exception& error) {
        result.refusals += Concat("\n  ", candidate.string(), ": ", error.what());
      }
    }
  }
  return results_.emplace(design, std::move(result)).first->second;
}

const Package* Overlays::Find(std::string_view design) {
  const Result& result = Look(design);
  return result.package ? &*result.package : nullptr;
}

const Package& Overlays::Get(std::string_view design) {
  const Result& result = Look(design);
  if (result.package) return *result.package;
  std::string looked;
  for (const fs::path& folder : folders_)
    looked += Concat(looked.empty() ? "" : ", ", folder.string());
  const std::string remedy =
      Concat("build it with: ort-aie kernels build all --device ", device_,
             " --out DIR, and set ort_aie.overlays (or ORT_AIE_OVERLAYS) to ", "DIR");
  if (result.refusals.empty()) {
    throw DeviceError(Fault::kNoOverlay, Concat("there is no overlay ", design, " for ", device_,
                                                " in ", looked, "; ", remedy));
  }
  throw DeviceError(Fault::kWrongOverlay, Concat("no overlay ", design, " fits ", device_, ":",
                                                 result.refusals, "\n  ", remedy));
}

std::vector<fs::path> FoldersOf(std::string_view option) {
  std::vector<fs::path> folders;
  for (size_t begin = 0; begin < option.size();) {
    const size_t end = std::min(option.find(':', begin), option.size());
    if (end > begin) folders.emplace_back(option.substr(begin, end - begin));
    begin = end + 1;
  }
  return folders;
}

fs::path InstalledOverlays() {
  char library[4096];
  const void* here = reinterpret_cast<const void*>(&InstalledOverlays);
  if (!platform::PathOfCode(here, library, sizeof(library))) return {};
  return fs::path(library).parent_path() / "overlays";
}

fs::path CacheFolder(std::string_view name) {
  const fs::path cache = platform::CacheFolder();
  return cache.is_absolute() ? cache / "ort_aie_ep" / name : fs::path();
}

}  // namespace ort_aie::npu_target
