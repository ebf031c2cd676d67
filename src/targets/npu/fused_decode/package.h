// Packages of `ort-aie package-overlay`: the facts about an overlay that mlir-air built.
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
  bool any_epsilon = false;     // norms with another epsilon than the overlay's are accepted
  std::vector<Window> windows;  // ascending
};

// Throws Error if the folder is not a complete package of this version, for example if sizes are
// not those of the model, or words are not those that were packaged.
Package ReadPackage(const std::filesystem::path& folder);

// All packages for `device`, which is named as in manifests, in `folders`. Each folder is a package
// or a folder of packages; they come in this order. For each package that cannot be read, or is for
// another device, `refusals` gets a line.
std::vector<Package> FindPackages(const std::vector<std::filesystem::path>& folders,
                                  std::string_view device, std::vector<std::string>& refusals);

// CRC-32, as in zlib and PNG.
uint32_t Crc32(const std::vector<uint32_t>& words);

}  // namespace ort_aie::fused_decode
