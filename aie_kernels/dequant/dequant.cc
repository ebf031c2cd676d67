// The dequantisation engine of prefill (paper 2, 3.1.1): a Q4NX block to bfloat16 weights in the
// order in which `gemm_tile` takes its B.
//
// tile[k / 8][n / 8][k % 8][n % 8] = bf16(f32(min + scale * code)), to nearest even both times; the
// first rounding has no effect unless the two terms are 2^12 apart.
//
// Codes come biased by 128 (q4nx_block.h): scale * (128 + code) - scale * 128 is exact, since both
// products have 16 bits of one scale.

#include "../common/loop_hints.h"
#include "../common/q4nx_block.h"

namespace {

constexpr unsigned tile_rows = 8;  // out-features per tile of 8 k x 8 n
constexpr unsigned tile_size = 64;
constexpr unsigned tiles_across = q4nx::rows / tile_rows;
constexpr unsigned group_size = q4nx::group * q4nx::rows;
constexpr unsigned step_groups = 2;

// The scales, or minima, of 8 out-features for the 8 in-features of a tile.
inline aie::vector<bfloat16, tile_size> spread(const bfloat16* values) {
  return aie::load_v<tile_rows>(values).grow_replicate<tile_size>();
}

// One group of 32 in-features of a block.
inline void dequantise(const uint8_t* __restrict block, const q4nx::form& form,
                       bfloat16* __restrict tile, unsigned g) {
  const bfloat16 bias(q4nx::code_bias);
  const bfloat16 factor = form.minimum_factor();
  const uint8_t* block_codes = block + form.codes_offset();
  LOOP_UNROLL_FULL
  for (unsigned half = 0; half < 2; ++half) {
    const unsigned n = half * q4nx::sub_rows;
    const bfloat16* scales = form.scales_of(block, g) + n;
    const bfloat16* minima = form.minima_of(block, g) + n;
    const aie::vector<bfloat16, tile_size> scale0 = spread(scales);
    const aie::vector<bfloat16, tile_size> scale1 = spread(scales + tile_rows);
    const aie::accum<accfloat, tile_size> min0 = aie::mul(spread(minima), factor);
    const aie::accum<accfloat, tile_size> min1 = aie::mul(spread(minima + tile_rows), factor);
    const aie::accum<accfloat, tile_size> unbias0 = aie::negmul(scale0, bias);
    const aie::accum<accfloat, tile_size> unbias1 = aie::negmul(scale1, bias);
    LOOP_TRIPS(q4nx::group / q4nx::sub_columns, 4, 4)
    for (unsigned i = 0; i < q4nx::group / q4nx::sub_columns; ++i) {
      const q4nx::sub_block codes =
          q4nx::load_codes(block_codes, half, g * q4nx::group + i * q4nx::sub_columns);
      const auto [codes0, codes1] = aie::interleave_unzip(codes.first, codes.second, tile_rows);
      bfloat16* out = tile + (i * tiles_across + 2 * half) * tile_size;
      const aie::accum<accfloat, tile_size> w0 = aie::add(aie::mac(unbias0, codes0, scale0), min0);
      const aie::accum<accfloat, tile_size> w1 = aie::add(aie::mac(unbias1, codes1, scale1), min1);
      aie::store_v(out, w0.to_vector<bfloat16>());
      aie::store_v(out + tile_size, w1.to_vector<bfloat16>());
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
