#include "q4nx/experts.h"

#include <cstring>
#include <vector>

namespace ort_aie::q4nx {

void PackExpert(const ExpertLayout& layout, const uint8_t* codes, const void* scales,
                ScaleType scale_type, const uint8_t* zero_points, uint8_t* blocks) {
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
}

void ReadBias(const ExpertLayout& layout, const void* biases, ScaleType type, float* to) {
  for (int64_t i = 0; i < layout.n; ++i) {
    to[i] = LoadScale(biases, type, layout.first + i * layout.step);
  }
}

}  // namespace ort_aie::q4nx
