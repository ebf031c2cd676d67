// aie::mmul<M, K, N> of bfloat16: C (M x N) += A (M x K) * B (K x N), each row-major in one vector.
#pragma once

#include "block_vector.hpp"
#include "moves.hpp"
#include "reduce.hpp"

// Sources with and without emulation are linked together, so their classes need different names.
#ifdef AIE_API_EMULATE_BFLOAT16_MMUL_WITH_BFP16
#define AIE_HOST_MMUL mmul_emulated
#else
#define AIE_HOST_MMUL mmul_exact
#endif

namespace aie {

namespace detail {

inline namespace AIE_HOST_MMUL {

#ifdef AIE_API_EMULATE_BFLOAT16_MMUL_WITH_BFP16
inline constexpr bool emulate_with_bfp16 = true;
#else
inline constexpr bool emulate_with_bfp16 = false;
#endif

enum class mmul_form {
  none,
  matrix_unit,  // AIE2: 4x8x4, and what is composed of it
  elementwise,  // a mac per k, in order
  bfp16,        // AIE2P: blocks of 8 that share an exponent
};

constexpr mmul_form form_of(unsigned m, unsigned k, unsigned n) {
  const auto is = [=](unsigned a, unsigned b, unsigned c) { return m == a && k == b && n == c; };
  if (is(8, 1, 8)) {
    return mmul_form::elementwise;
  }
  if (!is_aie2p) {
    const bool composed =
        is(4, 8, 4) || is(8, 8, 4) || is(4, 8, 8) || is(8, 8, 8) || is(4, 16, 4) || is(4, 16, 8);
    return composed ? mmul_form::matrix_unit : mmul_form::none;
  }
  if (is(4, 8, 8) || is(8, 8, 8)) {
    return emulate_with_bfp16 ? mmul_form::bfp16 : mmul_form::elementwise;
  }
  return is(4, 8, 4) || is(8, 8, 4) ? mmul_form::elementwise : mmul_form::none;
}

}  // namespace AIE_HOST_MMUL

}  // namespace detail

inline namespace AIE_HOST_MMUL {

template <unsigned M, unsigned K, unsigned N, typename TA, typename TB = TA,
          typename AccTag = accauto>
class mmul {
  static_assert(std::is_same_v<TA, bfloat16> && std::is_same_v<TB, bfloat16>,
                "AIE: the stand-in has mmul for bfloat16 x bfloat16 only");
  static_assert(std::is_same_v<AccTag, accauto> || std::is_same_v<AccTag, accfloat>,
                "AIE: mmul of bfloat16 accumulates in accfloat");
  static constexpr detail::mmul_form form = detail::form_of(M, K, N);
  static_assert(form != detail::mmul_form::none, "AIE: no mmul of this shape on the architecture");

 public:
  static constexpr unsigned size_A = M * K;
  static constexpr unsigned size_B = K * N;
  static constexpr unsigned size_C = M * N;
  using vector_A_type = vector<TA, size_A>;
  using vector_B_type = vector<TB, size_B>;
  using accum_type = accum<accfloat, size_C>;

  // The first mac on an empty one starts from zero; before it the sum is undefined.
  mmul() : empty_(true) {}
  mmul(const accum_type& start) : sum_(start) {}
  template <typename T>
  mmul(const vector<T, size_C>& start, int shift = 0) : sum_(start, shift) {}

  void mul(const vector_A_type& a, const vector_B_type& b) {
    empty_ = true;
    mac(a, b);
  }

  void mac(const vector_A_type& a, const vector_B_type& b) {
    if (empty_) {
      sum_ = zeros<accfloat, size_C>();
      empty_ = false;
    }
    [[maybe_unused]] const auto& x = detail::host::lanes(a);
    [[maybe_unused]] const auto& y = detail::host::lanes(b);
    [[maybe_unused]] auto& c = detail::host::lanes(sum_);
    if constexpr (form == detail::mmul_form::matrix_unit) {
      matrix_unit(x, y, c);
    } else if constexpr (form == detail::mmul_form::bfp16) {
      bfp16(a, b, sum_);
    } else {
      elementwise(x, y, c);
    }
  }

  template <typename T>
  vector<T, size_C> to_vector(int shift = 0) const {
    return sum_.template to_vector<T>(shift);
  }
  accum_type to_accum() const { return sum_; }
  operator accum_type() const { return sum_; }

 private:
  template <typename A, typename B, typename C>
  static void matrix_unit(const A& x, const B& y, C& c) {
    for (unsigned step = 0; step < K; step += 8) {
      std::array<std::array<float, 8>, N> column;
      std::array<std::array<double, 8>, N> column_power;
      for (unsigned n = 0; n < N; ++n) {
        for (unsigned k = 0; k < 8; ++k) {
          column[n][k] = y[(step + k) * N + n];
          column_power[n][k] = detail::power_of(column[n][k]);
        }
      }
      for (unsigned m = 0; m < M; ++m) {
        std::array<double, 8> row;
        std::array<double, 8> row_power;
        for (unsigned k = 0; k < 8; ++k) {
          const float value = x[m * K + step + k];
          row[k] = value;
          row_power[k] = detail::power_of(value);
        }
        for (unsigned n = 0; n < N; ++n) {
          std::array<detail::aligned_term, 8> terms;
          for (unsigned k = 0; k < 8; ++k) {
            terms[k] = {row[k] * static_cast<double>(column[n][k]),
                        row_power[k] * column_power[n][k]};
          }
          c[m * N + n] = detail::aligned_sum<8>(c[m * N + n], terms);
        }
      }
    }
  }

  template <typename A, typename B, typename C>
  static void elementwise(const A& x, const B& y, C& c) {
    for (unsigned m = 0; m < M; ++m) {
      for (unsigned k = 0; k < K; ++k) {
        const double factor = static_cast<float>(x[m * K + k]);
        for (unsigned n = 0; n < N; ++n) {
          const double product = factor * static_cast<double>(static_cast<float>(y[k * N + n]));
          c[m * N + n] = detail::round_to_f32(product + static_cast<double>(c[m * N + n]));
        }
      }
    }
  }

  // The API widens both operands and transposes B, so that eight of k are next to each other.
  static void bfp16(const vector_A_type& a, const vector_B_type& b, accum_type& c) {
    const auto rows = accum<accfloat, size_A>(a).template grow<64>();
    const auto columns = accum<accfloat, size_B>(transpose(b, K, N));
    detail::add_block_dots<M, N>(rows.template to_vector<bfp16ebs8>(),
                                 columns.template to_vector<bfp16ebs8>(), c);
  }

  accum_type sum_;
  bool empty_ = false;
};

}  // namespace AIE_HOST_MMUL

}  // namespace aie
