// A Q4NX block in L1: 32 out-features n x 256 in-features k in 5,120 bytes (paper 1, III-A2; bytes
// of `.q4nx` files).
//
//   bytes    0 ..  511   256 scales, bfloat16, index (k / 32) * 32 + n
//   bytes  512 .. 1023   256 minima, bfloat16, same index
//   bytes 1024 .. 5119   codes: byte (n / 16) * 2048 + k * 8 + (n % 16) / 2, low nibble for even n
//
// weight(n, k) = minimum + scale * code.
#pragma once

#include <aie_api/aie.hpp>

namespace q4nx {

inline constexpr unsigned rows = 32;
inline constexpr unsigned columns = 256;
inline constexpr unsigned group = 32;  // in-features that share a scale and a minimum
inline constexpr unsigned groups = columns / group;

// The papers' sub-block: one 512-bit load.
inline constexpr unsigned sub_rows = 16;
inline constexpr unsigned sub_columns = 8;
inline constexpr unsigned sub_codes = sub_rows * sub_columns;

inline constexpr unsigned minima_offset = 512;
inline constexpr unsigned codes_offset = 1024;
inline constexpr unsigned half_bytes = 2048;
inline constexpr unsigned bytes = 5120;

// What `load_codes` adds to a code.
inline constexpr float code_bias = 128;

inline const bfloat16* scales(const uint8_t* block) {
  return reinterpret_cast<const bfloat16*>(block);
}
inline const bfloat16* minima(const uint8_t* block) {
  return reinterpret_cast<const bfloat16*>(block + minima_offset);
}

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
inline sub_block load_codes(const uint8_t* block, unsigned half, unsigned k) {
  const uint8_t* codes = block + codes_offset + half * half_bytes + k * (sub_rows / 2);
  const aie::vector<uint4, sub_codes> nibbles =
      aie::load_v<sub_codes>(reinterpret_cast<const uint4*>(codes));
  return {biased(nibbles.extract<sub_codes / 2>(0)), biased(nibbles.extract<sub_codes / 2>(1))};
}

}  // namespace q4nx
