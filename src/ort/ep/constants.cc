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
constexpr char kNoName[] = "-";             // in texts
constexpr int64_t kRowsPerTask = 256;       // a multiple of a block's 32 out-features

q4nx::ScaleType ScaleTypeOf(DataType type) {
  if (type == DataType::kFloat16) return q4nx::ScaleType::kFloat16;
  if (type == DataType::kBfloat16) return q4nx::ScaleType::kBfloat16;
  return q4nx::ScaleType::kFloat32;
}

// Distinguishes packed weights and other constants. Several nodes may read the same codes in
// different ways.
std::string KeyOf(const ClaimedRegion::Constant& constant) {
  return TextOf(constant, [](const std::string& name) { return name + '\n'; });
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

// Whether rows of codes can be packed into blocks of the form.
bool CanBePacked(int64_t bits, int64_t k, int64_t block_size, const WeightForm& form) {
  constexpr int64_t kMost = int64_t{1} << 40;
  return q4nx::IsBits(bits) && k > 0 && k <= kMost && block_size > 0 && block_size <= kMost &&
         form.kind == q4nx::KindOfBits(bits) && q4nx::IsGroup(form.group) &&
         block_size % form.group == 0;
}

// Whether there are as many bytes as Fill reads, and as it writes.
bool Fits(const MatMulWeights& its, const Tensor& b, const Tensor& scales, const Tensor& points,
          int64_t made) {
  if (!CanBePacked(its.bits, its.k, its.block_size, its.form)) return false;
  const Size n = its.n, k = its.k, groups = CeilDiv(k, its.block_size);
  const bool packed = !IsFloat(points.type);
  const Size point_bytes = packed ? q4nx::PackedZeroPointBytes<Size>(its.bits, k, its.block_size)
                                  : groups * SizeOf(points.type);
  return n * q4nx::CodeBytes<Size>(its.bits, k, its.block_size) == b.bytes &&
         IsFloat(scales.type) && n * groups * SizeOf(scales.type) == scales.bytes &&
         (!points || ((packed || its.bits != 8) && n * point_bytes == points.bytes)) &&
         q4nx::BytesOfBlocks(n, k, its.form) == made;
}

bool Fits(const ExpertPart& part, const Tensor& source, const Tensor& scales, const Tensor& points,
          int64_t made) {
  const q4nx::ExpertLayout& its = part.layout;
  const Size experts = part.experts, rows = its.source_rows, n = its.n, k = its.k;
  if (its.n <= 0 || its.step <= 0 || !(Size(its.first) + Size(its.n - 1) * its.step + 1 <= rows)) {
    return false;
  }
  if (part.scales.empty()) {
    return IsFloat(source.type) && experts * rows * SizeOf(source.type) == source.bytes &&
           experts * n * sizeof(float) == made;
  }
  if (its.is_fp4()) {
    return its.k > 0 && its.k % q4nx::kGroup == 0 && its.source_rows % 2 == 0 &&
           experts * k * (its.source_rows / 2) == source.bytes &&
           experts * rows * (its.k / q4nx::kGroup) == scales.bytes &&
           experts * sizeof(float) == points.bytes &&
           experts * q4nx::BytesOfBlocks(n, k, its.form) == made;
  }
  const bool by_row = its.block_size == 0;  // which holds for groups of any size
  const int64_t block_size =
      by_row && its.k > 0 ? CeilDiv(its.k, q4nx::kBlockCols) * q4nx::kBlockCols : its.block_size;
  if (!CanBePacked(its.bits, its.k, block_size, its.form) || its.k * its.bits % 8 != 0 ||
      (!by_row && its.k % block_size != 0)) {
    return false;
  }
  const Size groups = CeilDiv(k, block_size);
  const Size point_bytes =
      by_row ? CeilDiv(rows * its.bits, 8) : rows * CeilDiv(groups * its.bits, 8);
  return experts * rows * (its.k * its.bits / 8) == source.bytes && IsFloat(scales.type) &&
         experts * rows * groups * SizeOf(scales.type) == scales.bytes &&
         (!points || (!IsFloat(points.type) && experts * point_bytes == points.bytes)) &&
         experts * q4nx::BytesOfBlocks(n, k, its.form) == made;
}

}  // namespace

DataRange FindData(const OrtApi* api, const std::string& folder, const Initializer& initializer) {
  OrtExternalInitializerInfo* raw = nullptr;
  if (OrtStatus* status = api->ValueInfo_GetExternalInitializerInfo(initializer.info, &raw)) {
    api->ReleaseStatus(status);
    return {};
  }
  if (raw == nullptr) return {};
  const std::unique_ptr<OrtExternalInitializerInfo, decltype(api->ReleaseExternalInitializerInfo)>
      info(raw, api->ReleaseExternalInitializerInfo);
  DataRange range = {platform::TextOf(api->ExternalInitializerInfo_GetFilePath(raw)),
                     api->ExternalInitializerInfo_GetFileOffset(raw), nullptr};
  const Tensor& tensor = initializer.tensor;
  if (std::cmp_not_equal(api->ExternalInitializerInfo_GetByteSize(raw), tensor.bytes) ||
      tensor.bytes == 0 || range.offset < 0 ||
      range.offset % static_cast<int64_t>(SizeOf(tensor.type)) != 0) {
    return {};
  }
  const platform::File file = platform::File::Open(folder + range.file);
  if (!file.is_open() || !(Size(range.offset) + tensor.bytes <= Size(file.Bytes()))) return {};
  const auto mapped = file.Map(range.offset, tensor.bytes);
  if (mapped == nullptr) return {};
  // Not those that ONNX Runtime has, if the file has changed.
  const int64_t most = std::min(kPage, tensor.bytes);
  const auto same = [&](int64_t at) {
    return std::memcmp(mapped.get() + at, tensor.as<uint8_t>() + at, static_cast<size_t>(most)) ==
           0;
  };
  if (same(0) && same(tensor.bytes - most)) range.bytes = mapped;
  return range;
}

