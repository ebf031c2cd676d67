// aie::mmul of bfloat16: C (M x N) += A (M x K) * B (K x N), each row-major in one vector.
#pragma once

#include "block_vector.hpp"
#include "moves.hpp"

namespace aie {

namespace detail {

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

inline float aligned_sum(float acc, const std::array<aligned_term, 8>& terms) {
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

}  // namespace detail

// AIE2P has no matrix unit for bfloat16: kernels with products ask for bfp16.
#if __AIE_ARCH__ == 20 || defined(AIE_API_EMULATE_BFLOAT16_MMUL_WITH_BFP16)
template <unsigned M, unsigned K, unsigned N, typename TA, typename TB = TA>
class mmul {
  static_assert(M == 8 && K == 8 && N == 8 && std::is_same_v<TA, bfloat16> &&
                    std::is_same_v<TB, bfloat16>,
                "AIE: the stand-in has mmul of 8x8x8 bfloat16 only");

 public:
  static constexpr unsigned size_A = M * K;
  static constexpr unsigned size_B = K * N;
  static constexpr unsigned size_C = M * N;

  // The first mac on an empty one starts from zero; before it the sum is undefined.
  mmul() : empty_(true) {}
  mmul(const accum<accfloat, size_C>& start) : sum_(start) {}
  explicit mmul(const vector<float, size_C>& start) : sum_(start) {}

  // In AIE2's matrix unit, or on AIE2P as blocks of 8 that share an exponent.
  void mac(const vector<TA, size_A>& a, const vector<TB, size_B>& b) {
    if (empty_) {
      sum_ = zeros<accfloat, size_C>();
      empty_ = false;
    }
    if constexpr (detail::is_aie2p) {
      // The API transposes B, so that eight of k are next to each other.
      const accum<accfloat, size_A> rows(a);
      const accum<accfloat, size_B> columns(transpose(b, K, N));
      detail::add_block_dots(rows.template to_vector<bfp16ebs8>(),
                             columns.template to_vector<bfp16ebs8>(), sum_);
    } else {
      matrix_unit(detail::host::lanes(a), detail::host::lanes(b), detail::host::lanes(sum_));
    }
  }

  template <typename T>
  vector<T, size_C> to_vector() const {
    return sum_.template to_vector<T>();
  }

 private:
  template <typename A, typename B, typename C>
  static void matrix_unit(const A& x, const B& y, C& c) {
    std::array<std::array<float, 8>, N> column;
    std::array<std::array<double, 8>, N> column_power;
    for (unsigned n = 0; n < N; ++n) {
      for (unsigned k = 0; k < 8; ++k) {
        column[n][k] = y[k * N + n];
        column_power[n][k] = detail::power_of(column[n][k]);
      }
    }
    for (unsigned m = 0; m < M; ++m) {
      std::array<double, 8> row;
      std::array<double, 8> row_power;
      for (unsigned k = 0; k < 8; ++k) {
        const float value = x[m * K + k];
        row[k] = value;
        row_power[k] = detail::power_of(value);
      }
      for (unsigned n = 0; n < N; ++n) {
        std::array<detail::aligned_term, 8> terms;
        for (unsigned k = 0; k < 8; ++k) {
          terms[k] = {row[k] * static_cast<double>(column[n][k]),
                      row_power[k] * column_power[n][k]};
        }
        c[m * N + n] = detail::aligned_sum(c[m * N + n], terms);
      }
    }
  }

  accum<accfloat, size_C> sum_;
  bool empty_ = false;
};
#endif

}  // namespace aie
