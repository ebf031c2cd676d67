// Wider and narrower integers, integers to floats and back.
#pragma once

#include "accum.hpp"

namespace aie {

namespace detail {

template <typename T>
struct neighbours;
template <>
struct neighbours<uint4> {
  using wider = uint8;
};
template <>
struct neighbours<int4> {
  using wider = int8;
};
template <>
struct neighbours<uint8> {
  using wider = uint16;
  using narrower = uint4;
};
template <>
struct neighbours<int8> {
  using wider = int16;
  using narrower = int4;
};
template <>
struct neighbours<uint16> {
  using wider = uint32;
  using narrower = uint8;
};
template <>
struct neighbours<int16> {
  using wider = int32;
  using narrower = int8;
};

template <typename T>
concept can_unpack = requires { typename neighbours<T>::wider; };
template <typename T>
concept can_pack = requires { typename neighbours<T>::narrower; };

}  // namespace detail

// Zero or sign extension to the next wider integer.
template <typename T, unsigned N>
auto unpack(const vector<T, N>& v) {
  static_assert(detail::can_unpack<T>, "AIE: unpack takes integers of 4, 8 or 16 bits");
  using wider = typename detail::neighbours<T>::wider;
  if constexpr (detail::is_four_bit<T>) {
    const auto& pairs = detail::host::lanes(v);
    vector<wider, N> result{detail::unfilled{}};
    auto& lanes = detail::host::lanes(result);
    constexpr int sign = std::is_same_v<T, int4> ? 8 : 0;
    for (unsigned i = 0; i < N / 2; ++i) {
      lanes[2 * i] = static_cast<wider>(((pairs[i] & 15) ^ sign) - sign);
      lanes[2 * i + 1] = static_cast<wider>(((pairs[i] >> 4) ^ sign) - sign);
    }
    return result;
  } else {
    const auto& lanes = detail::host::lanes(v);
    return detail::generate<vector<wider, N>>(
        [&](unsigned lane) { return static_cast<wider>(lanes[lane]); });
  }
}

// To the next narrower integer; out of range it wraps or saturates as the mode says.
template <typename T, unsigned N>
auto pack(const vector<T, N>& v) {
  static_assert(detail::can_pack<T>, "AIE: pack takes integers of 8 or 16 bits");
  using narrower = typename detail::neighbours<T>::narrower;
  static_assert(!detail::is_four_bit<narrower>, "AIE: pack to four-bit lanes is not modelled");
  const auto& lanes = detail::host::lanes(v);
  return detail::generate<vector<narrower, N>>(
      [&](unsigned lane) { return detail::shift_round_saturate<narrower>(lanes[lane], 0); });
}

template <typename T, unsigned N>
auto vector<T, N>::unpack() const {
  return aie::unpack(*this);
}
template <typename T, unsigned N>
auto vector<T, N>::pack() const {
  return aie::pack(*this);
}

// value / 2^shift; exact below 2^16, then narrowed to TR in the current mode.
template <typename TR = float, typename T, unsigned N>
vector<TR, N> to_float(const vector<T, N>& v, int shift = 0) {
  static_assert(detail::element_traits<T>::exists && !detail::is_floating<T>,
                "AIE: to_float takes integers");
  static_assert(std::is_same_v<TR, float> || std::is_same_v<TR, bfloat16>,
                "AIE: to_float gives float or bfloat16");
  if constexpr (detail::is_four_bit<T>) {
    return to_float<TR>(unpack(v), shift);
  } else {
    detail::check(shift > -127 && shift < 127, "to_float needs a shift of -126 to 126");
    const float scale = std::bit_cast<float>(static_cast<uint32_t>(127 - shift) << 23);
    const auto& lanes = detail::host::lanes(v);
    const accum<accfloat, N> values = detail::generate<accum<accfloat, N>>(
        [&](unsigned lane) { return static_cast<float>(lanes[lane]) * scale; });
    return values.template to_vector<TR>();
  }
}

// value * 2^shift as an integer: floats round to nearest with ties toward zero, bfloat16 rounds
// down, whatever the mode; both saturate (on AIE2 assumed).
template <typename TR, typename T, unsigned N>
vector<TR, N> to_fixed(const vector<T, N>& v, int shift = 0) {
  static_assert(detail::is_floating<T>, "AIE: to_fixed takes float or bfloat16");
  static_assert(!detail::is_floating<TR> && !detail::is_four_bit<TR>,
                "AIE: to_fixed gives integers of 8 bits or more");
  detail::check(shift > -127 && shift < 127, "to_fixed needs a shift of -126 to 126");
  const float scale = std::bit_cast<float>(static_cast<uint32_t>(127 + shift) << 23);
  constexpr unsigned value_bits =
      detail::bits_of<TR> - (detail::element_traits<TR>::is_signed ? 1 : 0);
  constexpr auto high = static_cast<double>((uint64_t{1} << value_bits) - 1);
  constexpr double low = detail::element_traits<TR>::is_signed ? -high - 1 : 0;
  const auto& lanes = detail::host::lanes(v);
  return detail::generate<vector<TR, N>>([&](unsigned lane) {
    const double value = static_cast<double>(static_cast<float>(lanes[lane])) * scale;
    if (!(value > low)) {
      return static_cast<TR>(low);
    }
    if (value >= high) {
      return static_cast<TR>(high);
    }
    auto whole = static_cast<int64_t>(value);
    const double rest = value - static_cast<double>(whole);
    if constexpr (std::is_same_v<T, bfloat16>) {
      whole -= rest < 0 ? 1 : 0;
    } else {
      whole += rest > 0.5 ? 1 : rest < -0.5 ? -1 : 0;
    }
    return static_cast<TR>(whole);
  });
}

}  // namespace aie
