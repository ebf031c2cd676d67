// fp32 arithmetic and elementary functions on the bfloat16 multiplier of AIE2P.
//
// The core multiplies bfloat16 and adds fp32; it has no fp32 multiplier, and its own exponential
// and tangent are coarse: aie::exp2 is a straight line between powers of two (up to 6.2 % high) and
// aie::tanh is off by up to 0.038 (mlir-aie's documentation of both). Everything here uses bfloat16
// macs into fp32, with fp32 operands split into two bfloat16 limbs where that matters:
//
//   split        x = high + low within 2^-17 |x|
//   products of limbs, three of the four: within 2^-15 of the product
//   exp2_fine    within 2^-15 of 2^x (polynomial 2^-18.4, the last product of limbs)
//   exp2_coarse  within 0.3 % of 2^x (polynomial 1.0e-4, bfloat16 between its steps)
//   inverse      within 2^-13 of 1/d for 1 <= d <= 2
//   tanh, sigmoid  within 2^-13 of themselves, however small
//
// All rounding to bfloat16 is to nearest even: set the mode at the head of the kernel.
#pragma once

#include <aie_api/aie.hpp>
#include <cstdint>
#include <type_traits>

#include "loop_hints.h"

template <unsigned N>
using Floats = aie::vector<float, N>;
template <unsigned N>
using Halves = aie::vector<bfloat16, N>;
template <unsigned N>
using Sums = aie::accum<accfloat, N>;

template <unsigned N>
inline Floats<N> load_floats(const float* p) {
  return aie::load_v<N>(p);
}

// `count` is a multiple of 16.
inline void fill(float* buffer, int32_t count, float value) {
  LOOP_TRIPS(count / 16, 2, 520)
  for (int32_t i = 0; i < count; i += 16) {
    aie::store_v(buffer + i, aie::broadcast<float, 16>(value));
  }
}

// `count` is a multiple of 32.
inline void copy_bf16(const bfloat16* __restrict from, bfloat16* __restrict to, int32_t count) {
  LOOP_TRIPS(count / 32, 2, 16)
  for (int32_t i = 0; i < count; i += 32) {
    aie::store_v(to + i, aie::load_v<32>(from + i));
  }
}

inline float float_of_bits(int32_t bits) { return __builtin_bit_cast(float, bits); }

template <unsigned N>
inline Floats<N> constant(float value) {
  return aie::broadcast<float, N>(value);
}

template <unsigned N>
inline Halves<N> to_bf16(const Floats<N>& x) {
  return Sums<N>(x).template to_vector<bfloat16>();
}

template <unsigned N>
inline Floats<N> to_floats(const Halves<N>& x) {
  return Sums<N>(x).template to_vector<float>();
}

template <unsigned N>
inline Floats<N> to_floats(const Sums<N>& x) {
  return x.template to_vector<float>();
}

// An fp32 vector as two bfloat16 limbs.
template <unsigned N>
struct Limbs {
  Halves<N> high, low;

  explicit Limbs(const Floats<N>& x) : high(to_bf16(x)) {
    low = aie::sub(Sums<N>(x), Sums<N>(high)).template to_vector<bfloat16>();
  }
  Limbs(const Halves<N>& high, const Halves<N>& low) : high(high), low(low) {}
};

// An fp32 scalar as two bfloat16 limbs. The subtraction is one of the few float operations that the
// scalar unit has.
struct ScalarLimbs {
  bfloat16 high, low;

  explicit ScalarLimbs(float x)
      : high(static_cast<bfloat16>(x)), low(static_cast<bfloat16>(x - static_cast<float>(high))) {}
};

// acc + x * y. The product of two low limbs, at most 2^-16 of the result, is left out.
template <unsigned N>
inline Sums<N> mac(const Sums<N>& acc, const Limbs<N>& x, const Limbs<N>& y) {
  return aie::mac(aie::mac(aie::mac(acc, x.low, y.high), x.high, y.low), x.high, y.high);
}
template <unsigned N>
inline Sums<N> mac(const Sums<N>& acc, const Limbs<N>& x, const Halves<N>& y) {
  return aie::mac(aie::mac(acc, x.low, y), x.high, y);
}
template <unsigned N>
inline Sums<N> mac(const Sums<N>& acc, const Halves<N>& x, const Halves<N>& y) {
  return aie::mac(acc, x, y);
}

