// The gated activations of a decoder's MLP, on vectors: code that a token's operators
// (activations.cc) and a prompt's (row_operators.cc) share.
//
// Numerics: sigmoid and tanh use the exponential of float_math.h, because the core's tanh is off by
// up to 0.038 near 0.5 and its exp2 by 6.2 %. They are accurate to 2^-13 of their value,
// products keep two limbs, and the result is rounded once.
#pragma once

#include "float_math.h"

// Beyond +-128 the sigmoid of SiLU is 0 or 1 to within the smallest bfloat16; beyond +-16 that of
// GELU.
inline Halves<32> within(const Halves<32>& x, float limit) {
  return aie::max(aie::min(x, aie::broadcast<bfloat16, 32>(static_cast<bfloat16>(limit))),
                  aie::broadcast<bfloat16, 32>(static_cast<bfloat16>(-limit)));
}

// x * sigmoid(x)'s argument in the domain of exp2.
inline Floats<32> silu_argument(const Halves<32>& x) {
  return product(within(x, 128.0f), ScalarLimbs(kLog2E));
}

// GELU in its tanh form is x * sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)).
inline Floats<32> gelu_argument(const Halves<32>& x) {
  constexpr float kLinear = 2 * 0.797884561f * kLog2E;
  constexpr float kCubicFactor = 0.044715f * kLinear;
  const Halves<32> inner = within(x, 16.0f);
  const Limbs<32> square(to_floats(aie::mul(inner, inner)));
  const Floats<32> slope =
      aie::add(product(square, ScalarLimbs(kCubicFactor)), constant<32>(kLinear));
  return product(Limbs<32>(slope), inner);
}

// gate * sigmoid(argument(gate)) * up.
template <typename Argument>
inline Halves<32> gated(const Halves<32>& gate, const Halves<32>& up, Argument argument) {
  const Limbs<32> sigmoid(sigmoid_of_log2(argument(gate)));
  const Limbs<32> activated(product(sigmoid, gate));
  return to_bf16(product(activated, up));
}
