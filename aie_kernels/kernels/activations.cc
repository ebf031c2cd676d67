// Activations, 256 values at a time: the gated linear units and the soft cap of logits.
//
// Numerics: sigmoid and tanh are made of our own exponential (float_math.h), for the core's tanh is
// off by up to 0.038 near 0.5 and its exp2 by 6.2 %. They are good to 2^-13 of their value,
// products keep two limbs, and the result is rounded once.

#include "float_math.h"

namespace {

// Beyond +-128 the sigmoid of SiLU is 0 or 1 to within the smallest bfloat16; beyond +-16 that of
// GELU.
Halves<32> within(const Halves<32>& x, float limit) {
  return aie::max(aie::min(x, aie::broadcast<bfloat16, 32>(static_cast<bfloat16>(limit))),
                  aie::broadcast<bfloat16, 32>(static_cast<bfloat16>(-limit)));
}

// x * sigmoid(x)'s argument in the domain of exp2.
Floats<32> silu_argument(const Halves<32>& x) {
  return product(within(x, 128.0f), ScalarLimbs(kLog2E));
}

// GELU in its tanh form is x * sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)).
Floats<32> gelu_argument(const Halves<32>& x) {
  constexpr float kLinear = 2 * 0.797884561f * kLog2E;
  constexpr float kCubicFactor = 0.044715f * kLinear;
  const Halves<32> inner = within(x, 16.0f);
  const Limbs<32> square(to_floats(aie::mul(inner, inner)));
  const Floats<32> slope =
      aie::add(product(square, ScalarLimbs(kCubicFactor)), constant<32>(kLinear));
  return product(Limbs<32>(slope), inner);
}

template <typename Argument>
void gate(const bfloat16* __restrict x, const bfloat16* __restrict up, bfloat16* __restrict y,
          int32_t count, Argument argument) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  LOOP_TRIPS(count / 32, 1, 8)
  for (int32_t i = 0; i < count; i += 32) {
    const Halves<32> gate = aie::load_v<32>(x + i);
    const Limbs<32> sigmoid(sigmoid_of_log2(argument(gate)));
    const Limbs<32> activated(product(sigmoid, gate));
    aie::store_v(y + i, to_bf16(product(activated, aie::load_v<32>(up + i))));
  }
}

}  // namespace

extern "C" {

// y = silu(gate) * up.
void silu_mul(bfloat16* __restrict gate_in, bfloat16* __restrict up, bfloat16* __restrict y,
              int32_t count) {
  gate(gate_in, up, y, count, silu_argument);
}

// y = gelu(gate) * up.
void gelu_mul(bfloat16* __restrict gate_in, bfloat16* __restrict up, bfloat16* __restrict y,
              int32_t count) {
  gate(gate_in, up, y, count, gelu_argument);
}

// y = cap * tanh(x / cap).
void softcap(bfloat16* __restrict x, bfloat16* __restrict y, int32_t count, int32_t cap_bits) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  const float cap = float_of_bits(cap_bits);
  const ScalarLimbs cap_limbs(cap);
  const ScalarLimbs to_log2(multiply(2 * kLog2E, aie::inv(cap)));
  // tanh is one beyond 16, and the argument stays in the exponential's domain.
  const float limit = multiply(16.0f, cap);
  LOOP_TRIPS(count / 32, 1, 8)
  for (int32_t i = 0; i < count; i += 32) {
    const Floats<32> argument = product(within(aie::load_v<32>(x + i), limit), to_log2);
    aie::store_v(y + i, to_bf16(product(Limbs<32>(tanh_of_log2(argument)), cap_limbs)));
  }
}

}  // extern "C"
