#include "ort/ep/constants.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "base/aligned.h"
#include "base/error.h"
#include "base/platform.h"
#include "q4nx/pack.h"

namespace ort_aie::ep {
namespace {

using q4nx::CeilDiv;

constexpr int64_t kPage = 4096;
constexpr int64_t kWorthMapping = 1 << 20;  // bytes; smaller constants are copied
constexpr int64_t kRowsPerTask = 256;       // a multiple of a block's 32 out-features

q4nx::ScaleType ScaleTypeOf(DataType type) {
  if (type == DataType::kFloat16) return q4nx::ScaleType::kFloat16;
  if (type == DataType::kBfloat16) return q4nx::ScaleType::kBfloat16;
  return q4nx::ScaleType::kFloat32;
}

// A key that distinguishes packed weights and other constants. Several nodes may read the same
// codes in different ways.
std::string KeyOf(const ClaimedRegion::Constant& constant) {
  if (constant.experts) {
    const ExpertPart& part = *constant.experts;
    const q4nx::ExpertLayout& its = part.layout;
    return Concat("experts ", part.source, '\n', part.scales, '\n', part.zero_points, '\n',
                  its.first, ' ', its.step, ' ', its.n, ' ', its.k, ' ', its.bits, ' ',
                  its.block_size, ' ', its.form.group, ' ', its.form.minima);
  }
  if (!constant.weights) return constant.name;
  const MatMulWeights& weights = *constant.weights;
  return Concat("packed ", weights.b, '\n', weights.scales, '\n', weights.zero_points, '\n',
                weights.k, ' ', weights.bits, ' ', weights.block_size, ' ', weights.form.group, ' ',
                weights.form.minima);
}

int64_t InPages(int64_t bytes) { return RoundUp(bytes, kPage).As("a constant"); }

// Calls task(i) for each i in [0, tasks).
void OnAllCores(int64_t tasks, const std::function<void(int64_t)>& task) {
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t i; (i = next.fetch_add(1)) < tasks;) task(i);
  };
  std::vector<std::jthread> threads;
  const int64_t most = std::max<int64_t>(1, std::thread::hardware_concurrency());
  try {
    for (int64_t i = 1; i < std::min(tasks, most); ++i) threads.emplace_back(work);
  } catch (const std::exception&) {  // no memory for a stack, or a limit: use the threads so far
  }
  work();
}

// Packs to `blocks`, which has as many bytes as the packed weights.
void PackMatMul(const MatMulWeights& matmul, const Tensor& b, const Tensor& scales,
                const Tensor& zero_points, uint8_t* blocks) {
  const int64_t n = matmul.n, k = matmul.k, bits = matmul.bits;
  const int64_t block_size = matmul.block_size, source_blocks = CeilDiv(k, block_size);
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
        rows, matmul.form,
        blocks + first / q4nx::kBlockRows * q4nx::ColBlocks(k) * q4nx::BlockBytes(matmul.form));
  };
  OnAllCores(CeilDiv(n, kRowsPerTask), [&](int64_t task) { pack_rows(task * kRowsPerTask); });
}

