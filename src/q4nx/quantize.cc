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

// How codes of 4 or 2 bits are searched for. A range may lose `kShrink` of its width, up to
// `kShrinks` - 1 times, at either end: 25 ranges of 15 steps, or 49 of 3. More ranges, or larger
// losses, lower the error of normal and of heavy-tailed weights by less than one percent.
template <int kBits>
struct Search;
template <>
struct Search<4> {
  static constexpr float kShrink = 0.03f;
  static constexpr int kShrinks = 5;
};
template <>
struct Search<2> {
  static constexpr float kShrink = 0.05f;
  static constexpr int kShrinks = 7;
};
constexpr int kFits = 2;

template <int kBits>
constexpr float kMaxCode = static_cast<float>((1 << kBits) - 1);
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

template <int kBits>
inline float Code(float x, float inverse, float min) {
  float t = (x - min) * inverse;
  t = t > 0 ? t : 0;
  t = t < kMaxCode<kBits> ? t : kMaxCode<kBits>;
  return (t + 12582912.0f) - 12582912.0f;  // 1.5 * 2^23: to the nearest integer, ties to even
}

inline float Inverse(float scale) { return scale > 0 ? 1 / scale : 0; }

// A group of each of kLanes out-features: `count` weights, and how much the squared error of each
// counts. All count the same without kWeighted.
struct Group {
  Lanes x[kGroup];
  float importance[kGroup];
  int count;
};

