#include "ort/ep/packed_weights.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <new>
#include <thread>
#include <vector>

#include "base/error.h"
#include "ops/weights.h"
#include "q4nx/pack.h"

namespace ort_aie::ep {
namespace {

using q4nx::CeilDiv;

constexpr size_t kPage = 4096;
constexpr int64_t kRowsPerTask = 256;  // a multiple of a block's 32 out-features

q4nx::ScaleType ScaleTypeOf(DataType type) {
  if (type == DataType::kFloat16) return q4nx::ScaleType::kFloat16;
  if (type == DataType::kBfloat16) return q4nx::ScaleType::kBfloat16;
  return q4nx::ScaleType::kFloat32;
}

}  // namespace

std::string WhyMalformed(const Node& matmul) {
  const int64_t n = matmul.Int("N", 0), k = matmul.Int("K", 0);
  const int64_t bits = matmul.Int("bits", 4);
  const int64_t block_size = matmul.Int("block_size", 0);
  const Tensor &b = matmul.input(1).initializer, &scales = matmul.input(2).initializer,
               &zero_points = matmul.input(3).initializer;
  if (!IsFloat(scales.type)) {
    return Concat("scales are ", NameOf(scales.type), "; expected float, float16 or bfloat16");
  }
  const Size code_bytes = n * q4nx::CodeBytes<Size>(bits, k, block_size);
  if (code_bytes != b.bytes) {
    return Concat("B has ", b.bytes, " bytes, expected ", code_bytes);
  }
  const Size blocks = n * CeilDiv(Size(k), block_size);
  if (blocks != ElementCount(scales.shape) || blocks * SizeOf(scales.type) != scales.bytes) {
    return Concat("scales have ", ElementCount(scales.shape), " values, expected ", blocks);
  }
  if (!zero_points) return "";
  // Packed bytes, or a float for each scale.
  const bool packed = zero_points.type == DataType::kUint8;
  if (!packed && !IsFloat(zero_points.type)) {
    return Concat("zero_points are ", NameOf(zero_points.type),
                  "; expected uint8, float, float16 or bfloat16");
  }
  const Size points = packed ? n * q4nx::PackedZeroPointBytes<Size>(bits, k, block_size) : blocks;
  if (points != ElementCount(zero_points.shape) ||
      points * SizeOf(zero_points.type) != zero_points.bytes) {
    return Concat("zero_points have ", ElementCount(zero_points.shape), " values, expected ",
                  points);
  }
  return "";
}

std::shared_ptr<const PackedWeights> PackMatMul(const Node& matmul) {
  const int64_t n = matmul.Int("N", 0), k = matmul.Int("K", 0);
  const int64_t bits = matmul.Int("bits", 4);
  const int64_t block_size = matmul.Int("block_size", 0), source_blocks = CeilDiv(k, block_size);
  const Tensor &b = matmul.input(1).initializer, &scales = matmul.input(2).initializer,
               &zero_points = matmul.input(3).initializer;
  const WeightForm form = q4nx::FormOfBits(bits);
  auto packed = std::make_shared<PackedWeights>();
  packed->blocks.type = DataType::kUint8;
  packed->blocks.shape = BlocksShape(n, k, form);
  packed->blocks.present = true;
  packed->blocks.bytes = q4nx::BytesOfBlocks<Size>(n, k, form).As("packed weights");
  const auto size = RoundUp(packed->blocks.bytes, kPage).As<size_t>("packed weights");
  packed->memory.reset(std::aligned_alloc(kPage, size));
  if (packed->memory == nullptr) throw std::bad_alloc();
  packed->blocks.data = packed->memory.get();

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
    auto* blocks = static_cast<uint8_t*>(packed->memory.get());
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
  } catch (const std::exception&) {  // no memory for a stack, or a limit: those there are will do
  }
  work();
  threads.clear();  // joins
  return packed;
}

}  // namespace ort_aie::ep
