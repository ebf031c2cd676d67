#include "q4nx/experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "q4nx/pack_file.h"

namespace ort_aie::q4nx {
namespace {

bool PackFp4Expert(const ExpertLayout& layout, const uint8_t* codes, const uint8_t* exponents,
                   const void* factor_of_all, uint8_t* blocks) {
  constexpr FileType kType = FileType::kMXFP4;
  constexpr int64_t kHalf = kGroup / 2;  // of a file's group: codes of the low nibbles
  float factor;
  std::memcpy(&factor, factor_of_all, sizeof factor);
  int power;
  if (std::frexp(factor, &power) != 0.5f) return false;
  const int64_t groups = layout.k / kGroup, row_bytes = FileRowBytes(kType, layout.k);
  std::vector<uint8_t> rows(static_cast<size_t>(kBlockRows * row_bytes));
  for (int64_t begin = 0; begin < layout.n; begin += kBlockRows) {
    const int64_t count = std::min(kBlockRows, layout.n - begin);
    std::ranges::fill(rows, uint8_t{0});
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t row = layout.first + (begin + i) * layout.step;
        uint8_t* group = rows.data() + i * row_bytes + g * (1 + kHalf);
        const int given = exponents[row * groups + g], exponent = given + power - 1;
        if (given == 255 || exponent < 0 || exponent >= 255) return false;
        group[0] = static_cast<uint8_t>(exponent);
        for (int64_t j = 0; j < kGroup; ++j) {
          const int64_t at = (g * kGroup + j) * (layout.source_rows / 2) + row / 2;
          const int code = codes[at] >> row % 2 * 4 & 15;
          group[1 + j % kHalf] |= static_cast<uint8_t>(code << j / kHalf * 4);
        }
      }
    }
    PackFile(kType, rows.data(), count, layout.k, blocks);
    blocks += ColBlocks(layout.k, layout.form) * BlockBytes(layout.form);
  }
  return true;
}

}  // namespace

bool PackExpert(const ExpertLayout& layout, const uint8_t* codes, const void* scales,
                ScaleType scale_type, const uint8_t* zero_points, uint8_t* blocks) {
  if (layout.is_fp4()) {
    return PackFp4Expert(layout, codes, static_cast<const uint8_t*>(scales), zero_points, blocks);
  }
  const int64_t n = layout.n, k = layout.k, bits = layout.bits;
  const bool by_row = layout.block_size == 0;
  const int64_t block_size = by_row ? CeilDiv(k, kGroup) * kGroup : layout.block_size;
  const int64_t groups = CeilDiv(k, block_size);
  const int64_t source_bytes = k * bits / 8, row_bytes = CodeBytes(bits, k, block_size);
  const int64_t scale_bytes = groups * (scale_type == ScaleType::kFloat32 ? 4 : 2);
  const int64_t point_bytes = PackedZeroPointBytes(bits, k, block_size);

  // The chosen rows in MatMulNBits' layout, 32 at a time.
  std::vector<uint8_t> row_codes(static_cast<size_t>(kBlockRows * row_bytes));
  std::vector<uint8_t> row_scales(static_cast<size_t>(kBlockRows * scale_bytes));
  std::vector<uint8_t> row_points(static_cast<size_t>(kBlockRows * point_bytes));
  const auto copy = [](std::vector<uint8_t>& to, int64_t i, int64_t bytes, const void* from,
                       int64_t row, int64_t from_bytes) {
    std::memcpy(to.data() + i * bytes, static_cast<const uint8_t*>(from) + row * from_bytes,
                static_cast<size_t>(from_bytes));
  };
  const int64_t blocks_bytes = ColBlocks(k) * BlockBytes(layout.form);
  for (int64_t begin = 0; begin < n; begin += kBlockRows, blocks += blocks_bytes) {
    MatMulNBitsRows rows{};
    rows.rows = n - begin < kBlockRows ? n - begin : kBlockRows;
    for (int64_t i = 0; i < rows.rows; ++i) {
      const int64_t row = layout.first + (begin + i) * layout.step;
      copy(row_codes, i, row_bytes, codes, row, source_bytes);
      copy(row_scales, i, scale_bytes, scales, row, scale_bytes);
      if (zero_points == nullptr) continue;
      if (by_row) {
        const int64_t bit = row * bits;
        row_points[static_cast<size_t>(i)] =
            static_cast<uint8_t>(zero_points[bit / 8] >> bit % 8 & ((1 << bits) - 1));
      } else {
        copy(row_points, i, point_bytes, zero_points, row, point_bytes);
      }
    }
    rows.b = row_codes.data();
    rows.scales = row_scales.data();
    rows.zero_points = row_points.data();
    rows.zero_point_kind = zero_points != nullptr ? ZeroPoints::kPacked : ZeroPoints::kNone;
    rows.scale_type = scale_type;
    rows.k = k;
    rows.block_size = block_size;
    rows.bits = bits;
    PackMatMulNBits(rows, layout.form, blocks);
  }
  return true;
}

void ReadBias(const ExpertLayout& layout, const void* biases, ScaleType type, float* to) {
  for (int64_t i = 0; i < layout.n; ++i) {
    to[i] = LoadScale(biases, type, layout.first + i * layout.step);
  }
}

}  // namespace ort_aie::q4nx