// x * y.
template <unsigned N>
inline Floats<N> product(const Limbs<N>& x, const Limbs<N>& y) {
  return to_floats(aie::mac(aie::mac(aie::mul(x.low, y.high), x.high, y.low), x.high, y.high));
}
template <unsigned N>
inline Floats<N> product(const Limbs<N>& x, const Halves<N>& y) {
  return to_floats(aie::mac(aie::mul(x.low, y), x.high, y));
}
template <unsigned N>
inline Floats<N> product(const Halves<N>& x, const Limbs<N>& y) {
  return product(y, x);
}
template <unsigned N>
inline Floats<N> product(const Halves<N>& x, const Halves<N>& y) {
  return to_floats(aie::mul(x, y));
}
template <unsigned N>
inline Floats<N> product(const Limbs<N>& x, const ScalarLimbs& y) {
  return to_floats(aie::mac(aie::mac(aie::mul(x.low, y.high), x.high, y.low), x.high, y.high));
}
template <unsigned N>
inline Floats<N> product(const Halves<N>& x, const ScalarLimbs& y) {
  return to_floats(aie::mac(aie::mul(x, y.low), x, y.high));
}

// x * 2^k where `power` is 2^k: exact, for three limbs hold all 24 bits of x.
template <unsigned N>
inline Floats<N> scale_exactly(const Floats<N>& x, const Halves<N>& power) {
  const Halves<N> high = to_bf16(x);
  const Sums<N> rest = aie::sub(Sums<N>(x), Sums<N>(high));
  const Halves<N> middle = rest.template to_vector<bfloat16>();
  const Halves<N> low = aie::sub(rest, Sums<N>(middle)).template to_vector<bfloat16>();
  return to_floats(aie::mac(aie::mac(aie::mul(low, power), middle, power), high, power));
}

// The product of two fp32 scalars, on the vector unit: the scalar one would call a library.
inline float multiply(float x, float y) {
  return to_floats(aie::mul(constant<16>(x), constant<16>(y))).get(0);
}

// Adding 1.5 * 2^23 rounds an fp32 number below 2^22 to an integer, to nearest even, and leaves the
// integer in the low bits. For numbers beyond, which are integers themselves when they are
// bfloat16, adding and subtracting it returns the number.
inline constexpr float kRounder = 0x1.8p23f;

template <unsigned N>
inline Floats<N> nearest_integer(const Floats<N>& x) {
  return aie::sub(aie::add(x, constant<N>(kRounder)), constant<N>(kRounder));
}

// The fp32 numbers 2^k of numbers kRounder + 127 + k: zero for k < -126, however far below.
template <unsigned N>
inline Halves<N> power_of_two(const Floats<N>& shifted) {
  constexpr int32_t kZero = __builtin_bit_cast(int32_t, kRounder);
  const auto exponent =
      aie::max(shifted.template cast_to<int32>(), aie::broadcast<int32, N>(kZero));
  return to_bf16(aie::upshift(exponent, 23).template cast_to<float>());
}

// 2^x = scale * (1 + excess), |excess| < 0.42; x <= 127 and finite.
template <unsigned N>
struct Power {
  Floats<N> excess;
  Halves<N> scale;

  Halves<N> to_bfloat16() const {
    return aie::mul(to_bf16(aie::add(excess, constant<N>(1.0f))), scale)
        .template to_vector<bfloat16>();
  }
};

// Minimax in relative error over |f| <= 1/2, without the leading 1.
inline constexpr float kCubic[] = {0.693282928f, 0.242210966f, 0.0550089315f};
inline constexpr float kQuartic[] = {0.693124193f, 0.240240986f, 0.0559064257f, 0.00958285323f};

// A polynomial's operand: limbs, or bfloat16 alone.
template <typename Operand, unsigned N>
inline Operand narrow(const Floats<N>& x) {
  if constexpr (std::is_same_v<Operand, Halves<N>>) {
    return to_bf16(x);
  } else {
    return Operand(x);
  }
}

// 2^x begun: x = k + fraction, scale = 2^k, and the first step of the polynomial. A kernel that
// stores it has two loops, each short enough to pipeline.
template <typename Operand, unsigned N>
struct BegunPower {
  Operand fraction;
  Operand sum;
  Halves<N> scale;
};

template <typename Operand, unsigned N>
inline Operand polynomial_step(const Floats<N>& coefficient, const Operand& sum, const Operand& f) {
  return narrow<Operand>(to_floats(mac(Sums<N>(coefficient), sum, f)));
}

template <typename Operand, unsigned N, unsigned Degree>
inline BegunPower<Operand, N> begin_exp2(const Floats<N>& x, const float (&coefficients)[Degree]) {
  const Floats<N> rounder = constant<N>(kRounder + 127.0f);
  const Floats<N> shifted = aie::add(x, rounder);
  const Operand f = narrow<Operand>(aie::sub(x, aie::sub(shifted, rounder)));
  const Operand first = narrow<Operand>(constant<N>(coefficients[Degree - 1]));
  return {f, polynomial_step(constant<N>(coefficients[Degree - 2]), first, f),
          power_of_two(shifted)};
}

