// Activations, 256 values at a time: the gated linear units and the soft cap of logits.
// Their numerics are in activations.h.

#include "../common/activations.h"

namespace {

template <typename Argument>
void gate(const bfloat16* __restrict x, const bfloat16* __restrict up, bfloat16* __restrict y,
          int32_t count, Argument argument) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  LOOP_TRIPS(count / 32, 1, 8)
  for (int32_t i = 0; i < count; i += 32) {
    aie::store_v(y + i, gated(aie::load_v<32>(x + i), aie::load_v<32>(up + i), argument));
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
