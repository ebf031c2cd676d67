// The normalisation of query and key heads (Qwen3, Gemma3) and the rotary embedding, 256 values at
// a time: 4, 2 or 1 heads.
//
// Numerics: the sum of squares as in rms_norm.cc; rotations are rotation.h's.

#include "../common/norm.h"
#include "../common/rotation.h"

namespace {

template <bool kInterleaved>
void rotate(const bfloat16* __restrict x, const bfloat16* __restrict cosines,
            const bfloat16* __restrict sines, bfloat16* __restrict y, int32_t half) {
  LOOP_TRIPS(half / 16, 1, 8)
  for (int32_t i = 0; i < half; i += 16) {
    const Halves<16> cosine = aie::load_v<16>(cosines + i);
    const Halves<16> sine = aie::load_v<16>(sines + i);
    if constexpr (kInterleaved) {
      const Pairs<16> pairs = neighbours<32>(aie::load_v<32>(x + 2 * i));
      aie::store_v(y + 2 * i, side_by_side(rotated(pairs, cosine, sine)));
    } else {
      const Pairs<16> pairs{aie::load_v<16>(x + i), aie::load_v<16>(x + half + i)};
      const Pairs<16> turned = rotated(pairs, cosine, sine);
      aie::store_v(y + i, turned.first);
      aie::store_v(y + half + i, turned.second);
    }
  }
}

}  // namespace

extern "C" {

// y = x * weight / sqrt(mean(x^2) + eps) for each head; weight[head_dim].
void qk_norm(bfloat16* __restrict x, bfloat16* __restrict weight, bfloat16* __restrict y,
             int32_t head_dim, int32_t eps_bits) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  for (int32_t head = 0; head < 256; head += head_dim) {
    const Floats<16> squares = add_squares(constant<16>(0.0f), x + head, head_dim);
    normalise(x + head, weight, y + head, head_dim,
              ScalarLimbs(inverse_root_mean(squares, head_dim, eps_bits)));
  }
}

// Rotates the first rotary_dim (a multiple of 32, or 0) values of each head and copies the others.
// Pairs are (i, i + rotary_dim / 2), or (2 i, 2 i + 1) when interleaved; cos_sin holds rotary_dim /
// 2 cosines, then as many sines.
void rope(bfloat16* __restrict x, bfloat16* __restrict cos_sin, bfloat16* __restrict y,
          int32_t head_dim, int32_t rotary_dim, int32_t interleaved) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  const int32_t half = rotary_dim >> 1;
  for (int32_t head = 0; head < 256; head += head_dim) {
    const bfloat16* from = x + head;
    bfloat16* to = y + head;
    if (half > 0 && interleaved) {
      rotate<true>(from, cos_sin, cos_sin + half, to, half);
    } else if (half > 0) {
      rotate<false>(from, cos_sin, cos_sin + half, to, half);
    }
    for (int32_t i = rotary_dim; i < head_dim; i += 32) {
      aie::store_v(to + i, aie::load_v<32>(from + i));
    }
  }
}

// out = the 256 values from rows[256 * index ..], normalised with rows[256 * weight ..] unless
// `weight` is 0, then rotated. `between` is for the normalised values.
void layer_rotate(bfloat16* __restrict rows, bfloat16* __restrict cos_sin,
                  bfloat16* __restrict between, bfloat16* __restrict out, int32_t index,
                  int32_t weight, int32_t head_dim, int32_t rotary_dim, int32_t interleaved,
                  int32_t eps_bits) {
  bfloat16* x = rows + 256 * index;
  if (weight != 0) {
    qk_norm(x, rows + 256 * weight, between, head_dim, eps_bits);
    x = between;
  }
  rope(x, cos_sin, out, head_dim, rotary_dim, interleaved);
}

}  // extern "C"
