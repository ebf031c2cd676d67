// The gated linear units, 256 values at a time. Their numerics are in activations.h.

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

}  // extern "C"
