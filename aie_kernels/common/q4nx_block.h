// A Q4NX block in L1: 32 out-features n x 256 in-features k (paper 1, III-A2). S is 8192 / group.
//
//   S scales, bfloat16, index (k / group) * 32 + n
//   S minima, bfloat16, same index, if they are stored; else a minimum is -8 * scale
//   4,096 bytes of codes: byte (n / 16) * 2048 + k * 8 + (n % 16) / 2, low nibble for even n
//
// weight(n, k) = minimum + scale * code. Shipping `.q4nx` files have groups of 32 and minima: 5,120
// bytes. In every form kernels process 32 in-features at a time, and results are those of the same
// weights in the shipping form, bit for bit.
#pragma once

#include <aie_api/aie.hpp>

namespace q4nx {

inline constexpr unsigned rows = 32;
inline constexpr unsigned columns = 256;
inline constexpr unsigned group = 32;  // in-features that are processed together
inline constexpr unsigned groups = columns / group;

// The papers' sub-block: one 512-bit load.
inline constexpr unsigned sub_rows = 16;
inline constexpr unsigned sub_columns = 8;
inline constexpr unsigned sub_codes = sub_rows * sub_columns;

inline constexpr unsigned half_bytes = 2048;

// What `load_codes` adds to a code.
inline constexpr float code_bias = 128;

// The form of a block, as kernels get it: S, and whether minima are stored, 1 or 0.
struct form {
  unsigned scales, minima;

  constexpr form(int32_t s, int32_t m)
      : scales(static_cast<unsigned>(s)), minima(static_cast<unsigned>(m)) {}

  // Bytes before the codes, and of a block.
  unsigned codes_offset() const { return 2 * scales << minima; }
  unsigned bytes() const { return codes_offset() + 2 * half_bytes; }

  // The scales of 32 out-features for group g of 32 in-features.
  const bfloat16* scales_of(const uint8_t* block, unsigned g) const {
    return reinterpret_cast<const bfloat16*>(block) + (g * scales >> 8) * rows;
  }
  // Their minima, divided by this factor: without minima, the scales themselves.
  const bfloat16* minima_of(const uint8_t* block, unsigned g) const {
    return scales_of(block, g) + scales * minima;
  }
  bfloat16 minimum_factor() const { return minima != 0 ? bfloat16(1.0f) : bfloat16(-8.0f); }
};
inline constexpr form shipping(256, 1);

// Half a sub-block, lanes [4 k][16 n].
using half_block = aie::vector<bfloat16, sub_codes / 2>;

struct sub_block {
  half_block first;   // in-features k .. k + 3
  half_block second;  // in-features k + 4 .. k + 7
};

// 128 is 0x4300 in bfloat16, and its last bit is worth 1: or-ing a code in adds it. Two unpacks and
// an or are cheaper than the conversion of integers, which goes through the accumulators.
inline half_block biased(const aie::vector<uint4, sub_codes / 2>& codes) {
  const aie::vector<uint16, sub_codes / 2> wide = codes.unpack().unpack();
  return aie::bit_or(static_cast<uint16>(0x4300), wide).cast_to<bfloat16>();
}

// 128 + code of out-features half * 16 .. + 15 and in-features k .. k + 7.
inline sub_block load_codes(const uint8_t* codes, unsigned half, unsigned k) {
  const aie::vector<uint4, sub_codes> nibbles = aie::load_v<sub_codes>(
      reinterpret_cast<const uint4*>(codes + half * half_bytes + k * (sub_rows / 2)));
  return {biased(nibbles.extract<sub_codes / 2>(0)), biased(nibbles.extract<sub_codes / 2>(1))};
}

}  // namespace q4nx
