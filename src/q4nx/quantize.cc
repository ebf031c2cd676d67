#include "q4nx/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "q4nx/bfloat16.h"

namespace ort_aie::q4nx {
namespace {

// Out-features that are searched at once, in vectors of whatever width the compiler has. They are
// half a block, whose codes for one k are eight adjacent bytes.
constexpr int kLanes = 16;
using Lanes = float[kLanes];

// How much a range may lose at either end, in fractions of its width (15 steps): 25 ranges. More
// ranges, or larger losses, lower the error of normal and of heavy-tailed weights by less than one
// percent.
constexpr float kShrink = 0.03f;
constexpr int kShrinks = 5;
constexpr int kFits = 2;

constexpr float kMaxCode = 15;
constexpr float kLeastScale = std::numeric_limits<float>::min();  // its inverse is finite
constexpr float kLargest = 0x1p60f;  // the squares of a range of such weights are finite

// For one group in each lane.
struct Fit {
  Lanes scale, min, error;
};

inline float RoundToBf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
}

// The largest bfloat16 that is not above x. A range therefore starts at or below its first weight,
// and a group of one value loses nothing when its minimum is rounded.
inline float FloorToBf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t up = (bits >> 31) * 0xffffu;  // for a negative number, the larger magnitude
  return std::bit_cast<float>((bits + up) & 0xffff0000u);
}

inline float Code(float x, float inverse, float min) {
  float t = (x - min) * inverse;
  t = t > 0 ? t : 0;
  t = t < kMaxCode ? t : kMaxCode;
  return (t + 12582912.0f) - 12582912.0f;  // 1.5 * 2^23: to the nearest integer, ties to even
}

inline float Inverse(float scale) { return scale > 0 ? 1 / scale : 0; }

// Keeps (scale, min) for each lane where they fit its `count` weights x better.
void Try(const Lanes* x, int count, const Lanes& scale, const Lanes& min, Fit& best) {
  Lanes inverse, error = {};
  for (int i = 0; i < kLanes; ++i) inverse[i] = Inverse(scale[i]);
  for (int c = 0; c < count; ++c) {
    for (int i = 0; i < kLanes; ++i) {
      const float code = Code(x[c][i], inverse[i], min[i]);
      const float difference = x[c][i] - (scale[i] * code + min[i]);
      error[i] += difference * difference;
    }
  }
  for (int i = 0; i < kLanes; ++i) {
    const bool better = error[i] < best.error[i];
    best.scale[i] = better ? scale[i] : best.scale[i];
    best.min[i] = better ? min[i] : best.min[i];
    best.error[i] = better ? error[i] : best.error[i];
  }
}

// The least-squares line through (code, weight), for the codes of `best`.
void FitToCodes(const Lanes* x, int count, Fit& best) {
  Lanes inverse, sum_q = {}, sum_qq = {}, sum_w = {}, sum_wq = {};
  for (int i = 0; i < kLanes; ++i) inverse[i] = Inverse(best.scale[i]);
  for (int c = 0; c < count; ++c) {
    for (int i = 0; i < kLanes; ++i) {
      const float code = Code(x[c][i], inverse[i], best.min[i]);
      const float weight = x[c][i] - best.min[i];  // small numbers, whatever the minimum
      sum_q[i] += code;
      sum_qq[i] += code * code;
      sum_w[i] += weight;
      sum_wq[i] += weight * code;
    }
  }
  const float n = static_cast<float>(count);
  Lanes scale, min;
  for (int i = 0; i < kLanes; ++i) {
    const float spread = n * sum_qq[i] - sum_q[i] * sum_q[i];
    const float slope = (n * sum_wq[i] - sum_q[i] * sum_w[i]) / (spread > 0 ? spread : 1);
    scale[i] = slope > kLeastScale ? RoundToBf16(slope) : best.scale[i];
    const float shift = (sum_w[i] - scale[i] * sum_q[i]) / n;
    min[i] = RoundToBf16(best.min[i] + shift);
  }
  Try(x, count, scale, min, best);
}

