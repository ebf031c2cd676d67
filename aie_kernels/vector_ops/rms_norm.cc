// RMS normalisation of a row, with or without a residual, streamed in pieces of 128: the row stays
// in L1 while its squares are summed, then leaves normalised, and leaves as it is for the next
// residual.
//
// Numerics: squares of bfloat16 are exact and summed in fp32, 16 sums that are added at the end.
// The reciprocal square root is the core's scalar one, refined by a Newton step in fp32, so that
// its accuracy does not matter. y = x * r * weight keeps two limbs between the products: one
// rounding, of a result accurate to 2^-16.

#include "../common/norm.h"

namespace {

constexpr int32_t kPiece = 128;

}  // namespace

extern "C" {

// state: 16 partial sums of squares.
void rms_begin(float* __restrict state) { aie::store_v(state, constant<16>(0.0f)); }

// row[index * 128 ..] = x.
void rms_load(bfloat16* __restrict x, bfloat16* __restrict row, float* __restrict state,
              int32_t index) {
  copy_bf16(x, row + index * kPiece, kPiece);
  aie::store_v(state, add_squares(aie::load_v<16>(state), x, kPiece));
}

// row[index * 128 ..] = bf16(x + residual), and the squares of what was stored.
void rms_add(bfloat16* __restrict x, bfloat16* __restrict residual, bfloat16* __restrict row,
             float* __restrict state, int32_t index) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  bfloat16* piece = row + index * kPiece;
  for (int32_t i = 0; i < kPiece; i += 32) {
    aie::store_v(piece + i, added<32>(aie::load_v<32>(x + i), aie::load_v<32>(residual + i)));
  }
  aie::store_v(state, add_squares(aie::load_v<16>(state), piece, kPiece));
}

// out = row[index * 128 ..]: the sum that the next residual takes.
void rms_sum(bfloat16* __restrict row, bfloat16* __restrict out, int32_t index) {
  copy_bf16(row + index * kPiece, out, kPiece);
}

// state = 1 / sqrt(sum / n + eps), once for a row: the scalar root takes longer than a piece.
void rms_scale(float* __restrict state, int32_t n, int32_t eps_bits) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  const float inverse_rms = inverse_root_mean(aie::load_v<16>(state), n, eps_bits);
  aie::store_v(state, aie::broadcast<float, 16>(inverse_rms));
}

// y = row[index * 128 ..] * weight * state.
void rms_finish(bfloat16* __restrict row, bfloat16* __restrict weight, bfloat16* __restrict y,
                float* __restrict state, int32_t index) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  normalise(row + index * kPiece, weight, y, kPiece, ScalarLimbs(state[0]));
}

}  // extern "C"
