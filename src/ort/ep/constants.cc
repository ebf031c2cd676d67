#include "ort/ep/constants.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "q4nx/pack.h"

namespace ort_aie::ep {
namespace {

using q4nx::CeilDiv;

constexpr int64_t kPage = 4096, kHugePage = 2 << 20;
constexpr int64_t kWorthMapping = 1 << 20;  // bytes; smaller constants are copied
constexpr int64_t kRowsPerTask = 256;       // a multiple of a block's 32 out-features

q4nx::ScaleType ScaleTypeOf(DataType type) {
  if (type == DataType::kFloat16) return q4nx::ScaleType::kFloat16;
  if (type == DataType::kBfloat16) return q4nx::ScaleType::kBfloat16;
  return q4nx::ScaleType::kFloat32;
}

// A key that distinguishes packed weights and other constants.
std::string KeyOf(const ClaimedRegion::Constant& constant) {
  if (!constant.weights) return constant.name;
  const MatMulWeights& weights = *constant.weights;
  return Concat("packed ", weights.b, '\n', weights.scales, '\n', weights.zero_points);
}

int64_t InPages(int64_t bytes) { return RoundUp(bytes, kPage).As("a constant"); }

// Packs to `blocks`, which has as many bytes as the packed weights.
void PackMatMul(const MatMulWeights& matmul, const Tensor& b, const Tensor& scales,
                const Tensor& zero_points, uint8_t* blocks) {
  const int64_t n = matmul.n, k = matmul.k, bits = matmul.bits;
  const int64_t block_size = matmul.block_size, source_blocks = CeilDiv(k, block_size);
  const WeightForm form = q4nx::FormOfBits(bits);
  const auto scale_bytes = static_cast<int64_t>(SizeOf(scales.type));
  const bool points_are_packed = !IsFloat(zero_points.type);
  const int64_t point_bytes = points_are_packed
                                  ? q4nx::PackedZeroPointBytes(bits, k, block_size)
                                  : source_blocks * static_cast<int64_t>(SizeOf(zero_points.type));
  const auto at = [](const Tensor& tensor, int64_t offset) {
    return tensor.as<uint8_t>() + offset;
  };
  const auto pack_rows = [&](int64_t first) {
    q4nx::MatMulNBitsRows rows{};
    rows.bits = bits;
    rows.rows = std::min(kRowsPerTask, n - first);
    rows.k = k;
    rows.block_size = block_size;
    rows.scale_type = ScaleTypeOf(scales.type);
    rows.b = at(b, first * q4nx::CodeBytes(bits, k, block_size));
    rows.scales = at(scales, first * source_blocks * scale_bytes);
    rows.zero_point_kind = q4nx::ZeroPoints::kNone;
    if (zero_points) {
      rows.zero_point_kind =
          points_are_packed ? q4nx::ZeroPoints::kPacked : q4nx::ZeroPoints::kFloat;
      rows.zero_point_type = ScaleTypeOf(zero_points.type);
      rows.zero_points = at(zero_points, first * point_bytes);
    }
    q4nx::PackMatMulNBits(
        rows, blocks + first / q4nx::kBlockRows * q4nx::ColBlocks(k) * q4nx::BlockBytes(form));
  };
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t first; (first = next.fetch_add(kRowsPerTask)) < n;) pack_rows(first);
  };
  std::vector<std::jthread> threads;
  const int64_t tasks = CeilDiv(n, kRowsPerTask);
  const int64_t most = std::max<int64_t>(1, std::thread::hardware_concurrency());
  try {
    for (int64_t i = 1; i < std::min(tasks, most); ++i) threads.emplace_back(work);
  } catch (const std::exception&) {  // no memory for a stack, or a limit: use the threads so far
  }
  work();
}

