// The dequantisation engine of prefill (paper 2, 3.1.1): a Q4NX block to bfloat16 weights in the
// order in which `gemm_tile` takes its B.
//
// tile[k / 8][n / 8][k % 8][n % 8], rounded as in q4nx_weights.h.

#include "../common/loop_hints.h"
#include "q4nx_weights.h"

namespace {

using q4nx::tile_size;

constexpr unsigned tiles_across = q4nx::rows / q4nx::tile_rows;
constexpr unsigned group_size = q4nx::group * q4nx::rows;
constexpr unsigned step_groups = 2;

// One group of 32 in-features of a block.
inline void dequantise(const uint8_t* __restrict block, const q4nx::form& form,
                       bfloat16* __restrict tile, unsigned g) {
  LOOP_UNROLL_FULL
  for (unsigned half = 0; half < 2; ++half) {
    const q4nx::half_group group(block, form, g, half);
    LOOP_TRIPS(q4nx::group / q4nx::sub_columns, 4, 4)
    for (unsigned i = 0; i < q4nx::group / q4nx::sub_columns; ++i) {
      const q4nx::tile_pair weights = group.weights(i);
      bfloat16* out = tile + (i * tiles_across + 2 * half) * tile_size;
      aie::store_v(out, weights.first);
      aie::store_v(out + tile_size, weights.second);
    }
  }
}

}  // namespace

extern "C" {

// `scales` and `minima` are the form.
void q4nx_dequant(const uint8_t* __restrict block, bfloat16* __restrict tile, int32_t scales,
                  int32_t minima) {
  event0();
  aie::set_rounding(aie::rounding_mode::conv_even);
  const q4nx::form form(scales, minima);
  LOOP_TRIPS(q4nx::groups, 8, 8)
  for (unsigned g = 0; g < q4nx::groups; ++g) {
    dequantise(block, form, tile + g * group_size, g);
  }
  event1();
}

// 64 in-features, from 64 * step on, of one of several blocks.
void q4nx_dequant_step(const uint8_t* __restrict blocks, bfloat16* __restrict tile, int32_t block,
                       int32_t step, int32_t scales, int32_t minima) {
  event0();
  aie::set_rounding(aie::rounding_mode::conv_even);
  const q4nx::form form(scales, minima);
  LOOP_TRIPS(step_groups, 2, 2)
  for (unsigned g = 0; g < step_groups; ++g) {
    dequantise(blocks + block * form.bytes(), form, tile + g * group_size, step * step_groups + g);
  }
  event1();
}

}  // extern "C"
