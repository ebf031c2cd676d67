// The norms and residual sums of a decoder layer, on a core that keeps the residual stream x
// (rows[0 ..]) and the output y of a projection (rows[8192 ..]).
//
// Numerics: those of rms_norm.cc, in the same order: squares are exact, summed in fp32 by pieces of
// 128; x + y is rounded once to bfloat16; a norm is rounded once.

#include "../common/norm.h"

namespace {

constexpr int32_t kObject = 256;
constexpr int32_t kPiece = 128;
constexpr int32_t kSecond = 8192;

}  // namespace

extern "C" {

// state = 1 / sqrt(mean(rows[first .. first + n]^2) + eps).
void layer_scale(bfloat16* __restrict rows, float* __restrict state, int32_t first, int32_t n,
                 int32_t eps_bits) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  Floats<16> sums = constant<16>(0.0f);
  LOOP_TRIPS(n / kPiece, 2, 64)
  for (int32_t i = 0; i < n; i += kPiece) sums = add_squares(sums, rows + first + i, kPiece);
  aie::store_v(state, aie::broadcast<float, 16>(inverse_root_mean(sums, n, eps_bits)));
}

// out = rows[256 * index ..] * weight * state.
void layer_norm(bfloat16* __restrict rows, bfloat16* __restrict weight, bfloat16* __restrict out,
                float* __restrict state, int32_t index) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  normalise(rows + kObject * index, weight, out, kObject, ScalarLimbs(state[0]));
}

// y[256 * index ..] *= weight * state: the norm of a projection's output, before its residual sum.
void layer_norm_output(bfloat16* __restrict rows, bfloat16* __restrict weight,
                       float* __restrict state, int32_t index) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  const ScalarLimbs factor(state[0]);
  bfloat16* y = rows + kSecond + kObject * index;
  LOOP_TRIPS(kObject / 32, 8, 8)
  for (int32_t i = 0; i < kObject; i += 32) {
    const Halves<32> value = aie::load_v<32>(y + i);
    aie::store_v(y + i, normalised<32>(value, factor, aie::load_v<32>(weight + i)));
  }
}

// x = bf16(x + y), n elements.
void layer_add(bfloat16* __restrict rows, int32_t n) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  LOOP_TRIPS(n / 32, 8, 256)
  for (int32_t i = 0; i < n; i += 32) {
    // The output is first and the residual second, as in rms_add.
    const Halves<32> y = aie::load_v<32>(rows + kSecond + i);
    aie::store_v(rows + i, added<32>(y, aie::load_v<32>(rows + i)));
  }
}

}  // extern "C"
