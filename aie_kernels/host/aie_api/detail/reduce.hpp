// Reductions to a scalar of the element type, in the order of each architecture.
#pragma once

#include "arithmetic.hpp"
#include "moves.hpp"

namespace aie {

namespace detail {

// Sums chunks of `width` lanes in order, then halves; each step rounds to fp32.
template <unsigned width, typename T, unsigned N>
float halving_sum(const vector<T, N>& v) {
  constexpr unsigned lanes_left = N < width ? N : width;
  const auto& lanes = host::lanes(v);
  std::array<float, lanes_left> sums;
  for (unsigned lane = 0; lane < lanes_left; ++lane) {
    sums[lane] = lanes[lane];
  }
  for (unsigned lane = lanes_left; lane < N; ++lane) {
    sums[lane % lanes_left] = flush(sums[lane % lanes_left] + static_cast<float>(lanes[lane]));
  }
  for (unsigned half = lanes_left / 2; half > 0; half /= 2) {
    for (unsigned lane = 0; lane < half; ++lane) {
      sums[lane] = flush(sums[lane] + sums[lane + half]);
    }
  }
  return sums[0];
}

// AIE2's matrix unit: products and the accumulator are aligned to the largest exponent (a product's
// is the sum of its factors'), each rounded to nearest even at 23 fraction bits below it, summed
// exactly and rounded once (xdna-emu, bit-exact on Phoenix). A power of two of 52 bits above the
// last kept bit, added and taken away, rounds a double to that bit.
struct aligned_term {
  double value;
  double exponent;  // the power of two its alignment goes by; 0 for zero
};

inline double power_of(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value) & 0x7FFFFFFF;
  const uint32_t exponent = bits >> 23;
  const uint64_t biased = (exponent == 0 ? 1 : exponent) + (1023 - 127);
  return bits == 0 ? 0.0 : std::bit_cast<double>(biased << 52);
}

template <unsigned K>
float aligned_sum(float acc, const std::array<aligned_term, K>& terms) {
  double largest = power_of(acc);
  for (const aligned_term& term : terms) {
    largest = term.exponent > largest ? term.exponent : largest;
  }
  const double magic = largest * 0x1.8p+29;
  double sum = (magic + static_cast<double>(acc)) - magic;
  for (const aligned_term& term : terms) {
    sum += (magic + term.value) - magic;
  }
  return round_to_f32(sum);
}

// bfloat16 on AIE2: rows of 4x8 times ones in the matrix unit, then four lanes folded twice.
template <unsigned N>
float matrix_sum(const vector<bfloat16, N>& v) {
  const auto& lanes = host::lanes(v);
  std::array<float, 4> rows{};
  for (unsigned first = 0; first < N; first += 32) {
    for (unsigned row = 0; row < 4; ++row) {
      std::array<aligned_term, 8> terms;
      for (unsigned k = 0; k < 8; ++k) {
        const unsigned lane = first + row * 8 + k;
        const float value = lane < N ? static_cast<float>(lanes[lane]) : 0.0f;
        terms[k] = {value, power_of(value)};
      }
      rows[row] = aligned_sum<8>(rows[row], terms);
    }
  }
  return flush(flush(rows[0] + rows[2]) + flush(rows[1] + rows[3]));
}

template <typename T, unsigned N>
T sum_of_lanes(const vector<T, N>& v) {
  static_assert(!is_four_bit<T>, "AIE: unpack four-bit lanes first");
  if constexpr (!is_floating<T>) {
    uint32_t sum = 0;
    for (const T lane : host::lanes(v)) {
      sum += static_cast<uint32_t>(lane);
    }
    return static_cast<T>(sum);
  } else if constexpr (is_aie2p) {
    return halving_sum<32>(v);
  } else if constexpr (std::is_same_v<T, float>) {
    return halving_sum<16>(v);
  } else {
    return matrix_sum(v);
  }
}

}  // namespace detail

// bfloat16 lanes are summed in fp32; the sum is rounded to bfloat16 in the current mode.
template <typename T, unsigned N>
T reduce_add(const vector<T, N>& v) {
  return detail::sum_of_lanes(v);
}

// Sums of the vectors in lanes 0, 1, ..; zeros above (assumed).
template <typename T, unsigned N, typename... More>
  requires(sizeof...(More) < 4 && (std::is_same_v<vector<T, N>, More> && ...))
vector<T, N> reduce_add_v(const vector<T, N>& first, const More&... more) {
  vector<T, N> result = zeros<T, N>();
  unsigned lane = 0;
  result.set(reduce_add(first), lane++);
  (result.set(reduce_add(more), lane++), ...);
  return result;
}

template <typename T, unsigned N>
T reduce_max(const vector<T, N>& v) {
  static_assert(!detail::is_four_bit<T>, "AIE: unpack four-bit lanes first");
  T best = v.get(0);
  for (const T lane : detail::host::lanes(v)) {
    best = detail::less(best, lane) ? lane : best;
  }
  return best;
}

template <typename T, unsigned N>
T reduce_min(const vector<T, N>& v) {
  static_assert(!detail::is_four_bit<T>, "AIE: unpack four-bit lanes first");
  T best = v.get(0);
  for (const T lane : detail::host::lanes(v)) {
    best = detail::less(lane, best) ? lane : best;
  }
  return best;
}

}  // namespace aie