template <typename Operand, unsigned N, unsigned Degree>
inline Power<N> end_exp2(const BegunPower<Operand, N>& begun, const float (&coefficients)[Degree]) {
  Operand sum = begun.sum;
  LOOP_UNROLL_FULL
  for (unsigned i = Degree - 2; i-- > 0;) {
    sum = polynomial_step(constant<N>(coefficients[i]), sum, begun.fraction);
  }
  return {product(sum, begun.fraction), begun.scale};
}

template <typename Operand, unsigned N, unsigned Degree>
inline Power<N> exp2_polynomial(const Floats<N>& x, const float (&coefficients)[Degree]) {
  return end_exp2(begin_exp2<Operand>(x, coefficients), coefficients);
}

template <unsigned N>
inline Power<N> exp2_fine(const Floats<N>& x) {
  return exp2_polynomial<Limbs<N>>(x, kQuartic);
}
template <unsigned N>
inline Power<N> exp2_coarse(const Floats<N>& x) {
  return exp2_polynomial<Halves<N>>(x, kCubic);
}

// 1 / d for 1 <= d <= 2: a quadratic, good to 1 % (1.5 % in bfloat16), then a step of the third
// order whose residual is taken against both limbs of d.
template <unsigned N>
inline Floats<N> inverse(const Floats<N>& d) {
  const Sums<N> one(constant<N>(1.0f));
  const Limbs<N> limbs(d);
  const Halves<N> slope = aie::mac(Sums<N>(constant<N>(-1.45454584f)), limbs.high,
                                   aie::broadcast<bfloat16, N>(static_cast<bfloat16>(0.32323239f)))
                              .template to_vector<bfloat16>();
  const Halves<N> guess =
      aie::mac(Sums<N>(constant<N>(2.12121256f)), limbs.high, slope).template to_vector<bfloat16>();
  const Sums<N> residual = aie::msc(aie::msc(one, limbs.high, guess), limbs.low, guess);
  const Halves<N> h = residual.template to_vector<bfloat16>();
  const Halves<N> step = aie::mac(residual, h, h).template to_vector<bfloat16>();
  return to_floats(aie::mac(Sums<N>(guess), guess, step));
}

inline constexpr float kLog2E = 1.44269504f;

// Signs by integer operations: the core compares and negates no fp32.
template <unsigned N>
inline auto sign_bits(const Floats<N>& x) {
  return aie::bit_and(x.template cast_to<int32>(), aie::broadcast<int32, N>(INT32_MIN));
}
template <unsigned N>
inline auto is_negative(const Floats<N>& x) {
  return aie::lt(x.template cast_to<int32>(), aie::zeros<int32, N>());
}
template <unsigned N>
inline Floats<N> minus_magnitude(const Floats<N>& x) {
  return aie::bit_or(x.template cast_to<int32>(), aie::broadcast<int32, N>(INT32_MIN))
      .template cast_to<float>();
}

// 1 / (1 + 2^-u): the sigmoid of u / log2(e).
template <unsigned N>
inline Floats<N> sigmoid_of_log2(const Floats<N>& u) {
  const Floats<N> one = constant<N>(1.0f);
  const Power<N> power = exp2_fine(minus_magnitude(u));
  const Limbs<N> mantissa(aie::add(power.excess, one));
  const Floats<N> e = product(mantissa, power.scale);
  const Limbs<N> numerator(aie::select(one, e, is_negative(u)));
  return product(numerator, Limbs<N>(inverse(aie::add(e, one))));
}

// tanh(u / (2 log2(e))) = (1 - e) / (1 + e) with e = 2^-|u| = scale + scale * excess, and the sign
// of u. For small u the scale is 1 and 1 - e is the excess alone: nothing cancels.
template <unsigned N>
inline Floats<N> tanh_of_log2(const Floats<N>& u) {
  const Sums<N> one(constant<N>(1.0f));
  const Power<N> power = exp2_fine(minus_magnitude(u));
  const Sums<N> scale(power.scale);
  const Sums<N> rest(product(Limbs<N>(power.excess), power.scale));
  const Limbs<N> numerator(to_floats(aie::sub(aie::sub(one, scale), rest)));
  const Floats<N> magnitude =
      product(numerator, Limbs<N>(inverse(to_floats(aie::add(aie::add(one, scale), rest)))));
  return aie::bit_or(magnitude.template cast_to<int32>(), sign_bits(u)).template cast_to<float>();
}
