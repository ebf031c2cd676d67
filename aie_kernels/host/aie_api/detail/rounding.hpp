// Rounding, bfloat16, and what an fp32 result of the vector unit looks like.
#pragma once

#include "types.hpp"

namespace aie::detail {

// A magnitude without its `width` low bits, to nearest, ties to even.
template <unsigned width>
constexpr uint64_t round_to_even(uint64_t magnitude) {
  const uint64_t odd = (magnitude >> width) & 1;
  return (magnitude + (uint64_t{1} << (width - 1)) - 1 + odd) >> width;
}

// fp32 bits to bf16 bits. A NaN stays one; infinities pass.
constexpr uint16_t round_to_bf16(uint32_t bits) {
  const auto rounded = static_cast<uint16_t>(round_to_even<16>(bits));
  const uint32_t cut = bits >> 16;
  const uint32_t nan = (cut & 0x7F) == 0 ? cut | 1 : cut;
  return static_cast<uint16_t>((bits & 0x7FFFFFFF) > 0x7F800000 ? nan : rounded);
}

// Subnormal results of the vector unit are zeros of their sign (xdna-emu, checked on Phoenix).
inline float flush(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>((bits & 0x7F800000) == 0 ? bits & 0x80000000 : bits);
}

// One rounding of an exact sum: float + product of two bfloat16 never rounds harmfully in a double,
// because 53 bits hold every bit of both that can decide a tie of 24.
inline float round_to_f32(double exact) { return flush(static_cast<float>(exact)); }

}  // namespace aie::detail

// A scalar type of the AIE compilers. Casts from float depend on the mode, but for constants and
// for values that bfloat16 holds.
class bfloat16 {
 public:
  bfloat16() = default;
  constexpr bfloat16(float value) : bits_(rounded(std::bit_cast<uint32_t>(value))) {}
  constexpr operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits_) << 16);
  }

 private:
  static constexpr uint16_t rounded(uint32_t bits) {
    if (!std::is_constant_evaluated() && (bits & 0xFFFF) != 0) aie::detail::need_mode();
    return aie::detail::round_to_bf16(bits);
  }

  uint16_t bits_;
};

namespace aie::detail {

constexpr uint16_t bits_of_bf16(bfloat16 value) { return std::bit_cast<uint16_t>(value); }
constexpr bfloat16 bf16_of_bits(int bits) {
  return std::bit_cast<bfloat16>(static_cast<uint16_t>(bits));
}

}  // namespace aie::detail
