// Code that FlowKV and FlowQKV share: scores in the domain of exp2, a running maximum of integers,
// and the buffers through which a score tile passes its results to its value tile.
//
// The softmax runs in base 2: t = score * scale * log2(e), F = 2^(t - m). Papers 1 and 2 take m,
// the running maximum, as it is. Here it is rounded to an integer. Any m near the maximum gives the
// same attention, and an integer makes the correction C = 2^(m_left - m) a power of two: C is exact
// in bfloat16, C * Y and C * l are exact, and C is 1 unless the maximum moved by a whole octave, so
// that most chunks need no rescaling at all. The maximum is taken over scores rounded to bfloat16
// (the core compares no fp32), whose integers are bfloat16 as well: F is at most 2^(1/2 + 2^-9
// |t|).
#pragma once

#include <array>

#include "float_math.h"

// The maximum before the first key: below every score, above the score of a masked key, which then
// gets F = 0 and moves nothing.
inline constexpr float kNoMaximum = -0x1p100f;
inline constexpr float kMaskedScore = -0x1.FEp127f;

// Of head dimensions and chunks: the core shifts, and divides by a library call.
inline int32_t log2_of(int32_t power_of_two) {
  return __builtin_ctz(static_cast<unsigned>(power_of_two));
}

// From products q.k to the domain of exp2; with a cap, score = cap * tanh(q.k * scale / cap).
class ScoreMap {
 public:
  ScoreMap(int32_t scale_bits, int32_t softcap_bits)
      : capped_(softcap_bits != 0),
        scale_(multiply(
            float_of_bits(scale_bits),
            capped_ ? multiply(2 * kLog2E, aie::inv(float_of_bits(softcap_bits))) : kLog2E)),
        cap_(multiply(float_of_bits(softcap_bits), kLog2E)) {}

  // In place, `count` (a multiple of 32) products to scores. A loop for each case: one with a
  // branch inside would not pipeline.
  void apply(float* scores, int32_t count) const {
    if (capped_) {
      LOOP_TRIPS(count / 32, 1, 32)
      for (int32_t i = 0; i < count; i += 32) {
        const Floats<32> scaled = product(Limbs<32>(load_floats<32>(scores + i)), scale_);
        aie::store_v(scores + i, product(Limbs<32>(tanh_of_log2(scaled)), cap_));
      }
    } else {
      LOOP_TRIPS(count / 32, 1, 32)
      for (int32_t i = 0; i < count; i += 32) {
        aie::store_v(scores + i, product(Limbs<32>(load_floats<32>(scores + i)), scale_));
      }
    }
  }

 private:
  bool capped_;
  ScalarLimbs scale_;
  ScalarLimbs cap_;
};

// op of the even and the odd chunks of two vectors.
template <unsigned kChunk, typename T, typename Op>
inline aie::vector<T, 32> fold(const aie::vector<T, 32>& v, const aie::vector<T, 32>& w, Op op) {
  const auto [even, odd] = aie::interleave_unzip(v, w, kChunk);
  return op(even, odd);
}

// op over the 8 rows (chunks 32, 16, 8) or the 8 columns (chunks 1, 1, 1) of four 8x8 blocks: 8
// results of each block in turn. In halves of a block, because shuffles take 1,024 bits at most.
template <unsigned kChunk1, unsigned kChunk2, unsigned kChunk3, typename T, typename Op>
inline aie::vector<T, 32> fold_blocks(const std::array<aie::vector<T, 64>, 4>& blocks, Op op) {
  std::array<aie::vector<T, 32>, 4> parts;
  LOOP_UNROLL_FULL
  for (unsigned i = 0; i < 4; ++i) {
    parts[i] =
        fold<kChunk1>(blocks[i].template extract<32>(0), blocks[i].template extract<32>(1), op);
  }
  return fold<kChunk3>(fold<kChunk2>(parts[0], parts[1], op), fold<kChunk2>(parts[2], parts[3], op),
                       op);
}
template <typename T, typename Op>
inline aie::vector<T, 32> fold_rows(const std::array<aie::vector<T, 64>, 4>& blocks, Op op) {
  return fold_blocks<32, 16, 8>(blocks, op);
}
template <typename T, typename Op>
inline aie::vector<T, 32> fold_columns(const std::array<aie::vector<T, 64>, 4>& blocks, Op op) {
  return fold_blocks<1, 1, 1>(blocks, op);
}

inline constexpr auto kAdd = [](const auto& x, const auto& y) { return aie::add(x, y); };
inline constexpr auto kFirst = [](const auto& x, const auto&) { return x; };
inline constexpr auto kMax = [](const auto& x, const auto& y) { return aie::max(x, y); };

// Each of 8 values 8 times: the factors of an 8x8 block's rows.
inline Halves<64> repeat_by_8(const Halves<8>& v) {
  return aie::transpose(v.grow_replicate<64>(), 8, 8);
}

// 2^k of integers k <= 0; zero below -126.
template <unsigned N>
inline Halves<N> two_to(const Floats<N>& k) {
  return power_of_two(aie::add(k, constant<N>(kRounder + 127.0f)));
}
