// Elementary functions in fp32, built from operations that both architectures have. Each fp32
// product is nine bfloat16 products on the chip: for epilogues, not for inner loops.
#pragma once

#include <aie_api/aie.hpp>

namespace elementary {

// 2^x for -126 <= x <= 126, to 3e-6: x = k + f, |f| <= 1/2, Taylor's polynomial of 2^f, and k added
// to the exponent (the scheme of mlir-aie's `exp2_poly.h`).
template <unsigned N>
aie::vector<float, N> exp2(const aie::vector<float, N>& x) {
  // Added to |x| < 2^22, this leaves the nearest integer in the low bits.
  const aie::vector<float, N> integer_bits = aie::add(x, 0x1.8p23f);
  const aie::vector<float, N> f = aie::sub(x, aie::sub(integer_bits, 0x1.8p23f));
  constexpr float coefficients[] = {9.6181291e-3f, 5.55041087e-2f, 0.240226507f, 0.693147181f, 1};
  aie::vector<float, N> p = aie::broadcast<float, N>(1.3333558e-3f);
  for (const float c : coefficients) {
    const aie::accum<accfloat, N> next(aie::broadcast<float, N>(c));
    p = aie::mac(next, p, f).template to_vector<float>();
  }
  const aie::vector<int32, N> k = aie::upshift(integer_bits.template cast_to<int32>(), 23);
  return aie::add(p.template cast_to<int32>(), k).template cast_to<float>();
}

// 1 / x for normal 1 / x, to 3e-7: a guess of the exponent's complement, within 12 %, and three
// steps of Newton's.
template <unsigned N>
aie::vector<float, N> reciprocal(const aie::vector<float, N>& x) {
  aie::vector<float, N> y = aie::sub(static_cast<int32>(0x7EF311C7), x.template cast_to<int32>())
                                .template cast_to<float>();
  for (int step = 0; step < 3; ++step) {
    const aie::accum<accfloat, N> two(aie::broadcast<float, N>(2.0f));
    const aie::vector<float, N> correction = aie::msc(two, x, y).template to_vector<float>();
    y = aie::mul(y, correction).template to_vector<float>();
  }
  return y;
}

// 1 / (1 + e^-x). Below x = -86.6 it is 0, where the true value leaves fp32's range.
template <unsigned N>
aie::vector<float, N> sigmoid(const aie::vector<float, N>& x) {
  constexpr float log2_e = 1.44269504f;
  constexpr float limit = 125;
  const aie::vector<float, N> power = aie::mul(x, -log2_e).template to_vector<float>();
  const aie::vector<float, N> e = elementary::exp2(aie::clamp(power, -limit, limit));
  const aie::vector<float, N> y = elementary::reciprocal(aie::add(e, 1.0f));
  return aie::select(y, 0.0f, aie::gt(power, limit));
}

template <unsigned N>
aie::vector<float, N> silu(const aie::vector<float, N>& x) {
  return aie::mul(x, elementary::sigmoid(x)).template to_vector<float>();
}

// x / 2 * (1 + tanh(u)) = x * sigmoid(2 u) with u = sqrt(2 / pi) * (x + 0.044715 x^3), while the
// cube is in range: |x| < 1e12.
template <unsigned N>
aie::vector<float, N> gelu(const aie::vector<float, N>& x) {
  constexpr float linear = 1.59576912f;   // 2 sqrt(2 / pi)
  constexpr float cubic = 0.0713548163f;  // the same * 0.044715
  const aie::vector<float, N> square = aie::mul(x, x).template to_vector<float>();
  const aie::accum<accfloat, N> start(aie::broadcast<float, N>(linear));
  const aie::vector<float, N> slope = aie::mac(start, square, cubic).template to_vector<float>();
  const aie::vector<float, N> u2 = aie::mul(x, slope).template to_vector<float>();
  return aie::mul(x, elementary::sigmoid(u2)).template to_vector<float>();
}

}  // namespace elementary
