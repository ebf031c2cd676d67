// The weights of a Q4NX block (q4nx_block.h) in bfloat16, 8 in-features by 8 out-features at a
// time.
//
// Codes come biased by 128: scale * (128 + code) - scale * 128 is exact, since both products have
// 16 bits of one scale. A weight is rounded to fp32 and that to bfloat16, to nearest even both
// times; the first rounding has no effect unless the two terms are 2^12 apart.
#pragma once

#include "../common/q4nx_block.h"

namespace q4nx {

inline constexpr unsigned tile_rows = 8;  // out-features of a tile
inline constexpr unsigned tile_size = 64;

// Lanes [8 k][8 n] of two tiles: out-features 0 .. 7 and 8 .. 15 of a sub-block.
struct tile_pair {
  aie::vector<bfloat16, tile_size> first, second;
};

// The scales, or minima, of 8 out-features for the 8 in-features of a tile.
inline aie::vector<bfloat16, tile_size> spread(const bfloat16* values) {
  return aie::load_v<tile_rows>(values).grow_replicate<tile_size>();
}

// What 32 in-features of 16 out-features, half of a block's, have in common.
class half_group {
 public:
  half_group(const uint8_t* block, const form& form, unsigned g, unsigned half)
      : codes_(block + form.codes_offset()), half_(half), k_(g * group) {
    const bfloat16 bias(code_bias);
    const bfloat16 factor = form.minimum_factor();
    const bfloat16* scales = form.scales_of(block, g) + half * sub_rows;
    const bfloat16* minima = form.minima_of(block, g) + half * sub_rows;
    scale0_ = spread(scales);
    scale1_ = spread(scales + tile_rows);
    min0_ = aie::mul(spread(minima), factor);
    min1_ = aie::mul(spread(minima + tile_rows), factor);
    unbias0_ = aie::negmul(scale0_, bias);
    unbias1_ = aie::negmul(scale1_, bias);
  }

  // Sub-block i: in-features 8 i .. 8 i + 7 of the group.
  tile_pair weights(unsigned i) const {
    const sub_block codes = load_codes(codes_, half_, k_ + i * sub_columns);
    const auto [codes0, codes1] = aie::interleave_unzip(codes.first, codes.second, tile_rows);
    const sums w0 = aie::add(aie::mac(unbias0_, codes0, scale0_), min0_);
    const sums w1 = aie::add(aie::mac(unbias1_, codes1, scale1_), min1_);
    return {w0.to_vector<bfloat16>(), w1.to_vector<bfloat16>()};
  }

 private:
  using sums = aie::accum<accfloat, tile_size>;

  const uint8_t* codes_;
  unsigned half_, k_;
  aie::vector<bfloat16, tile_size> scale0_, scale1_;
  sums min0_, min1_, unbias0_, unbias1_;
};

}  // namespace q4nx
