// Packages of `ort-aie package-overlay`: what is known of an overlay that mlir-air built.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "targets/npu/fused_decode/geometry.h"
#include "targets/npu/fused_decode/weights.h"
#include "targets/npu/fused_decode/words.h"

namespace ort_aie::fused_decode {

inline constexpr char kManifest[] = "fused_decode.json";

struct Window {
  int64_t positions = 0;
  std::filesystem::path overlay;
  std::string uuid, kernel;
  WordTemplate words;
};

struct Package {
  Geometry geometry{};
  std::string device;
  Channels channels = Channels::kTwo;
  bool any_epsilon = false;     // other norms than the overlay's were accepted
  std::vector<Window> windows;  // ascending
};

// Throws Error for a folder that holds no whole package of this version: sizes that are not those
// of the model, words that are not those that were packaged.
Package ReadPackage(const std::filesystem::path& folder);

// All packages for `device`, as manifests have it, in `folders`, each a package or a folder of
// packages, in their order. Of those that cannot be read or are for another device, `refusals` has
// a line each.
std::vector<Package> FindPackages(const std::vector<std::filesystem::path>& folders,
                                  std::string_view device, std::vector<std::string>& refusals);

// CRC-32 of zlib and PNG.
uint32_t Crc32(const std::vector<uint32_t>& words);

}  // namespace ort_aie::fused_decode