// Keeps (scale, min) for each lane where they fit its group better.
template <int kBits, bool kWeighted>
void Try(const Group& group, const Lanes& scale, const Lanes& min, Fit& best) {
  const Lanes* x = group.x;
  Lanes inverse, error = {};
  for (int i = 0; i < kLanes; ++i) inverse[i] = Inverse(scale[i]);
  for (int c = 0; c < group.count; ++c) {
    for (int i = 0; i < kLanes; ++i) {
      const float code = Code<kBits>(x[c][i], inverse[i], min[i]);
      const float difference = x[c][i] - (scale[i] * code + min[i]);
      if constexpr (kWeighted) {
        error[i] += group.importance[c] * (difference * difference);
      } else {
        error[i] += difference * difference;
      }
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
template <int kBits, bool kWeighted>
void FitToCodes(const Group& group, Fit& best) {
  const Lanes* x = group.x;
  Lanes inverse, sum_q = {}, sum_qq = {}, sum_w = {}, sum_wq = {};
  for (int i = 0; i < kLanes; ++i) inverse[i] = Inverse(best.scale[i]);
  for (int c = 0; c < group.count; ++c) {
    for (int i = 0; i < kLanes; ++i) {
      const float code = Code<kBits>(x[c][i], inverse[i], best.min[i]);
      const float weight = x[c][i] - best.min[i];  // small numbers, whatever the minimum
      if constexpr (kWeighted) {
        const float v = group.importance[c];
        sum_q[i] += v * code;
        sum_qq[i] += v * (code * code);
        sum_w[i] += v * weight;
        sum_wq[i] += v * (weight * code);
      } else {
        sum_q[i] += code;
        sum_qq[i] += code * code;
        sum_w[i] += weight;
        sum_wq[i] += weight * code;
      }
    }
  }
  const float n = static_cast<float>(group.count);  // the sum of the importance, too
  Lanes scale, min;
  for (int i = 0; i < kLanes; ++i) {
    const float spread = n * sum_qq[i] - sum_q[i] * sum_q[i];
    const float slope = (n * sum_wq[i] - sum_q[i] * sum_w[i]) / (spread > 0 ? spread : 1);
    scale[i] = slope > kLeastScale ? RoundToBf16(slope) : best.scale[i];
    const float shift = (sum_w[i] - scale[i] * sum_q[i]) / n;
    min[i] = RoundToBf16(best.min[i] + shift);
  }
  Try<kBits, kWeighted>(group, scale, min, best);
}

template <int kBits, bool kWeighted>
Fit BestFit(const Group& group) {
  constexpr float kShrink = Search<kBits>::kShrink;
  constexpr int kShrinks = Search<kBits>::kShrinks;
  const Lanes* x = group.x;
  Lanes low, high, scale, min;
  for (int i = 0; i < kLanes; ++i) low[i] = high[i] = x[0][i];
  for (int c = 1; c < group.count; ++c) {
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
        const float step = (high[i] - from_high * width - min[i]) / kMaxCode<kBits>;
        scale[i] = step > kLeastScale ? RoundToBf16(step) : 0;
      }
      Try<kBits, kWeighted>(group, scale, min, best);
    }
  }
  for (int i = 0; i < kFits; ++i) FitToCodes<kBits, kWeighted>(group, best);
  return best;
}

// Stores a group of 16 out-features, of which the matrix has `lanes`: its first in-feature is
// column `col` of the block, and its first out-feature the first of the block's `half`.
template <int kBits>
void Store(const Group& group, int lanes, const Fit& fit, const float* importance, int64_t half,
           int64_t col, uint8_t* block, QuantizationError& total) {
  Lanes inverse;
  for (int i = 0; i < kLanes; ++i) inverse[i] = Inverse(fit.scale[i]);
  uint8_t* scales = block + 2 * (col / kGroup * kBlockRows + half * kLanes);
  for (int i = 0; i < lanes; ++i) {
    const uint16_t scale = FloatToBfloat16(fit.scale[i]), min = FloatToBfloat16(fit.min[i]);
    std::memcpy(scales + 2 * i, &scale, 2);
    std::memcpy(scales + MinimaOffset(kShipping) + 2 * i, &min, 2);
  }
  uint8_t* codes = block + CodesOffset(kShipping);
  codes += kBits == 4 ? half * kHalfBytes + col * 8 : col / kQuad * kQuadBytes + half * kLanes;
  for (int c = 0; c < group.count; ++c) {
    double squared = 0;
    for (int i = 0; i < lanes; ++i) {
      const float x = group.x[c][i];
      const float value = Code<kBits>(x, inverse[i], fit.min[i]);
      const float error = std::abs(x - (fit.scale[i] * value + fit.min[i]));
      const int code = static_cast<int>(value), nibble = i % 2 * 4;
      if constexpr (kBits == 4) {
        codes[c * 8 + i / 2] |= static_cast<uint8_t>(code << nibble);
      } else {
        uint8_t* planes = codes + c / kQuad * kQuadBytes + i / 2 * 2;
        const auto bit = nibble + c % kQuad;
        planes[0] |= static_cast<uint8_t>((code & 1) << bit);
        planes[1] |= static_cast<uint8_t>((code >> 1) << bit);
      }
      squared += double{error} * double{error};
      total.squared_error += double{error} * double{error};
      total.squared_weights += double{x} * double{x};
      total.largest_error = std::max(total.largest_error, error);
    }
    total.weighted_error += (importance == nullptr ? 1.0 : double{importance[c]}) * squared;
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

// Sets what the in-features of a group count, with the sum `count`: their proportions decide, and
// errors that can be squared in float stay so.
void SetImportance(const float* importance, Group& group) {
  double sum = 0;
  for (int c = 0; c < group.count; ++c) sum += double{importance[c]};
  for (int c = 0; c < group.count; ++c) {
    group.importance[c] =
        sum > 0 ? static_cast<float>(double{importance[c]} / sum * group.count) : 1;
  }
}

template <int kBits, bool kWeighted>
void QuantizeAll(const float* weights, int64_t row_stride, int64_t col_stride, int64_t n, int64_t k,
                 const float* importance, uint8_t* blocks, QuantizationError& total) {
  constexpr WeightForm kForm = {KindOfBits(kBits)};
  std::memset(blocks, 0, static_cast<size_t>(BytesOfBlocks(n, k, kForm)));
  Group group;
  for (int64_t n0 = 0; n0 < n; n0 += kLanes) {
    const int lanes = static_cast<int>(std::min<int64_t>(kLanes, n - n0));
    for (int64_t k0 = 0; k0 < k; k0 += kGroup) {
      group.count = static_cast<int>(std::min(kGroup, k - k0));
      for (int i = 0; i < kLanes; ++i) {  // beyond the matrix, repeat the last out-feature
        const float* row = weights + (n0 + std::min(i, lanes - 1)) * row_stride;
        for (int c = 0; c < group.count; ++c) group.x[c][i] = row[(k0 + c) * col_stride];
      }
      const float* counts = kWeighted ? importance + k0 : nullptr;
      if constexpr (kWeighted) SetImportance(counts, group);
      uint8_t* block =
          blocks + (n0 / kBlockRows * ColBlocks(k) + k0 / kBlockCols) * BlockBytes(kForm);
      Store<kBits>(group, lanes, BestFit<kBits, kWeighted>(group), counts, n0 % kBlockRows / kLanes,
                   k0 % kBlockCols, block, total);
    }
  }
}

}  // namespace

QuantizationError Quantize(const float* weights, int64_t row_stride, int64_t col_stride, int64_t n,
                           int64_t k, int64_t bits, const float* importance, uint8_t* blocks) {
  QuantizationError total;
  total.representable = Representable(weights, row_stride, col_stride, n, k);
  if (!total.representable) return total;
  if (bits == 8) {
    QuantizeBytes(weights, row_stride, col_stride, n, k, importance, blocks, total);
    return total;
  }
  const auto all = bits == 4 ? importance == nullptr ? QuantizeAll<4, false> : QuantizeAll<4, true>
                   : importance == nullptr ? QuantizeAll<2, false>
                                           : QuantizeAll<2, true>;
  all(weights, row_stride, col_stride, n, k, importance, blocks, total);
  return total;
}

}  // namespace ort_aie::q4nx
