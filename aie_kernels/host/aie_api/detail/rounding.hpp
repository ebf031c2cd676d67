// The ten rounding modes, bfloat16, and what an fp32 result of the vector unit looks like.
#pragma once

#include "types.hpp"

namespace aie::detail {

// Rounding drops `width` low bits of a magnitude; it adds one of these first.
enum class addend { nothing, almost_half, half, almost_one };

template <unsigned width>
constexpr uint64_t addend_value(addend kind) {
  switch (kind) {
    case addend::almost_half:
      return (uint64_t{1} << (width - 1)) - 1;
    case addend::half:
      return uint64_t{1} << (width - 1);
    case addend::almost_one:
      return (uint64_t{1} << width) - 1;
    default:
      return 0;
  }
}

// The current mode as numbers: no branch is left for the loop over lanes. Modes depend on the sign
// or on the lowest bit that stays, never on both.
template <unsigned width>
struct rounder {
  uint64_t base = 0;
  uint64_t if_negative = 0;  // added, modulo 2^64, for negative values
  uint64_t if_odd = 0;       // for an odd lowest bit

  explicit constexpr rounder(rounding_mode mode) {
    switch (mode) {
      case rounding_mode::floor:
        by_sign(addend::nothing, addend::almost_one);
        break;
      case rounding_mode::ceil:
        by_sign(addend::almost_one, addend::nothing);
        break;
      case rounding_mode::symmetric_floor:
        by_sign(addend::nothing, addend::nothing);
        break;
      case rounding_mode::symmetric_ceil:
        by_sign(addend::almost_one, addend::almost_one);
        break;
      case rounding_mode::negative_inf:
        by_sign(addend::almost_half, addend::half);
        break;
      case rounding_mode::positive_inf:
        by_sign(addend::half, addend::almost_half);
        break;
      case rounding_mode::symmetric_zero:
        by_sign(addend::almost_half, addend::almost_half);
        break;
      case rounding_mode::symmetric_inf:
        by_sign(addend::half, addend::half);
        break;
      case rounding_mode::conv_even:
        by_parity(addend::almost_half, addend::half);
        break;
      case rounding_mode::conv_odd:
        by_parity(addend::half, addend::almost_half);
        break;
    }
  }

  constexpr uint64_t add(uint64_t negative, uint64_t odd) const {
    return base + negative * if_negative + odd * if_odd;
  }

 private:
  constexpr void by_sign(addend positive, addend negative) {
    base = addend_value<width>(positive);
    if_negative = addend_value<width>(negative) - base;
  }
  constexpr void by_parity(addend even, addend odd) {
    base = addend_value<width>(even);
    if_odd = addend_value<width>(odd) - base;
  }
};

// fp32 bits to bf16 bits. A NaN stays one; infinities pass.
constexpr uint16_t round_to_bf16(uint32_t bits, const rounder<16>& rounding) {
  const auto base = static_cast<uint32_t>(rounding.base);
  const auto if_negative = static_cast<uint32_t>(rounding.if_negative);
  const auto if_odd = static_cast<uint32_t>(rounding.if_odd);
  const uint32_t add = base + (bits >> 31) * if_negative + ((bits >> 16) & 1) * if_odd;
  const uint32_t rounded = (bits + add) >> 16;
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

// A scalar type of the AIE compilers. Casts from float round in the current mode, constants to
// nearest. A value that bfloat16 holds is the same in every mode.
class bfloat16 {
 public:
  bfloat16() = default;
  constexpr bfloat16(float value)
      : bits_(aie::detail::round_to_bf16(std::bit_cast<uint32_t>(value),
                                         aie::detail::rounder<16>(mode_for(value)))) {}
  constexpr operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits_) << 16);
  }

 private:
  static constexpr aie::rounding_mode mode_for(float value) {
    const bool exact = (std::bit_cast<uint32_t>(value) & 0xFFFF) == 0;
    return std::is_constant_evaluated() || exact ? aie::rounding_mode::conv_even
                                                 : aie::detail::rounding_in_use();
  }

  uint16_t bits_;
};

namespace aie::detail {

constexpr uint16_t bits_of_bf16(bfloat16 value) { return std::bit_cast<uint16_t>(value); }
constexpr bfloat16 bf16_of_bits(int bits) {
  return std::bit_cast<bfloat16>(static_cast<uint16_t>(bits));
}

}  // namespace aie::detail
