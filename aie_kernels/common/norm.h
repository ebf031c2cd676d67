// Code that the RMS normalisations of rows and of heads share.
#pragma once

#include "float_math.h"

// sums + x * x over `count` (a multiple of 64) values, into 16 sums.
inline Floats<16> add_squares(const Floats<16>& sums, const bfloat16* x, int32_t count) {
  Sums<64> squares = aie::zeros<accfloat, 64>();
  LOOP_TRIPS(count / 64, 1, 4)
  for (int32_t i = 0; i < count; i += 64) {
    squares = aie::mac_square(squares, aie::load_v<64>(x + i));
  }
  const Sums<32> half = aie::add(squares.extract<32>(0), squares.extract<32>(1));
  return aie::add(sums, to_floats(aie::add(half.extract<16>(0), half.extract<16>(1))));
}

// 1 / sqrt(sum(sums) / n + eps). The scalar unit adds and inverts fp32 but does not multiply:
// products are taken on the vector unit.
inline float inverse_root_mean(const Floats<16>& sums, int32_t n, int32_t eps_bits) {
  const float count = aie::to_float<float>(aie::broadcast<int32, 16>(n)).get(0);
  const float mean = multiply(aie::reduce_add(sums), aie::inv(count));
  const float a = mean + float_of_bits(eps_bits);
  const float guess = aie::invsqrt(a);
  return multiply(guess, 1.5f - multiply(multiply(0.5f, a), multiply(guess, guess)));
}

// x + residual, rounded once.
template <unsigned N>
inline Halves<N> added(const Halves<N>& x, const Halves<N>& residual) {
  return aie::add(Sums<N>(x), Sums<N>(residual)).template to_vector<bfloat16>();
}

// x * factor * weight, rounded once. A factor has two limbs, for all lanes or for each.
template <unsigned N, typename Factor>
inline Halves<N> normalised(const Halves<N>& x, const Factor& factor, const Halves<N>& weight) {
  return to_bf16(product(Limbs<N>(product(x, factor)), weight));
}

// y = x * factor * weight.
inline void normalise(const bfloat16* __restrict x, const bfloat16* __restrict weight,
                      bfloat16* __restrict y, int32_t count, const ScalarLimbs& factor) {
  LOOP_TRIPS(count / 32, 2, 8)
  for (int32_t i = 0; i < count; i += 32) {
    aie::store_v(y + i,
                 normalised<32>(aie::load_v<32>(x + i), factor, aie::load_v<32>(weight + i)));
  }
}
