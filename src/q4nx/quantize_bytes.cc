#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "q4nx/quantize.h"

namespace ort_aie::q4nx {
namespace {

constexpr float kMostSteps = 255;
constexpr float kMiddle = 128;  // the zero point of symmetric weights
constexpr float kLeastByteScale = std::numeric_limits<float>::min();  // its inverse is finite

inline float Round(float x) {
  return (x + 12582912.0f) - 12582912.0f;  // 1.5 * 2^23: to the nearest integer, ties to even
}

inline float Code(float x, float inverse, float zero_point) {
  return std::clamp(Round(x * inverse) + zero_point, 0.0f, kMostSteps);
}

// A way to store a group of weights.
struct CodeGrid {
  float scale = 0, zero_point = kMiddle;

  float Inverse() const { return scale > 0 ? 1 / scale : 0; }

  // The squared error of `count` weights, each times its importance unless that is null.
  double ErrorOf(const float* x, int64_t count, const float* importance) const {
    const float inverse = Inverse();
    double error = 0;
    for (int64_t i = 0; i < count; ++i) {
      const double difference = x[i] - scale * (Code(x[i], inverse, zero_point) - zero_point);
      const double square = difference * difference;
      error += importance == nullptr ? square : double{importance[i]} * square;
    }
    return error;
  }
};

CodeGrid BestGrid(const float* x, int64_t count, const float* importance) {
  float low = 0, high = 0;
  for (int64_t i = 0; i < count; ++i) {
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
  }
  CodeGrid symmetric;
  if (const float scale = std::max(high, -low) / (kMiddle - 1); scale >= kLeastByteScale) {
    symmetric.scale = scale;
  }
  const float scale = (high - low) / kMostSteps;
  if (scale < kLeastByteScale) return symmetric;
  const CodeGrid asymmetric{scale, Round(-low / scale)};
  return asymmetric.ErrorOf(x, count, importance) < symmetric.ErrorOf(x, count, importance)
             ? asymmetric
             : symmetric;
}

}  // namespace

void QuantizeBytes(const float* weights, int64_t row_stride, int64_t col_stride, int64_t n,
                   int64_t k, const float* importance, uint8_t* blocks, QuantizationError& total) {
  constexpr WeightForm kForm = {WeightKind::kQ8NX};
  std::memset(blocks, 0, static_cast<size_t>(BytesOfBlocks(n, k, kForm)));
  for (int64_t n0 = 0; n0 < n; n0 += kBlockRows) {
    for (int64_t k0 = 0; k0 < k; k0 += kGroup) {
      const int64_t count = std::min(kGroup, k - k0), group = k0 % kBlockCols / kGroup;
      uint8_t* block =
          blocks + (n0 / kBlockRows * ColBlocks(k) + k0 / kBlockCols) * BlockBytes(kForm);
      for (int64_t r = 0; r < std::min(kBlockRows, n - n0); ++r) {
        float x[kGroup];
        for (int64_t i = 0; i < count; ++i) {
          x[i] = weights[(n0 + r) * row_stride + (k0 + i) * col_stride];
        }
        const float* counts = importance == nullptr ? nullptr : importance + k0;
        const CodeGrid grid = BestGrid(x, count, counts);
        const float inverse = grid.Inverse();
        const int64_t index = group * kBlockRows + r;
        std::memcpy(block + kScalesOffset8 + 4 * index, &grid.scale, 4);
        block[MinimaOffset(kForm) + index] = static_cast<uint8_t>(grid.zero_point);
        uint8_t* codes = block + (group * kGroup / kQuad * kBlockRows + r) * kQuad;
        for (int64_t i = 0; i < count; ++i) {
          const float code = Code(x[i], inverse, grid.zero_point);
          const float error = std::abs(x[i] - grid.scale * (code - grid.zero_point));
          codes[i / kQuad * kBlockRows * kQuad + i % kQuad] = static_cast<uint8_t>(code);
          const double squared = double{error} * double{error};
          total.squared_error += squared;
          total.weighted_error += counts == nullptr ? squared : double{counts[i]} * squared;
          total.squared_weights += double{x[i]} * double{x[i]};
          total.largest_error = std::max(total.largest_error, error);
        }
      }
    }
  }
}

}  // namespace ort_aie::q4nx
