#include "targets/npu/fused_decode/package.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "npu/json_reader.h"
#include "npu/manifest.h"

namespace ort_aie::fused_decode {
namespace {

namespace fs = std::filesystem;
using npu::ObjectReader;

constexpr int64_t kFormat = 1;
constexpr int64_t kMostWords = 1 << 22, kMostPositions = 1 << 17;

void RequireSize(ObjectReader& sizes, const char* name, int64_t expected) {
  const int64_t size = sizes.Integer(name, 0, INT64_MAX);
  Require(size == expected, sizes.PathOf(name), " is ", size, ", and the model's is ", expected);
}

std::vector<uint32_t> ReadWords(const fs::path& path, int64_t count) {
  std::error_code error;
  Require(fs::is_regular_file(path, error) &&
              fs::file_size(path, error) == static_cast<uintmax_t>(4 * count),
          path.string(), " does not have ", count, " words");
  std::vector<uint32_t> words(static_cast<size_t>(count));
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(words.data()), 4 * count);
  Require(file.gcount() == 4 * count, path.string(), " cannot be read");
  return words;
}

// The name of a file in the package.
fs::path FileOf(const fs::path& folder, ObjectReader& window, const char* key) {
  const std::string name = window.String(key);
  Require(!name.empty() && fs::path(name).filename() == name, window.PathOf(key),
          " must be the name of a file in the package, got ", name);
  return folder / name;
}

Window ReadWindow(const fs::path& folder, const Geometry& geometry, const npu::Json& value,
                  const std::string& path) {
  ObjectReader reader(value, path);
  Window window;
  window.positions = reader.Integer("positions", 16, kMostPositions);
  window.overlay = FileOf(folder, reader, "overlay");
  window.uuid = reader.String("uuid");
  window.kernel = reader.String("kernel");
  RequireSize(reader, "kvc", geometry.kv_elements(window.positions));
  const int64_t count = reader.Integer("word_count", 1, kMostWords);
  window.words = {.words = ReadWords(FileOf(folder, reader, "words"), count),
                  .slopes = {},
                  .base_length = reader.Integer("base_length", 1, window.positions),
                  .positions = window.positions};
  const int64_t sum = reader.Integer("crc32", 0, UINT32_MAX);
  Require(Crc32(window.words.words) == static_cast<uint32_t>(sum), path,
          ": its words are not those that were packaged");
  const npu::Json& slopes = npu::ReadList(reader.Take("slopes"), reader.PathOf("slopes"));
  for (size_t i = 0; i < slopes.size(); ++i) {
    const std::string at = Concat(reader.PathOf("slopes"), "[", i, "]");
    const npu::Json& pair = npu::ReadList(slopes[i], at);
    if (pair.size() != 2) npu::FailValue(at, "a word and its slope", pair);
    const int64_t first =
        window.words.slopes.empty() ? 0 : static_cast<int64_t>(window.words.slopes.back().word) + 1;
    window.words.slopes.push_back(
        {static_cast<size_t>(npu::ReadInteger(pair[0], at, first, count - 1)),
         npu::ReadInteger(pair[1], at, INT32_MIN, UINT32_MAX)});
  }
  reader.Finish();
  return window;
}

}  // namespace

uint32_t Crc32(const std::vector<uint32_t>& words) {
  constexpr uint32_t kPolynomial = 0xedb88320;
  uint32_t sum = ~uint32_t{0};
  for (const uint32_t word : words) {
    sum ^= word;  // four bytes at once, the lowest first
    for (int bit = 0; bit < 32; ++bit) sum = sum >> 1 ^ (sum & 1 ? kPolynomial : 0);
  }
  return ~sum;
}

Package ReadPackage(const fs::path& folder) {
  std::error_code error;
  const uintmax_t bytes = fs::file_size(folder / kManifest, error);
  Require(!error && bytes <= npu::kMaxManifestBytes, kManifest, " has more than ",
          npu::kMaxManifestBytes, " bytes, or cannot be read");
  std::ifstream file(folder / kManifest);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const npu::Json json = npu::Json::parse(text, nullptr, false);
  Require(!json.is_discarded(), kManifest, " is not JSON");
  ObjectReader reader(json, kManifest);
  const int64_t format = reader.Integer("format", 0, INT64_MAX);
  Require(format == kFormat, kManifest, " has format ", format, ", and this library reads ",
          kFormat, "; package the overlay again with this version");
  Require(reader.String("kind") == "fused_decode", kManifest, " is not for a fused decode");
  const std::string model = reader.String("model");
  const Geometry* const geometry = FindGeometry(model);
  Require(geometry != nullptr, kManifest, " is for ", model, ", which this version does not know");
  Package package{
      .geometry = *geometry,
      .device = reader.String("device"),
      .channels = reader.Integer("channels", 1, 2) == 1 ? Channels::kOne : Channels::kTwo,
      .any_epsilon = false,
      .windows = {}};
  const npu::Json& any = reader.Take("any_epsilon");
  if (!any.is_boolean()) npu::FailValue(reader.PathOf("any_epsilon"), "true or false", any);
  package.any_epsilon = any.get<bool>();
  reader.Take("commit");
  reader.Take("flags");
  ObjectReader sizes(reader.Take("elements"), reader.PathOf("elements"));
  const npu::Json& w = npu::ReadList(sizes.Take("w"), sizes.PathOf("w"));
  if (w != npu::Json(geometry->weight_elements())) {
    npu::FailValue(sizes.PathOf("w"), npu::Json(geometry->weight_elements()).dump(), w);
  }
  RequireSize(sizes, "rms", geometry->rms_elements());
  RequireSize(sizes, "y", geometry->y_elements());
  sizes.Finish();
  const npu::Json& windows = npu::ReadList(reader.Take("windows"), reader.PathOf("windows"));
  for (size_t i = 0; i < windows.size(); ++i) {
    package.windows.push_back(
        ReadWindow(folder, *geometry, windows[i], Concat(reader.PathOf("windows"), "[", i, "]")));
  }
  Require(
      !package.windows.empty() && std::ranges::is_sorted(package.windows, {}, &Window::positions),
      kManifest, " has no windows, or not in ascending order");
  reader.Finish();
  return package;
}

std::vector<Package> FindPackages(const std::vector<fs::path>& folders, std::string_view device,
                                  std::vector<std::string>& refusals) {
  std::vector<Package> packages;
  const auto look = [&](const fs::path& folder) {
    std::error_code ignored;
    if (!fs::is_regular_file(folder / kManifest, ignored)) return;
    try {
      Package package = ReadPackage(folder);
      Require(package.device == device, "it was built for ", package.device, ", and the device is ",
              device);
      packages.push_back(std::move(package));
    } catch (const std::exception& error) {
      refusals.push_back(Concat(folder.string(), ": ", error.what()));
    }
  };
  for (const fs::path& folder : folders) {
    look(folder);
    std::error_code ignored;
    std::vector<fs::path> inside;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
      if (entry.is_directory(ignored)) inside.push_back(entry.path());
    }
    std::ranges::sort(inside);
    std::ranges::for_each(inside, look);
  }
  return packages;
}

}  // namespace ort_aie::fused_decode