std::string TextOf(const ClaimedRegion::Constant& constant,
                   const std::function<std::string(const std::string&)>& name) {
  const auto word = [&](const std::string& of) { return of.empty() ? kNoName : name(of); };
  if (constant.experts) {
    const ExpertPart& part = *constant.experts;
    const q4nx::ExpertLayout& its = part.layout;
    const std::string source = word(part.source), scales = word(part.scales);
    return Concat("experts ", source, ' ', scales, ' ', word(part.zero_points), ' ', part.experts,
                  ' ', its.source_rows, ' ', its.first, ' ', its.step, ' ', its.n, ' ', its.k, ' ',
                  its.bits, ' ', its.block_size, ' ', its.form.group, ' ', its.form.minima, ' ',
                  its.is_fp4());
  }
  if (!constant.weights) return Concat("initializer ", word(constant.name));
  const MatMulWeights& its = *constant.weights;
  const std::string b = word(its.b), scales = word(its.scales);
  return Concat("weights ", b, ' ', scales, ' ', word(its.zero_points), ' ', its.n, ' ', its.k, ' ',
                its.bits, ' ', its.block_size, ' ', its.form.group, ' ', its.form.minima);
}

bool ReadConstant(std::istream& words, ClaimedRegion::Constant& constant) {
  const auto read = [&](const std::vector<std::string*>& names) {
    for (std::string* name : names) {
      if (words >> *name && *name == kNoName) name->clear();
    }
  };
  std::string kind;
  words >> kind;
  if (kind == "experts") {
    ExpertPart& part = constant.experts.emplace();
    q4nx::ExpertLayout& its = part.layout;
    read({&part.source, &part.scales, &part.zero_points});
    bool is_fp4 = false;
    words >> part.experts >> its.source_rows >> its.first >> its.step >> its.n >> its.k >>
        its.bits >> its.block_size >> its.form.group >> its.form.minima >> is_fp4;
    its.form.kind = q4nx::KindOfBits(its.bits);
    if (is_fp4) its.form = q4nx::FormOf(FileType::kMXFP4);
  } else if (kind == "weights") {
    MatMulWeights& its = constant.weights.emplace();
    read({&its.b, &its.scales, &its.zero_points});
    words >> its.n >> its.k >> its.bits >> its.block_size >> its.form.group >> its.form.minima;
    its.form.kind = q4nx::KindOfBits(its.bits);
  } else if (kind == "initializer") {
    read({&constant.name});
  } else {
    return false;
  }
  return !words.fail();
}

Constants::Constants(const std::vector<const ClaimedRegion*>& regions,
                     const Initializers& initializers)
    : initializers_(initializers) {
  for (const ClaimedRegion* region : regions) {
    for (size_t i = 0; i < region->constants.size(); ++i) {
      const ClaimedRegion::Constant& constant = region->constants[i];
      if (!index_.try_emplace(KeyOf(constant), sources_.size()).second) continue;
      const Recipe::Constant& its = region->recipe.constants[i];
      sources_.push_back({&constant, {its.type, its.shape, nullptr, true, its.range.size}});
      if (constant.is_initializer()) {
        const int64_t bytes = Find(constant.name).bytes;
        Require(bytes == its.range.size, "initializer '", constant.name, "' has ", bytes,
                " bytes, expected ", its.range.size);
      } else {
        const auto fits = [&](const auto& part, const std::string& source) {
          return Fits(part, Find(source), Find(part.scales), Find(part.zero_points),
                      its.range.size);
        };
        Require(constant.weights ? fits(*constant.weights, constant.weights->b)
                                 : fits(*constant.experts, constant.experts->source),
                "the initializers of the weights '", constant.name, "' do not fit them");
      }
    }
  }
}

size_t Constants::IndexOf(const ClaimedRegion::Constant& constant) const {
  return index_.at(KeyOf(constant));
}

Tensor Constants::Find(const std::string& name) const {
  if (name.empty()) return {};
  const auto found = initializers_.find(name);
  Require(found != initializers_.end(), "initializer '", name,
          "' is not in the graph that is compiled");
  return found->second.tensor;
}

void Constants::Fill(const Source& source, uint8_t* bytes) const {
  if (source.constant->experts) {
    const ExpertPart& part = *source.constant->experts;
    PackExperts(part, Find(part.source), Find(part.scales), Find(part.zero_points), bytes);
  } else if (source.constant->weights) {
    const MatMulWeights& weights = *source.constant->weights;
    PackMatMul(weights, Find(weights.b), Find(weights.scales), Find(weights.zero_points), bytes);
  } else {
    const Tensor tensor = Find(source.constant->name);
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
      const Initializer& its = initializers_.at(source.constant->name);
      if (auto mapped = its.mapped ? its.mapped : FindData(api, folder, its).bytes) {
        tensor.data = its.mapped ? its.tensor.data : mapped.get();
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