// Writes a constant of a QMoE, expert by expert.
void PackExperts(const ExpertPart& part, const Tensor& source, const Tensor& scales,
                 const Tensor& zero_points, uint8_t* to) {
  const q4nx::ExpertLayout& layout = part.layout;
  const bool is_bias = part.scales.empty();
  const auto of_expert = [](const Tensor& tensor, int64_t expert, int64_t bytes) {
    return tensor ? tensor.as<uint8_t>() + expert * bytes : nullptr;
  };
  std::atomic<bool> failed = false;
  const auto pack = [&](int64_t expert) {
    if (is_bias) {
      const auto bytes = layout.source_rows * static_cast<int64_t>(SizeOf(source.type));
      q4nx::ReadBias(layout, of_expert(source, expert, bytes), ScaleTypeOf(source.type),
                     reinterpret_cast<float*>(to) + expert * layout.n);
      return;
    }
    const auto scale_bytes = q4nx::ExpertScales(layout) * static_cast<int64_t>(SizeOf(scales.type));
    const bool packed =
        q4nx::PackExpert(layout, of_expert(source, expert, q4nx::ExpertCodeBytes(layout)),
                         of_expert(scales, expert, scale_bytes), ScaleTypeOf(scales.type),
                         of_expert(zero_points, expert, q4nx::ExpertZeroPointBytes(layout)),
                         to + expert * q4nx::BytesOfBlocks(layout.n, layout.k, layout.form));
    if (!packed) failed = true;
  };
  OnAllCores(part.experts, pack);
  Require(!failed, q4nx::kNoFp4Scale);
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
  const std::string path = platform::TextOf(api->ExternalInitializerInfo_GetFilePath(raw));
  const int64_t offset = api->ExternalInitializerInfo_GetFileOffset(raw);
  const Tensor& tensor = initializer.tensor;
  if (std::cmp_not_equal(api->ExternalInitializerInfo_GetByteSize(raw), tensor.bytes) ||
      offset < 0 || offset % static_cast<int64_t>(SizeOf(tensor.type)) != 0) {
    return nullptr;
  }
  const platform::File file = platform::File::Open(folder + path);
  if (!file.is_open() || !(Size(offset) + tensor.bytes <= Size(file.Bytes()))) return nullptr;
  const std::shared_ptr<const uint8_t> mapped = file.Map(offset, tensor.bytes);
  if (mapped == nullptr) return nullptr;
  const auto same = [&](int64_t at) {
    return std::memcmp(mapped.get() + at, tensor.as<uint8_t>() + at, static_cast<size_t>(kPage)) ==
           0;
  };
  if (!same(0) || !same(tensor.bytes - kPage)) return nullptr;
  return mapped;
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
      sources_.push_back({&constant, {its.type, its.shape, nullptr, true, its.range.size}});
      if (!constant.is_initializer()) continue;
      const Initializer& initializer = Find(constant.name);
      Require(initializer.tensor.bytes == its.range.size, "initializer '", constant.name, "' has ",
              initializer.tensor.bytes, " bytes, expected ", its.range.size);
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
  const Tensor none;
  const auto found = [&](const std::string& name) {
    return name.empty() ? none : Find(name).tensor;
  };
  if (source.constant->experts) {
    const ExpertPart& part = *source.constant->experts;
    PackExperts(part, found(part.source), found(part.scales), found(part.zero_points), bytes);
  } else if (source.constant->weights) {
    const MatMulWeights& weights = *source.constant->weights;
    PackMatMul(weights, found(weights.b), found(weights.scales), found(weights.zero_points), bytes);
  } else {
    const Tensor& tensor = Find(source.constant->name).tensor;
    if (tensor.bytes > 0) std::memcpy(bytes, tensor.data, static_cast<size_t>(tensor.bytes));
  }
}

std::vector<Tensor> Constants::Load(const OrtApi* api, const std::string& folder,
                                    std::vector<std::shared_ptr<const void>>& memory) const {
  std::vector<Tensor> tensors;
  int64_t copied = 0;
  for (const Source& source : sources_) {
    Tensor& tensor = tensors.emplace_back(source.tensor);
    if (source.constant->is_initializer() && tensor.bytes >= kWorthMapping) {
      if (auto mapped = MapFile(api, folder, Find(source.constant->name))) {
        tensor.data = mapped.get();
        memory.push_back(std::move(mapped));
        continue;
      }
    }
    copied = (Size(copied) + InPages(tensor.bytes)).As("the constants");
  }
  AlignedMemory slab = platform::AllocateInLargePages(static_cast<size_t>(std::max(copied, kPage)),
                                                      static_cast<size_t>(kPage));
  auto* next = static_cast<uint8_t*>(slab.get());
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