// The bytes of an initializer in its data file. Null if they cannot be mapped, or are not those
// that ONNX Runtime has.
std::shared_ptr<const void> MapFile(const OrtApi* api, const std::string& folder,
                                    const Initializer& initializer) {
  OrtExternalInitializerInfo* raw = nullptr;
  if (OrtStatus* status = api->ValueInfo_GetExternalInitializerInfo(initializer.info, &raw)) {
    api->ReleaseStatus(status);
    return nullptr;
  }
  if (raw == nullptr) return nullptr;
  const std::unique_ptr<OrtExternalInitializerInfo, decltype(api->ReleaseExternalInitializerInfo)>
      info(raw, api->ReleaseExternalInitializerInfo);
  const std::string path = api->ExternalInitializerInfo_GetFilePath(raw);
  const int64_t offset = api->ExternalInitializerInfo_GetFileOffset(raw);
  const Tensor& tensor = initializer.tensor;
  if (std::cmp_not_equal(api->ExternalInitializerInfo_GetByteSize(raw), tensor.bytes) ||
      offset < 0 || offset % static_cast<int64_t>(SizeOf(tensor.type)) != 0) {
    return nullptr;
  }
  const int file = ::open((folder + path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return nullptr;
  struct stat status{};
  const bool whole = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode) &&
                     Size(offset) + tensor.bytes <= Size(status.st_size);
  const int64_t begin = offset / kPage * kPage;
  const auto bytes = static_cast<size_t>(offset - begin + tensor.bytes);
  void* map = whole ? ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, begin) : MAP_FAILED;
  ::close(file);
  if (map == MAP_FAILED) return nullptr;
  const std::shared_ptr<const void> mapped(
      map, [bytes](const void* its) { ::munmap(const_cast<void*>(its), bytes); });
  const auto* data = static_cast<const uint8_t*>(map) + (offset - begin);
  const auto same = [&](int64_t at) {
    return std::memcmp(data + at, tensor.as<uint8_t>() + at, static_cast<size_t>(kPage)) == 0;
  };
  if (!same(0) || !same(tensor.bytes - kPage)) return nullptr;
  return {mapped, data};
}

}  // namespace

Constants::Constants(const std::vector<const ClaimedRegion*>& regions,
                     const Initializers& initializers)
    : initializers_(initializers) {
  for (const ClaimedRegion* region : regions) {
    for (size_t i = 0; i < region->constants.size(); ++i) {
      const ClaimedRegion::Constant& constant = region->constants[i];
      if (!index_.try_emplace(KeyOf(constant), sources_.size()).second) continue;
      const Recipe::Constant& its = region->recipe.constants[i];
      sources_.push_back({&constant, {its.type, its.shape, nullptr, true, its.span.size}});
      if (constant.weights) continue;
      const Initializer& initializer = Find(constant.name);
      Require(initializer.tensor.bytes == its.span.size, "initializer '", constant.name, "' has ",
              initializer.tensor.bytes, " bytes, expected ", its.span.size);
    }
  }
}

size_t Constants::IndexOf(const ClaimedRegion::Constant& constant) const {
  return index_.at(KeyOf(constant));
}

const Initializer& Constants::Find(const std::string& name) const {
  const auto found = initializers_.find(name);
  Require(found != initializers_.end(), "initializer '", name,
          "' is not in the graph that is compiled");
  return found->second;
}

void Constants::Fill(const Source& source, uint8_t* bytes) const {
  if (!source.constant->weights) {
    const Tensor& tensor = Find(source.constant->name).tensor;
    if (tensor.bytes > 0) std::memcpy(bytes, tensor.data, static_cast<size_t>(tensor.bytes));
    return;
  }
  const MatMulWeights& weights = *source.constant->weights;
  const Tensor none;
  PackMatMul(weights, Find(weights.b).tensor, Find(weights.scales).tensor,
             weights.zero_points.empty() ? none : Find(weights.zero_points).tensor, bytes);
}

std::vector<Tensor> Constants::Load(const OrtApi* api, const std::string& folder,
                                    std::vector<std::shared_ptr<const void>>& memory) const {
  std::vector<Tensor> tensors;
  int64_t copied = 0;
  for (const Source& source : sources_) {
    Tensor& tensor = tensors.emplace_back(source.tensor);
    if (!source.constant->weights && tensor.bytes >= kWorthMapping) {
      if (auto mapped = MapFile(api, folder, Find(source.constant->name))) {
        tensor.data = mapped.get();
        memory.push_back(std::move(mapped));
        continue;
      }
    }
    copied = (Size(copied) + InPages(tensor.bytes)).As("the constants");
  }
  // Each token reads all weights. Large pages need fewer address translations.
  const int64_t alignment = copied >= kHugePage ? kHugePage : kPage;
  const auto bytes = RoundUp(std::max(copied, kPage), alignment).As<size_t>("the constants");
  std::shared_ptr<uint8_t> slab(
      static_cast<uint8_t*>(std::aligned_alloc(static_cast<size_t>(alignment), bytes)), &std::free);
  if (slab == nullptr) throw std::bad_alloc();
  if (alignment == kHugePage) ::madvise(slab.get(), bytes, MADV_HUGEPAGE);
  uint8_t* next = slab.get();
  for (size_t i = 0; i < sources_.size(); ++i) {
    if (tensors[i].data != nullptr) continue;
    Fill(sources_[i], next);
    tensors[i].data = next;
    next += InPages(tensors[i].bytes);
  }
  memory.push_back(std::move(slab));
  return tensors;
}

}  // namespace ort_aie::ep