Fit Search(const Lanes* x, int count) {
  Lanes low, high, scale, min;
  for (int i = 0; i < kLanes; ++i) low[i] = high[i] = x[0][i];
  for (int c = 1; c < count; ++c) {
    for (int i = 0; i < kLanes; ++i) {
      low[i] = x[c][i] < low[i] ? x[c][i] : low[i];
      high[i] = x[c][i] > high[i] ? x[c][i] : high[i];
    }
  }
  Fit best;
  std::fill(best.error, best.error + kLanes, std::numeric_limits<float>::infinity());
  for (int a = 0; a < kShrinks; ++a) {
    for (int b = 0; b < kShrinks; ++b) {
      const float from_low = kShrink * static_cast<float>(a);
      const float from_high = kShrink * static_cast<float>(b);
      for (int i = 0; i < kLanes; ++i) {
        const float width = high[i] - low[i];
        min[i] = FloorToBf16(low[i] + from_low * width);
        const float step = (high[i] - from_high * width - min[i]) / kMaxCode;
        scale[i] = step > kLeastScale ? RoundToBf16(step) : 0;
      }
      Try(x, count, scale, min, best);
    }
  }
  for (int i = 0; i < kFits; ++i) FitToCodes(x, count, best);
  return best;
}

// Stores a group of 16 out-features; the matrix has `lanes` of them.
void Store(const Lanes* x, int count, int lanes, const Fit& fit, uint8_t* scales, uint8_t* codes,
           QuantizationError& total) {
  Lanes inverse;
  for (int i = 0; i < kLanes; ++i) inverse[i] = Inverse(fit.scale[i]);
  for (int i = 0; i < lanes; ++i) {
    const uint16_t scale = FloatToBfloat16(fit.scale[i]), min = FloatToBfloat16(fit.min[i]);
    std::memcpy(scales + 2 * i, &scale, 2);
    std::memcpy(scales + kMinsOffset + 2 * i, &min, 2);
  }
  for (int c = 0; c < count; ++c) {
    for (int i = 0; i < lanes; ++i) {
      const float code = Code(x[c][i], inverse[i], fit.min[i]);
      const float error = std::abs(x[c][i] - (fit.scale[i] * code + fit.min[i]));
      codes[c * 8 + i / 2] |= static_cast<uint8_t>(static_cast<int>(code) << (i % 2 * 4));
      total.squared_error += double{error} * double{error};
      total.squared_weights += double{x[c][i]} * double{x[c][i]};
      total.largest_error = std::max(total.largest_error, error);
    }
  }
}

bool Representable(const float* weights, int64_t row_stride, int64_t col_stride, int64_t n,
                   int64_t k) {
  if (col_stride > row_stride) return Representable(weights, col_stride, row_stride, k, n);
  for (int64_t row = 0; row < n; ++row) {
    bool all = true;
    for (int64_t col = 0; col < k; ++col) {
      all &= std::abs(weights[row * row_stride + col * col_stride]) <= kLargest;  // false for NaN
    }
    if (!all) return false;
  }
  return true;
}

}  // namespace

QuantizationError Quantize(const float* weights, int64_t row_stride, int64_t col_stride, int64_t n,
                           int64_t k, uint8_t* blocks) {
  QuantizationError total;
  total.representable = Representable(weights, row_stride, col_stride, n, k);
  if (!total.representable) return total;
  std::memset(blocks, 0, static_cast<size_t>(RowBlocks(n) * ColBlocks(k) * kBlockBytes));
  for (int64_t n0 = 0; n0 < n; n0 += kLanes) {
    const int lanes = static_cast<int>(std::min<int64_t>(kLanes, n - n0));
    for (int64_t k0 = 0; k0 < k; k0 += kGroup) {
      const int count = static_cast<int>(std::min(kGroup, k - k0));
      Lanes x[kGroup];
      for (int i = 0; i < kLanes; ++i) {  // beyond the matrix, repeat the last out-feature
        const float* row = weights + (n0 + std::min(i, lanes - 1)) * row_stride;
        for (int c = 0; c < count; ++c) x[c][i] = row[(k0 + c) * col_stride];
      }
      uint8_t* block = blocks + (n0 / kBlockRows * ColBlocks(k) + k0 / kBlockCols) * kBlockBytes;
      const int64_t half = n0 % kBlockRows / kLanes, col = k0 % kBlockCols;
      Store(x, count, lanes, Search(x, count),
            block + 2 * (col / kGroup * kBlockRows + half * kLanes),
            block + kCodesOffset + half * kHalfBytes + col * 8, total);
    }
  }
  return total;
}

}  // namespace ort_aie::q4nx
